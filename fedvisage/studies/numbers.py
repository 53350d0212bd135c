"""A study's numbers: means and spreads over seeds, and which of the paper's orderings hold, how surely.

The difference of two rows varies with the people it is measured on and with the seed. People: a paired bootstrap draws
them anew, the same draw for both rows and for all seeds that were tested on the same people. Seeds: Student's t with
the spread of the differences over seeds. A replicate adds a draw of each; the confidence in an ordering is the share of
replicates that show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.studies.definition import TEST, Column, Measure, Row, Study
from fedvisage.studies.people import unpack

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Finished cells by row."""
RESAMPLES = 2000
SURE = 0.95


class Entry(NamedTuple):
    """Our number for a row and column, shares in percent: mean and spread over seeds, last round and chosen round."""

    seeds: int
    mean: float
    spread: float
    chosen: float
    """Mean at the rounds that were best on the validation people; NaN where there were none."""
    values: tuple[float, ...] = ()
    """Of the single seeds, last round."""


@dataclass(frozen=True)
class Ordering:
    """Two rows that the paper orders on a column, and how ours are."""

    column: str
    low: str
    high: str
    paper: float | None
    """How far apart the paper's numbers are; None where it says only which is better."""
    ours: float
    """How far apart ours are, in points; negative where they are the other way round."""
    spread: float
    """Of the difference over seeds; NaN with one."""
    chosen: float
    """`ours` at the rounds that validation people chose; NaN where there were none."""
    confidence: float
    """In the paper's order, from people and seeds together; NaN where neither tells."""
    people: int
    """How many people the confidence rests on; 0 where cells do not say."""
    seeds: int

    @property
    def agrees(self) -> bool:
        """Whether ours are in the paper's order."""
        return self.ours > 0

    @property
    def clear(self) -> bool:
        """Whether chance in people and seeds is unlikely to have made the order that we see."""
        return self.confidence >= SURE or self.confidence <= 1 - SURE

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.clear:
            return "agrees, within chance" if self.agrees else "disagrees, within chance"
        return "holds" if self.agrees else "is reversed"

    def table(self) -> dict[str, Any]:
        """As plain data; what is not known is None."""
        plain = {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in vars(self).items()}
        return plain | {"agrees": self.agrees, "clear": self.clear, "verdict": self.verdict}


def table(study: Study, scale: str, results: Results) -> dict[str, dict[str, Entry]]:
    """Our numbers by row and column, as far as cells are finished."""
    columns = [(column, column.by[scale]) for column in study.measured(scale)]
    return {
        row: {column.name: _entry(finished, column, measure) for column, measure in columns}
        for row, finished in results.items()
    }


def _entry(results: Sequence[Mapping[str, Any]], column: Column, measure: Measure) -> Entry:
    scores = [result["scores"].get(measure.key) for result in results]
    last = [math.nan if score is None else column.factor * score for score in scores]
    chosen = [at_best(result, column, measure) for result in results]
    spread = stdev(last) if len(last) > 1 and not any(map(math.isnan, last)) else math.nan
    return Entry(len(last), mean(last), spread, mean(chosen), tuple(last))


def at_best(result: Mapping[str, Any], column: Column, measure: Measure) -> float:
    """The test score of the round that the validation people liked best; NaN where that is not known."""
    curves, metric = result["rounds"], measure.metric
    if measure.protocol != TEST or not curves.get("validation") or not curves.get(TEST):
        return math.nan
    liked = {row["round"]: row[metric] for row in curves["validation"] if metric in row}
    if not liked:
        return math.nan
    best = (max if column.better == "higher" else min)(liked, key=liked.__getitem__)
    return next(
        (column.factor * row[metric] for row in curves[TEST] if row["round"] == best and metric in row), math.nan
    )


def orderings(study: Study, scale: str, results: Results, rng: np.random.Generator) -> list[Ordering]:
    """Each pair of rows of a group that the paper orders, column by column, and how ours are."""
    draws = _Draws(rng)
    found = []
    for column in study.measured(scale):
        for low, high, apart in _ordered(study, column):
            compared = _compare(column, low, high, apart, scale, results, draws)
            if compared is not None:
                found.append(compared)
    return found


