"""A small made-up run folder whose numbers are easy to follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folder import RunFolder, histogram


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two parties, two rounds of FedAvg, evaluated once, compared with `alone` and `central`."""
    parties = ("anna", "bert")
    run = RunFolder(tmp_path / "run")
    run.evaluation = {
        "models": {
            "start": _score(0.8191, 0.021, 0.51, 0.21, histogram(50, 60), histogram(40, 55)),
            "fedavg": _score(0.8812, 0.018, 0.63, 0.34, histogram(60, 75), histogram(35, 50)),
            "alone": {
                "accuracy": 0.8414,
                "accuracy_std": 0.0101,
                "tar": {"0.1": 0.55, "0.01": 0.25},
                "parties": {
                    "anna": {"accuracy": 0.8313, "accuracy_std": 0.02, "tar": {"0.1": 0.5, "0.01": 0.2}},
                    "bert": {"accuracy": 0.8515, "accuracy_std": 0.02, "tar": {"0.1": 0.6, "0.01": 0.3}},
                },
            },
            "central": _score(0.9046, 0.015, 0.71, 0.42, histogram(62, 78), histogram(35, 48)),
        },
        "test": {"identities": 20, "images": 160, "pairs": 3000, "all_genuine": 560, "all_impostor": 12160},
        "seed": 7,
    }
    share = {"role": "trainer", "identities": ["p1", "p2", "p3"], "train": list(range(24)), "held_out": [1, 2]}
    run.partition = {
        "public": {"identities": ["q"] * 12, "images": list(range(96))},
        "test": {"identities": ["t"] * 20, "images": list(range(160))},
        "parties": {party: share | {"identities": [f"{party}-{n}" for n in range(3)]} for party in parties},
    }
    joined = {party: {"samples": 24, "classes": 3} for party in parties}
    run.metrics = [
        {"round": 0, "phase": "join", "repeat": 0, "samples": 24.0, "accepted": 2, "parties": joined, "absent": {}},
        *({"round": n, "phase": "train", "repeat": 0, "loss": 12.0 / n, "accepted": 2} for n in (1, 2)),
        {
            "round": 2,
            "phase": "evaluate",
            "repeat": 0,
            "global_rank1": 0.625,
            "accepted": 2,
            "parties": {"anna": {"global_rank1": 0.5}, "bert": {"global_rank1": 0.75}},
            "absent": {},
        },
    ]
    loss = [{"round": n, "phase": "train", "repeat": 0, "loss": 11.0 / n} for n in (1, 2)]
    run.compared = {"alone": loss, "central": loss}
    for party in parties:
        run.ledger += [
            run.crossed(0, "join", party, "down", "statistics", 0, names=[]),
            run.crossed(0, "join", party, "up", "statistics", 16, names=["classes", "samples"]),
        ]
        for number in (1, 2):
            run.ledger += [
                run.crossed(number, "train", party, "down", "backbone", 1_500_000, tensors=0),
                run.crossed(number, "train", party, "up", "backbone", 1_500_000, tensors=0),
                run.crossed(number, "train", party, "up", "statistics", 16, names=["loss", "samples"]),
            ]
    run.ledger.insert(4, {"layout": 0, "group": "backbone", "tensors": [["conv.weight", [3, 3], "float32"]]})
    return run


def _score(accuracy: float, std: float, loose: float, strict: float, genuine: Any, impostor: Any) -> dict[str, Any]:
    bins = {"genuine": genuine, "impostor": impostor}
    return {"accuracy": accuracy, "accuracy_std": std, "histogram": bins, "tar": {"0.1": loose, "0.01": strict}}
