"""Metrics in files: read back with the very tools that people read them with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.federation import extra_trackers
from fedvisage.federation.trackers import JsonLines, scalars

ROWS = [
    {"round": 1, "phase": "train", "repeat": 0, "loss": 0.5, "parties": {"ann": {"loss": 0.5}}, "absent": {}},
    {"round": 2, "phase": "train", "repeat": 0, "loss": 0.25, "parties": {"ann": {"loss": 0.25}}, "absent": {}},
    {"round": 2, "phase": "test", "accuracy": 0.75},
]


def test_rows_are_one_json_object_per_line(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    for row in ROWS:
        lines.log(row)
    size = lines.sync()
    assert size == (tmp_path / "metrics.jsonl").stat().st_size
    lines.close()
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == ROWS


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.log(ROWS[0])
    size = lines.sync()
    lines.log(ROWS[1])
    lines.close()
    again = JsonLines(path, size)
    again.log(ROWS[2])
    again.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [ROWS[0], ROWS[2]]


def test_a_file_shorter_than_its_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(FedVisageError, match="shorter than its checkpoint says"):
        JsonLines(tmp_path / "metrics.jsonl", 100)


def test_scalars_are_named_by_phase_and_leave_tables_out() -> None:
    assert scalars(ROWS[0]) == {"train/repeat": 0.0, "train/loss": 0.5}
    assert scalars(ROWS[2]) == {"test/accuracy": 0.75}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_the_numbers_by_round(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tracker,) = extra_trackers(["tensorboard"], tmp_path, "demo")
    for row in ROWS:
        tracker.log(row)
    tracker.close()
    read = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"train/loss", "train/repeat", "test/accuracy"}
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(1, 0.5), (2, 0.25)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_finished_run_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tracker,) = extra_trackers(["mlflow"], tmp_path, "demo")
    for row in ROWS:
        tracker.log(row)
    tracker.close()
    client = mlflow.MlflowClient(tracking_uri=tracker.uri)  # type: ignore[attr-defined]
    assert str(tmp_path) in tracker.uri  # type: ignore[attr-defined]
    experiment = client.get_experiment_by_name("fedvisage")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((point.step, point.value) for point in history) == [(1, 0.5), (2, 0.25)]
    assert run.data.metrics["test/accuracy"] == 0.75


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed_says_what_to_install(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FedVisageError, match=r"is not installed: pip install 'fedvisage\[track\]'"):
        extra_trackers([name], tmp_path, "demo")


def test_none_is_made_where_none_is_asked_for(tmp_path: Path) -> None:
    assert extra_trackers([], tmp_path, "demo") == []
    assert list(tmp_path.iterdir()) == []
