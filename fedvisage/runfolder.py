"""A run's folder: how it begins, whether what is there may be gone on with, and what is in it at the end."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedvisage.build import resolve
from fedvisage.config import Recipe, load_recipe, shipped_recipes, to_toml
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.report import Absence, absence_lines, run_absences
from fedvisage.scoring import Score


def environment() -> dict[str, Any]:
    """What results may depend on besides the recipe."""
    packages = ("fedvisage", "torch", "numpy", "pillow", "pydantic", "safetensors")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "packages": {name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


RECIPE, ENVIRONMENT = "recipe.toml", "environment.json"


@dataclass(frozen=True)
class RunResult:
    """Where the run is and what it scored."""

    folder: Path
    evaluation: Mapping[str, Any]
    """The contents of `evaluation.json`."""

    @property
    def scores(self) -> Mapping[str, Score]:
        """Per model (`start`, the method, each comparison): `accuracy`, `accuracy_std`, `tar` by FAR, and so on."""
        found: Mapping[str, Score] = self.evaluation["models"]
        return found

    @property
    def answer(self) -> Mapping[str, Any] | None:
        """Whether federating helped, as `sentence` and in numbers; None where the run compares nothing."""
        found: Mapping[str, Any] | None = self.evaluation.get("answer")
        return found

    @property
    def answers(self) -> Mapping[str, Mapping[str, Any]]:
        """The answers domain by domain, where the test people are of several."""
        found: Mapping[str, Mapping[str, Any]] = self.evaluation.get("answers", {})
        return found

    @property
    def warnings(self) -> Sequence[str]:
        """What would mislead a reader of the scores."""
        found: Sequence[str] = self.evaluation.get("warnings", ())
        return found

    @property
    def absences(self) -> Sequence[Absence]:
        """Parties whose answers did not all count, by phase, with how many did and why the others did not."""
        return run_absences(self.folder)

    @property
    def model_path(self) -> Path:
        """The federated model."""
        return self.folder / "model.safetensors"

    @property
    def report_path(self) -> Path:
        """The report page."""
        return self.folder / "report.html"

    def __str__(self) -> str:
        fars = sorted({far for score in self.scores.values() for far in score["tar"]}, key=float, reverse=True)
        lines = [f"{'model':<12}{'accuracy':>10}" + "".join(f"{'TAR@' + far:>12}" for far in fars)]
        for name, score in self.scores.items():
            tars = "".join(f"{100 * score['tar'][far]:>11.2f}%" for far in fars)
            lines.append(f"{name:<12}{100 * score.get('accuracy', math.nan):>9.2f}%{tars}")
        said = [self.answer["sentence"]] if self.answer else []
        said += [f"Note: {warning}" for warning in self.warnings]
        return "\n".join([*lines, *said, *absence_lines(self.absences)])


def refuse_recipe_inside(recipe: str | Path, folder: Path) -> None:
    """A recipe in the folder that is to be removed would be removed with it."""
    path = Path(recipe)
    if str(recipe) not in shipped_recipes() and path.resolve().is_relative_to(folder.resolve()):
        raise FedVisageError(
            f"{path} lies in {folder}, which --fresh removes: copy it elsewhere, or choose another --out"
        )


@contextmanager
def set_aside(folder: Path) -> Iterator[None]:
    """Remove the run in a folder once a new one has begun there; where none begins, it is put back."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        yield
        return
    if not ((folder / RECIPE).is_file() and (folder / ENVIRONMENT).is_file()):
        raise FedVisageError(f"{folder} holds no run ({RECIPE} and {ENVIRONMENT}), and --fresh removes nothing else")
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        folder.rename(aside / folder.name)
    except OSError as error:
        raise FedVisageError(f"cannot remove {folder}: {error.strerror or error}") from None
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        (aside / folder.name).rename(folder)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def prepare_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Make the run's folder or take it as it was left; it begins with the recipe and what results may depend on."""
    saved = folder / RECIPE
    if folder.exists() and not folder.is_dir():
        raise FedVisageError(f"{folder} is a file; a run needs a folder")
    if folder.exists() and any(folder.iterdir()):
        if not resume:
            raise FedVisageError(
                f"{folder} is not empty: resume it (--resume), start over (--fresh) or choose another --out"
            )
        if not saved.exists():
            raise FedVisageError(f"{folder} holds no run to resume: recipe.toml is missing")
        _check_same_recipe(saved, recipe)
        return
    if resume:
        raise FedVisageError(f"there is no run to resume in {folder}: start one without --resume")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedVisageError(f"cannot create {folder}: {error.strerror}") from error
    write_atomically(folder / ENVIRONMENT, [json.dumps(environment(), indent=1).encode()])
    write_atomically(saved, [to_toml(recipe).encode()])


def _check_same_recipe(saved: Path, recipe: Recipe) -> None:
    """A run goes on with the recipe it began with; only how it uses the machine may change.

    Settings that are newer than the run had their defaults then.
    """
    free = {"workers": 0, "timeout": None}

    def comparable(one: Recipe) -> list[str]:
        return to_toml(one.model_copy(update={"federation": one.federation.model_copy(update=free)})).splitlines()

    before, now = comparable(resolve(load_recipe(saved))), comparable(recipe)
    if before != now:
        different = sorted(set(before) ^ set(now))
        raise FedVisageError(f"{saved} was made with another recipe ({'; '.join(different[:4])}): use another --out")