def _ordered(study: Study, column: Column) -> Iterator[tuple[str, str, float | None]]:
    """What the paper says of a column: the lower row, the higher row, and by how much where it gives numbers."""
    rows = [row for row in study.rows if column.name in row.paper]
    for i, one in enumerate(rows):
        for other in rows[i + 1 :]:
            apart = one.paper[column.name] - other.paper[column.name]
            if one.group == other.group and apart:
                low, high = (one, other) if apart < 0 else (other, one)
                yield low.name, high.name, abs(apart)
    for claim in study.claims:
        if claim.column == column.name:
            ends = (claim.worse, claim.better) if column.better == "higher" else (claim.better, claim.worse)
            yield *ends, None


def _compare(
    column: Column, low: str, high: str, apart: float | None, scale: str, results: Results, draws: _Draws
) -> Ordering | None:
    """Two rows over the seeds that both have; None where there are none."""
    measure = column.by[scale]
    by_seed = [{(one["seed"], one.get("variant")): one for one in results.get(row, ())} for row in (high, low)]
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in sorted(by_seed[0].keys() & by_seed[1].keys())]
    pairs = [pair for pair in pairs if all(result["scores"].get(measure.key) is not None for result in pair)]
    if not pairs:
        return None
    apart_by_seed = [column.factor * (a["scores"][measure.key] - b["scores"][measure.key]) for a, b in pairs]
    chosen = [at_best(a, column, measure) - at_best(b, column, measure) for a, b in pairs]
    noise, people = _people_noise(pairs, measure.key, draws)
    spread = stdev(apart_by_seed) if len(pairs) > 1 else math.nan
    ours = mean(apart_by_seed)
    confidence = _confidence(ours, spread, len(pairs), noise, draws.rng)
    return Ordering(column.name, low, high, apart, ours, spread, mean(chosen), confidence, people, len(pairs))


def _people_noise(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], key: str, draws: _Draws
) -> tuple[NDArray[np.float64] | None, int]:
    """How the mean difference over seeds moves with the people, in points (RESAMPLES,), and how many people there are.

    None where some cell does not say, or two rows of a seed were tested on different people.
    """
    total, counted = np.zeros(RESAMPLES), dict[str, int]()
    for a, b in pairs:
        kept = [result.get("people", {}).get(key) for result in (a, b)]
        if not kept[0] or not kept[1] or kept[0]["set"] != kept[1]["set"]:
            return None, 0
        moved = unpack(kept[0]) - unpack(kept[1])
        counted[kept[0]["set"]] = len(moved)
        total += 100 * (draws.of(kept[0]["set"], len(moved)) @ moved)
    return total / len(pairs), sum(counted.values())


def _confidence(
    ours: float, spread: float, seeds: int, noise: NDArray[np.float64] | None, rng: np.random.Generator
) -> float:
    """The share of replicates in which the difference is above nought, ties counting half."""
    if noise is None and seeds < 2:
        return math.nan
    replicates = np.full(RESAMPLES, ours)
    if noise is not None:
        replicates += noise
    if seeds > 1:
        replicates += spread / math.sqrt(seeds) * rng.standard_t(seeds - 1, RESAMPLES)
    return float(np.mean(replicates > 0) + np.mean(replicates == 0) / 2)


class _Draws:
    """How much more often than once each person of a set is drawn, for every resample; one draw per set."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._made: dict[str, NDArray[np.float64]] = {}

    def of(self, who: str, people: int) -> NDArray[np.float64]:
        """(RESAMPLES, people)."""
        if who not in self._made:
            weights = self.rng.multinomial(people, np.full(people, 1 / people), RESAMPLES)
            self._made[who] = weights.astype(np.float64) - 1
        return self._made[who]


def agreement(found: Sequence[Ordering]) -> dict[str, int]:
    """How many orderings there are, agree, agree clearly, and are clearly the other way round."""
    return {
        "orderings": len(found),
        "agree": sum(one.agrees for one in found),
        "clear": sum(one.agrees and one.clear for one in found),
        "against": sum(not one.agrees and one.clear for one in found),
    }


def row_of(study: Study, name: str) -> Row:
    """The row of this name."""
    return next(row for row in study.rows if row.name == name)
