"""A study's numbers: means and spreads over seeds, and which of the paper's orderings hold, how surely.

The difference of two rows varies with the people it is measured on and with the seed. People: a paired bootstrap draws
them anew, the same draw for both rows and for all runs that were tested on the same people. Cells say whether two sets
of people are the same, not whom they share: different sets are taken to move together, as if they were the same people.
Seeds: Student's t with the spread of the differences over seeds, variants of a seed averaged first. A replicate adds a
draw of each; the confidence in an ordering is the share of replicates that show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.report.words import plural
from fedvisage.studies.definition import TEST, Column, Measure, Row, Study
from fedvisage.studies.people import NOBODY, unpack

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Finished cells by row."""
Run = tuple[int, str]
"""A seed and a variant."""
RESAMPLES = 2000
SURE = 0.95
LEVEL = 2e-4
"""Points apart up to which two rows are level: cells keep scores to a ten-thousandth of a point."""


class Entry(NamedTuple):
    """Our number for a row and column, shares in percent: mean and spread over seeds, last round and chosen round."""

    seeds: int
    mean: float
    spread: float
    chosen: float
    """Mean at the rounds that were best on the validation people; NaN where there were none."""
    values: tuple[float, ...] = ()
    """Of the single seeds, last round; of a seed with variants their mean."""
    which: tuple[int, ...] = ()
    """The seeds that `values` are of."""
    runs: int = 0
    """With the variants of each seed."""

    @property
    def over(self) -> str:
        """What it is a mean of, in words."""
        return plural(self.seeds, "seed") + (f", {plural(self.runs, 'run')}" if self.runs > self.seeds else "")


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
    """How many people the confidence rests on, at least: those who move a score; 0 where cells do not say."""
    sets: int
    """How many sets of people there are; of several it is not known whom they share."""
    seeds: int
    variants: int
    """Runs of a seed, at most."""

    @property
    def agrees(self) -> bool:
        """Whether ours are in the paper's order."""
        return self.ours > LEVEL

    @property
    def level(self) -> bool:
        """Whether ours are in no order."""
        return abs(self.ours) <= LEVEL

    @property
    def clear(self) -> bool:
        """Whether chance in people and seeds is unlikely to have made the order that we see."""
        return not self.level and (self.confidence >= SURE or self.confidence <= 1 - SURE)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.level:
            return "level"
        if self.clear:
            return "holds" if self.agrees else "is reversed"
        chance = "chance not known" if math.isnan(self.confidence) else "within chance"
        return f"{'agrees' if self.agrees else 'disagrees'}, {chance}"

    def table(self) -> dict[str, Any]:
        """As plain data; what is not known is None."""
        plain = {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in vars(self).items()}
        return plain | {"agrees": self.agrees, "clear": self.clear, "verdict": self.verdict}


def table(study: Study, scale: str, results: Results) -> dict[str, dict[str, Entry]]:
    """Our numbers by row and column, as far as cells are finished."""
    columns = [(column, column.by[scale]) for column in study.measured(scale)]
    found = {
        row: {column.name: _entry(finished, column, measure, study.chooses_by(scale)) for column, measure in columns}
        for row, finished in results.items()
    }
    starts = [row.name for row in study.rows if row.of == "start" and row.name in found]
    for column, _ in columns:  # a start has no round: it is shown beside those that have
        if all(math.isnan(of[column.name].chosen) for row, of in found.items() if row not in starts):
            for row in starts:
                found[row][column.name] = found[row][column.name]._replace(chosen=math.nan)
    return found


def _entry(results: Sequence[Mapping[str, Any]], column: Column, measure: Measure, by: str) -> Entry:
    runs = _by_run(results)
    scores = {run: result["scores"].get(measure.key) for run, result in runs.items()}
    known = {run: column.factor * score for run, score in scores.items() if score is not None}
    last = _by_seed(known)
    if not last:
        return Entry(0, math.nan, math.nan, math.nan)
    chosen = _by_seed({run: at_best(result, column, measure, by) for run, result in runs.items()})
    values = tuple(last.values())
    return Entry(len(last), mean(values), _spread(values), mean(chosen.values()), values, tuple(last), len(known))


def uneven(numbers: Mapping[str, Mapping[str, Entry]], column: str) -> bool:
    """Whether the rows of a column are means of different numbers of runs."""
    entries = [of[column] for of in numbers.values() if column in of]
    return len({(entry.seeds, entry.runs) for entry in entries if entry.seeds}) > 1


def _by_run(results: Sequence[Mapping[str, Any]]) -> dict[Run, Mapping[str, Any]]:
    """Finished cells of a row by seed and variant."""
    return {(result["seed"], result.get("variant", "")): result for result in results}


def _by_seed(values: Mapping[Run, float]) -> dict[int, float]:
    """The mean over each seed's variants."""
    seeds = sorted({seed for seed, _ in values})
    return {seed: mean(value for run, value in values.items() if run[0] == seed) for seed in seeds}


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else math.nan


def at_best(result: Mapping[str, Any], column: Column, measure: Measure, by: str = "") -> float:
    """The score at the round that validation people liked best; NaN where that is not known.

    They judge `by` one score for all columns, or by the column's own. Test scores are in the curve; by a protocol the
    models of that round were scored. A start is the same in every round.
    """
    if result.get("of") == "start":
        return _shown(result["scores"].get(measure.key), column)
    if measure.protocol != TEST:
        chosen = result.get("chosen") or {}
        return _shown(chosen["scores"].get(measure.key) if by and chosen.get("by") == by else None, column)
    curves, metric = result["rounds"], measure.metric
    if not curves.get("validation") or not curves.get(TEST):
        return math.nan
    liked = {row["round"]: row[by or metric] for row in curves["validation"] if (by or metric) in row}
    if not liked:
        return math.nan
    best = (max if by or column.better == "higher" else min)(liked, key=liked.__getitem__)
    return next(
        (column.factor * row[metric] for row in curves[TEST] if row["round"] == best and metric in row), math.nan
    )


