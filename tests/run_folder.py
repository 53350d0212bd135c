"""What a run leaves behind, made up; change anything, then look at its page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from page_reader import Page

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
