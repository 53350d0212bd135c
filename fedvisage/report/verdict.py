"""Whether federating helped: each model raw and centred, which of the two counts, and the gap to pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvisage.evaluation.gap import CENTRED, NORMAL, RAW
from fedvisage.evaluation.influence import unpacked
from fedvisage.report import charts
from fedvisage.report.folder import RunFiles
from fedvisage.report.results import Figure
from fedvisage.report.words import Model, number, percent


@dataclass(frozen=True)
class AnswerRow:
    """A model's scores."""

    model: Model
    own: bool
    cells: Sequence[str]
    """Raw, centred."""
    counts: int
    """Which of the cells counts."""
    role: str
    impostor: str
    rank: str


@dataclass(frozen=True)
class AnswerTable:
    """The table of the scores that decide, what follows from them, and a drawing."""

    rows: Sequence[AnswerRow]
    facts: Sequence[tuple[str, str]]
    people: str
    validated: bool
    figure: Figure


def answer_table(run: RunFiles, models: Sequence[Model]) -> AnswerTable | None:
    """Return the section's contents; None where the run has no answer."""
    found = run.evaluation.answer
    if not found:
        return None
    rows, dots = [], []
    roles = {found["control"]: "control", found["upper"]: "upper bound"}
    for model in models:
        people = model.score.people or {}
        tested = people.get("test", {})
        if model.name not in found["variants"]:
            continue
        variant, spread = found["variants"][model.name], people["spread"]
        influence = unpacked(people["influence"][variant])
        rows.append(
            AnswerRow(
                model,
                model.name == found["method"],
                [percent(tested.get(name), 1) for name in (RAW, CENTRED)],
                (RAW, CENTRED).index(variant),
                roles.get(model.name, ""),
                f"{spread['impostor']:.3f}",
                f"{spread['rank']:.1f}",
            )
        )
        dots.append(
            charts.Dot(model.label, model.tone, tested[variant], NORMAL * math.sqrt(float(influence @ influence)))
        )
    said = "; ".join(f"{dot.label} {percent(dot.value, 1)}" for dot in dots)
    svg = charts.dot_chart(dots, "TAR at FAR 0.01", f"Scores that count. {said}.", 0.01)
    figure = Figure("The scores that count", svg, "Whiskers: 95% intervals over the test people.")
    return AnswerTable(rows, _facts(found), number(found["people"]), found["validated"], figure)


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Gain, gap, shortfall and share, with their intervals."""
    facts = [("Gain over the control", _points(found["gain"]))]
    if found["gap"]:
        facts += [("Gap from control to upper bound", _points(found["gap"]))]
        facts += [("Shortfall from the upper bound", _points(found["shortfall"]))]
        share = found["share"]
        facts += [("Share of the gap", _interval(share, "%") if share else "the gap is too small to divide")]
    return facts


def _points(estimate: Mapping[str, float]) -> str:
    return _interval(estimate, " points")


def _interval(estimate: Mapping[str, float], unit: str) -> str:
    value, low, high = (f"{100 * estimate[name]:.1f}".replace("-", "−") for name in ("value", "low", "high"))
    return f"{value}{unit} ({low} to {high})"
