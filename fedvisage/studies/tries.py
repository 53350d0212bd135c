"""The same tries for every row: learning rates of which the validation people choose one.

A study that names `tries` at a scale runs every row that is trained at each of the rates, under the first seed. The
rate with the best score on validation people after the last round is the row's, under all seeds. Test people have no
part in it. A start that rows share is trained once, at its own rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.studies.cells import Cell, cells
from fedvisage.studies.definition import load_study

SEED = 1


@dataclass(frozen=True)
class Choice:
    """What validation people said of a row's tries."""

    scores: dict[float, float | None]
    """By multiple of the row's learning rate; NaN where the run diverged, None where it is not finished."""
    rate: float
    """The multiple taken: the best, or 1 as long as a try is not finished."""

    @property
    def made(self) -> bool:
        """Whether all tries are finished, and one of them ended with a model."""
        known = [score for score in self.scores.values() if score is not None]
        return len(known) == len(self.scores) and not all(map(math.isnan, known))


def tried_cells(name: str, scale: str, folder: Path | None = None) -> list[Cell]:
    """Every try of every row that is trained and is not what others begin with, in every variant."""
    return [cell for _, cell in _tried(name, scale, folder)]


def _tried(name: str, scale: str, folder: Path | None) -> Iterator[tuple[float, Cell]]:
    study = load_study(name, folder)
    rates = study.tries[scale].rates if scale in study.tries else ()
    started = [row.name for row in study.rows if row.of == "start"]
    begun_with = [cell.start.row for cell in cells(name, scale, [SEED], folder) if cell.start]
    rows = [row.name for row in study.rows if row.name not in (*started, *begun_with)]
    for rate in rates:
        yield from (
            (rate, cell) for cell in cells(name, scale, [SEED], folder, dict.fromkeys(rows, rate)) if cell.row in rows
        )


def choices(name: str, scale: str, results: Path, folder: Path | None = None) -> dict[str, Choice]:
    """By row: what its tries came to, as far as they are finished."""
    study = load_study(name, folder)
    said: dict[str, dict[float, list[float | None]]] = {}
    for rate, cell in _tried(name, scale, folder):
        found = cell.finished(results)
        score = _score(found, study.tries[scale].by, cell) if found else None
        said.setdefault(cell.row, {}).setdefault(rate, []).append(score)
    return {row: _choice({rate: _mean(scores) for rate, scores in of.items()}) for row, of in said.items()}


def _choice(scores: dict[float, float | None]) -> Choice:
    undecided = Choice(scores, 1.0)
    if not undecided.made:
        return undecided
    known = {rate: score for rate, score in scores.items() if score is not None and not math.isnan(score)}
    return replace(undecided, rate=max(known, key=known.__getitem__))


def _mean(scores: list[float | None]) -> float | None:
    """Over variants."""
    known = [score for score in scores if score is not None]
    return fmean(known) if len(known) == len(scores) else None


def _score(result: dict[str, Any], by: str, cell: Cell) -> float:
    """On validation people after the last round; NaN where the run diverged."""
    if result.get("diverged"):
        return math.nan
    curve = result["rounds"].get("validation")
    if not curve:
        raise FedVisageError(
            f"study '{cell.study}', row '{cell.row}' has tries, but no validation people were scored: "
            "set partition.validation and evaluation.every"
        )
    if by not in curve[-1]:
        raise FedVisageError(f"study '{cell.study}' tries rates by '{by}': {nearest(by, curve[-1].keys() - {'round'})}")
    return float(curve[-1][by])


def chosen_cells(name: str, scale: str, seeds: Iterable[int], results: Path, folder: Path | None = None) -> list[Cell]:
    """All cells of a study, each row at the rate that was chosen for it."""
    rates = {row: choice.rate for row, choice in choices(name, scale, results, folder).items()}
    return cells(name, scale, seeds, folder, rates)
