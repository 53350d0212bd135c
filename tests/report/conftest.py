"""A small made-up run folder whose numbers are easy to follow, and pages read back as a browser would."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedvisage.report import write_report

RECIPE = """\
name = {name}
seed = 7
description = {description}
compare = ["alone", "central"]

[method]
name = {method}

[backbone]
name = "ir-tiny"

[pretrain]
epochs = 2

[federation]
rounds = 2
"""


def histogram(low: int, high: int) -> list[int]:
    return [100 if low <= index < high else 0 for index in range(80)]


@dataclass
class RunFolder:
    """What a run leaves behind; change anything, then `page()`."""

    path: Path
    name: str = "demo"
    description: str = "Small and made up."
    method: str = "fedavg"
    evaluation: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=lambda: {"python": "3.11.7", "packages": {"torch": "2.4"}})

    @staticmethod
    def crossed(round: int, phase: str, party: str, way: str, group: str, size: int, **more: Any) -> dict[str, Any]:
        """A line of the ledger."""
        head = {"round": round, "phase": phase, "attempt": 1, "party": party, "direction": way, "group": group}
        return head | {"bytes": size} | more

    def save(self) -> RunFolder:
        self.path.mkdir(exist_ok=True)
        words = {"name": self.name, "description": self.description, "method": self.method}
        recipe = RECIPE.format(**{key: json.dumps(word) for key, word in words.items()})
        (self.path / "recipe.toml").write_text(recipe)
        for name in ("environment", "partition", "evaluation"):
            (self.path / f"{name}.json").write_text(json.dumps(getattr(self, name)))
        write_lines(self.path / "metrics.jsonl", self.metrics)
        write_lines(self.path / "ledger.jsonl", self.ledger)
        for name, rows in self.compared.items():
            (self.path / "compare" / name).mkdir(parents=True, exist_ok=True)
            write_lines(self.path / "compare" / name / "metrics.jsonl", rows)
        return self

    def page(self) -> Page:
        return Page.read(write_report(self.save().path))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Page(HTMLParser):
    """A page's tags, visible text and tables."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of cells by the label of the box around the table."""
        self._label, self._cell, self._silent = "", False, 0
        self.feed(source)
        self.text = " ".join(self.text.split())

    @staticmethod
    def read(path: Path) -> Page:
        return Page(path.read_text("utf-8"))

    @property
    def ids(self) -> set[str]:
        return {str(attributes["id"]) for _, attributes in self.tags if "id" in attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "div" and attributes.get("role") == "region":
            self._label = str(attributes["aria-label"])
            self.tables[self._label] = []
        self._silent += tag == "style"
        if tag == "tr":
            self.tables[self._label].append([])
        if tag in ("th", "td"):
            self._cell = True
            self.tables[self._label][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag == "style"
        if tag in ("th", "td"):
            self._cell = False
            row = self.tables[self._label][-1]
            row[-1] = " ".join(row[-1].split())

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        self.text += data + " "
        if self._cell:
            self.tables[self._label][-1][-1] += data + " "


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
