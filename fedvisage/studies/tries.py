"""The same tries for every row: learning rates of which the validation people choose one.

A study that names `tries` at a scale runs every row that is trained at each of the rates, under the first seeds. The
rate with the best score on validation people after the last round, in the mean over those runs, is the row's in all
runs. Where people change their parts from run to run, each run chooses `alone`, so that nobody is tested on who had a
say. A start that rows share is trained at its own rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.studies.cells import Cell, Run, cells
from fedvisage.studies.definition import Tries, load_study

Scores = dict[float, float | None]
"""On validation people, by multiple of a learning rate; NaN where a run diverged, None where one is not finished."""


@dataclass(frozen=True)
class Choice:
    """What validation people said of a row's tries."""

    scores: Scores
    """In the mean over the runs that were tried."""
    taken: dict[Run, float]
    """The multiple that each run takes: the best, or 1 as long as a try is not finished."""
    made: bool
    """Whether all tries are finished, and one of each choice ended with a model."""

    @property
    def counts(self) -> dict[float, int]:
        """How many runs take each rate."""
        return {rate: sum(rate == taken for taken in self.taken.values()) for rate in self.scores}


def tried_cells(name: str, scale: str, seeds: Iterable[int] = (1,), folder: Path | None = None) -> list[Cell]:
    """Every try of every row that is trained and is not what others begin with, in every variant.

    Under as many seeds as the study says, or under these where each run chooses alone.
    """
    return [cell for _, cell in _tried(name, scale, seeds, folder)]


def _tried(name: str, scale: str, seeds: Iterable[int], folder: Path | None) -> Iterator[tuple[float, Cell]]:
    study = load_study(name, folder)
    tries = study.tries.get(scale, Tries())
    seeds = list(seeds) if tries.alone else range(1, tries.seeds + 1)
    started = [row.name for row in study.rows if row.of == "start"]
    begun_with = [cell.start.row for cell in cells(name, scale, [1], folder) if cell.start]
    rows = [row.name for row in study.rows if row.name not in (*started, *begun_with)]
    for rate in tries.rates:
        rates = {(row, seed, variant.name): rate for row in rows for seed in seeds for variant in study.variants}
        made = cells(name, scale, seeds, folder, rates)
        yield from ((rate, replace(cell, tried=True)) for cell in made if cell.row in rows)


def choices(
    name: str, scale: str, results: Path, seeds: Iterable[int] = (1,), folder: Path | None = None
) -> dict[str, Choice]:
    """By row: what its tries came to, as far as they are finished, and what the runs under these seeds take."""
    study, seeds = load_study(name, folder), list(seeds)
    tries = study.tries.get(scale, Tries())
    said: dict[str, dict[Run, Scores]] = {}
    for rate, cell in _tried(name, scale, seeds, folder):
        found = cell.finished(results)
        score = _score(found, tries.by, cell) if found else None
        said.setdefault(cell.row, {}).setdefault((cell.row, cell.seed, cell.variant), {})[rate] = score
    runs = {row: [(row, seed, variant.name) for seed in seeds for variant in study.variants] for row in said}
    return {row: _choice(of, runs[row], tries.alone) for row, of in said.items()}


def _choice(tried: dict[Run, Scores], runs: list[Run], alone: bool) -> Choice:
    together = _mean(tried.values())
    deciding = {run: tried[run] if alone else together for run in runs}
    best = {run: _best(scores) for run, scores in deciding.items()}
    made = all(rate is not None for rate in best.values())
    return Choice(together, {run: rate or 1.0 for run, rate in best.items()}, made)


def _best(scores: Scores) -> float | None:
    """The rate that is liked best; None as long as a try is open, or where none ended with a model."""
    known = {rate: score for rate, score in scores.items() if score is not None}
    models = {rate: score for rate, score in known.items() if not math.isnan(score)}
    return max(models, key=models.__getitem__) if len(known) == len(scores) and models else None


def _mean(tried: Iterable[Scores]) -> Scores:
    """Over runs."""
    found: dict[float, list[float | None]] = {}
    for scores in tried:
        for rate, score in scores.items():
            found.setdefault(rate, []).append(score)
    known = {rate: [score for score in of if score is not None] for rate, of in found.items()}
    return {rate: fmean(known[rate]) if len(known[rate]) == len(of) else None for rate, of in found.items()}


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
    """All cells of a study, each run at the rate that was chosen for it."""
    seeds = list(seeds)
    made = choices(name, scale, results, seeds, folder).values()
    return cells(name, scale, seeds, folder, {run: rate for choice in made for run, rate in choice.taken.items()})