def _shown(score: float | None, column: Column) -> float:
    return math.nan if score is None else column.factor * score


def orderings(study: Study, scale: str, results: Results, rng: np.random.Generator) -> list[Ordering]:
    """Each pair of rows of a group that the paper orders, column by column, and how ours are."""
    draws = _Draws(rng)
    found = []
    for column in study.measured(scale):
        for low, high, apart in ordered(study, column):
            compared = _compare(study, column, low, high, apart, scale, results, draws)
            if compared is not None:
                found.append(compared)
    return found


def ordered(study: Study, column: Column) -> Iterator[tuple[str, str, float | None]]:
    """What the paper says of a column: the lower row, the higher row, and by how much where it gives numbers."""
    rows = [row for row in study.rows if column.name in row.paper and _can_be_compared(row, column.name)]
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


def _can_be_compared(row: Row, column: str) -> bool:
    return column not in row.errata or row.errata[column].counts


def _compare(
    study: Study, column: Column, low: str, high: str, apart: float | None, scale: str, results: Results, draws: _Draws
) -> Ordering | None:
    """Two rows over the seeds that both have; None where there are none."""
    measure, by = column.by[scale], study.chooses_by(scale)
    highs, lows = (_by_run(results.get(row, ())) for row in (high, low))
    pairs = {run: (highs[run], lows[run]) for run in sorted(highs.keys() & lows.keys())}
    scores = {run: [result["scores"].get(measure.key) for result in pair] for run, pair in pairs.items()}
    apart_by_run = {run: column.factor * (a - b) for run, (a, b) in scores.items() if a is not None and b is not None}
    if not apart_by_run:
        return None
    pairs = {run: pairs[run] for run in apart_by_run}
    by_seed = _by_seed(apart_by_run)
    best = {run: [at_best(result, column, measure, by) for result in pair] for run, pair in pairs.items()}
    chosen = _by_seed({run: a - b for run, (a, b) in best.items()})
    noise, people, sets = _people_noise(pairs, measure.key, draws)
    ours, spread = mean(by_seed.values()), _spread(list(by_seed.values()))
    confidence = _confidence(ours, spread, len(by_seed), noise, draws.rng)
    variants = max(sum(seed == own for own, _ in pairs) for seed in by_seed)
    at_chosen = mean(chosen.values())
    return Ordering(
        column.name, low, high, apart, ours, spread, at_chosen, confidence, people, sets, len(by_seed), variants
    )


def _people_noise(
    pairs: Mapping[Run, tuple[Mapping[str, Any], Mapping[str, Any]]], key: str, draws: _Draws
) -> tuple[NDArray[np.float64] | None, int, int]:
    """How the mean difference over seeds moves with the people, in points (RESAMPLES,); how many people, and sets.

    None where some cell does not say, or two rows of a run were tested on different people.
    """
    moved: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, NDArray[np.bool_]] = {}
    seeds = [seed for seed, _ in pairs]
    for (seed, _), pair in pairs.items():
        kept = [result.get("people", {}).get(key) for result in pair]
        if NOBODY in kept or not kept[0] or not kept[1] or kept[0]["set"] != kept[1]["set"]:
            return None, 0, 0
        who, (high, low) = kept[0]["set"], map(unpack, kept)
        if len({len(high), len(low), len(moved.get(who, high))}) > 1:
            return None, 0, 0
        share = 1 / (len(set(seeds)) * seeds.count(seed))
        moved[who] = moved.get(who, 0) + share * (high - low)
        counts[who] = counts.get(who, False) | (high != 0) | (low != 0)
    # Sets that share nobody would average out in part; sorted, all of them move together.
    noise = sum((np.sort(100 * draws.of(moved[who][counts[who]])) for who in moved), np.zeros(RESAMPLES))
    return noise, max(int(some.sum()) for some in counts.values()), len(moved)


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
    """Resamples of people; as many people are always drawn alike."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._made: dict[int, NDArray[np.float64]] = {}

    def of(self, moved: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far a score is moved (RESAMPLES,) that each of some people moves so much (people,)."""
        people = len(moved)
        if not people:
            return np.zeros(RESAMPLES)
        if people not in self._made:
            weights = self.rng.multinomial(people, np.full(people, 1 / people), RESAMPLES)
            self._made[people] = weights.astype(np.float64) - 1
        return np.asarray(self._made[people] @ moved)


def agreement(found: Sequence[Ordering]) -> dict[str, int]:
    """How many orderings there are, agree, are level, agree clearly (and by seeds alone), and are clearly reversed."""
    return {
        "orderings": len(found),
        "agree": sum(one.agrees for one in found),
        "level": sum(one.level for one in found),
        "clear": sum(one.agrees and one.clear for one in found),
        "by_seeds": sum(one.agrees and one.clear and not one.people for one in found),
        "against": sum(not one.agrees and one.clear for one in found),
    }


def row_of(study: Study, name: str) -> Row:
    """The row of this name."""
    return next(row for row in study.rows if row.name == name)
