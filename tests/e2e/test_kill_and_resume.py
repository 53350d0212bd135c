"""A run that is killed again and again ends with the same bits as one that was left alone."""

from __future__ import annotations

import filecmp
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, os, resource, signal, sys
import fedvisage as fv

folder, at = sys.argv[1], json.loads(sys.argv[2])
changes = json.loads(sys.argv[3])

def watch(event):
    here = [event.kind, event.phase, event.round]
    if at and here == at["event"] and event.done == at["done"]:
        if at["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (at["limit"], at["limit"]))

try:
    fv.run(fv.load_recipe("smoke", changes), out=folder, resume=os.path.exists(folder), watch=watch)
except fv.FedVisageError as error:
    print(error)
    sys.exit(2)
"""
TINY = {
    "faces.identities": 16,
    "faces.images_per_identity": 4,
    "partition.public": 4,
    "partition.test": 0,
    "partition.parties": 3,
    "partition.identities_per_party": 4,
    "partition.held_out": 0.25,
    "pretrain.epochs": 1,
    "federation.rounds": 2,
    "federation.workers": 1,
    "federation.evaluate_every": 1,
    "federation.keep_local": True,
    "training.optimiser_state": "keep",
    "compare": [],
}
VALIDATED = TINY | {
    "faces.identities": 24,
    "partition.validators": 1,
    "partition.identities_per_validator": 8,
    "method.name": "pfm-fedfr",
    "weighting.name": "fv",
    "weighting.pairs": 20,
    "weighting.candidates": 2,
    "weighting.folds": 2,
    "federation.workers": 2,
    "evaluation.every": 1,
    "evaluation.choose": "tar@0.1",
}
RESULTS = ("model.safetensors", "metrics.jsonl", "partition.json", "start.safetensors", "evaluation.json")


def run(
    folder: Path, at: dict[str, object] | None = None, changes: dict[str, object] = TINY
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(folder), json.dumps(at), json.dumps(changes)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


def different(one: Path, other: Path) -> list[str]:
    """Results that two runs do not have in common, the parties' own models and the chosen round's included."""
    files = [
        path for run in (one, other) for path in (*run.glob("parties/*/model.safetensors"), *run.rglob("chosen/**/*"))
    ]
    own = {str(path.relative_to(one if path.is_relative_to(one) else other)) for path in files if path.is_file()}
    names = [*RESULTS, *sorted(own)]
    return [n for n in names if not (one / n).exists() or not filecmp.cmp(one / n, other / n, shallow=False)]


def during(phase: str, answers: int) -> list[tuple[str, str, int, int]]:
    """Everything that happens in a phase of the first round."""
    return [(kind, phase, 1, answers if kind == "answer" else 0) for kind in ("planned", "answer", "absorbed", "saved")]


EVERY_PHASE = [
    *[("absorbed", "pre-train", 1, 0), ("planned", "join", 0, 0), ("answer", "join", 0, 2)],
    *[*during("train", 2), *during("evaluate", 2), ("answer", "train", 2, 3), ("absorbed", "evaluate", 2, 0)],
]


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        (TINY, EVERY_PHASE),
        (VALIDATED, [("answer", "train", 1, 2), *during("validate", 1), ("planned", "validate", 2, 0)]),
    ],
    ids=["fedavg", "own models, validated, in two processes"],
)
def test_a_run_killed_at_every_phase_of_a_round_ends_with_the_same_bits(
    undisturbed: Path, tmp_path: Path, changes: dict[str, object], points: list[tuple[str, str, int, int]]
) -> None:
    folder, whole = tmp_path / "killed", undisturbed
    if changes is not TINY:
        whole = tmp_path / "whole"
        assert run(whole, changes=changes).returncode == 0
        assert len(list(whole.glob("parties/*/model.safetensors"))) == 3
        assert len(list(whole.glob("chosen/parties/*/model.safetensors"))) == 3
    for kind, phase, number, done in points:
        killed = run(folder, {"event": [kind, phase, number], "done": done, "how": "kill"}, changes)
        assert killed.returncode == -signal.SIGKILL, (kind, phase, number, killed.stderr)
    finished = run(folder, changes=changes)
    assert finished.returncode == 0, finished.stderr
    assert different(whole, folder) == []
    attempts = {json.loads(line).get("attempt") for line in (folder / "ledger.jsonl").read_text().splitlines()}
    assert len(attempts - {None}) > len(points) / 2, "what was sent before each kill stays in the ledger"


FULL = {
    "checkpoint": ({"event": ["absorbed", "evaluate", 1], "done": 0, "limit": 20_000}, "what was there before is kept"),
    "ledger or metrics": ({"event": ["answer", "train", 1], "done": 1, "limit": 100}, "cannot"),
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_is_one_line_and_loses_nothing(what: str, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    at, says = FULL[what]
    full = run(folder, {**at, "how": "full"})
    assert full.returncode == 2, full.stderr
    assert says in full.stdout
    assert full.stdout.count("\n") == 1
    checkpoints = [path.name for path in (folder / "checkpoints").iterdir()]
    assert sorted(checkpoints) == ["attempt", "last.safetensors"], "no half-written file is left"
    assert run(folder).returncode == 0
    assert different(undisturbed, folder) == []
