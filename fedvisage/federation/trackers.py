"""Where metrics go: a JSONL file always, TensorBoard and MLflow where asked for and installed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedvisage.core.errors import FedVisageError

_COMPACT = json.JSONEncoder(separators=(",", ":"))


class Tracker(Protocol):
    """Receives the row of every finished exchange."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Take one row: `round`, `phase`, and numbers or tables of numbers."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class JsonLines:
    """One JSON object per line; holds nothing that differs between two runs of the same recipe."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        self._file = path.open("ab")
        if self._file.tell() < keep_bytes:
            self._file.close()
            raise FedVisageError(f"{path} is shorter than its checkpoint says; it cannot be continued")
        self._file.truncate(keep_bytes)
        self._file.seek(keep_bytes)

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row, in pieces: one of ten thousand parties is long."""
        self._file.writelines(piece.encode() for piece in _COMPACT.iterencode(row))
        self._file.write(b"\n")

    def sync(self) -> int:
        """Hand everything to the operating system; the file's length."""
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars as TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _not_installed("TensorBoard") from None
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["round"])

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


class MLflow:
    """Scalars as an MLflow run, in `MLFLOW_TRACKING_URI` or else in the run folder: SQLite, or files without it."""

    def __init__(self, folder: Path, name: str) -> None:
        try:
            import mlflow
        except ImportError:
            raise _not_installed("MLflow") from None
        folder.mkdir(parents=True, exist_ok=True)
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or _mlflow_home(folder.resolve())
        self._client = mlflow.MlflowClient(tracking_uri=self.uri)
        found = self._client.get_experiment_by_name("fedvisage")
        experiment = found.experiment_id if found else self._client.create_experiment("fedvisage")
        self._run = self._client.create_run(experiment, run_name=name).info.run_id

    def log(self, row: Mapping[str, Any]) -> None:
        """Write the row's numbers."""
        for name, value in scalars(row).items():
            self._client.log_metric(self._run, name, value, step=row["round"])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, named `phase/number`, without the per-party table."""
    numbers = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in ("round", "phase")}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}


def extra_trackers(names: Sequence[str], folder: Path, run: str) -> list[Tracker]:
    """The trackers a recipe asks for besides JSONL."""
    made: list[Tracker] = []
    if "tensorboard" in names:
        made.append(TensorBoard(folder / "tensorboard"))
    if "mlflow" in names:
        made.append(MLflow(folder / "mlflow", run))
    return made


def _mlflow_home(folder: Path) -> str:
    """The small MLflow package comes without a database's parts, and wants to be told that files are meant."""
    if find_spec("sqlalchemy") and find_spec("alembic"):
        return f"sqlite:///{folder}/mlflow.db"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"{folder.as_uri()}/mlruns"


def _not_installed(what: str) -> FedVisageError:
    return FedVisageError(f"{what} is not installed: pip install 'fedvisage[track]'")
