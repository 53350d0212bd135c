"""Figures of searched weightings in a study: what a cell keeps for them, and how they are drawn from many cells.

A cell keeps the parties' weights after some of the rounds and every map of validation scores (`[weighting] map_every`),
a few kilobytes. The figures are means over seeds and variants, as the table's numbers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedvisage.report.folder import read_metrics
from fedvisage.report.results import Figure
from fedvisage.report.weighting import maps, searched_weights, trajectories
from fedvisage.report.words import plural
from fedvisage.studies.definition import Study

WEIGHTS, MAP = "weights", "map"
KINDS = (WEIGHTS, MAP)
"""Kinds of figures that are drawn from what cells keep of a searched weighting."""
SEARCHED = "weighting"
"""Its place in a cell's result."""
MOST_ROUNDS = 100
Cells = Sequence[Mapping[str, Any]]


def kept_weighting(folder: Path) -> dict[str, Any]:
    """What a cell keeps of a run with a searched weighting; nothing of other runs."""
    metrics = read_metrics(folder / "metrics.jsonl")
    weights = searched_weights(metrics)
    if not weights:
        return {}
    parties = sorted(weights)
    by_round: dict[int, dict[str, float]] = {}
    for party in parties:
        for round, weight in weights[party]:
            by_round.setdefault(int(round), {})[party] = weight
    rounds = thinned(sorted(by_round), MOST_ROUNDS)
    return {
        "parties": parties,
        "rounds": {str(round): [_short(by_round[round].get(party)) for party in parties] for round in rounds},
        "maps": {
            str(round): [[*(_short(mix.get(party)) for party in parties), round_score(score)] for mix, score in points]
            for round, points in metrics.maps.items()
        },
    }


def thinned(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def round_score(score: float) -> float:
    """A score in percent as cells keep it."""
    return round(score, 3)


def _short(weight: float | None) -> float | None:
    return None if weight is None else round(weight, 5)


def drawn_weightings(study: Study, results: Mapping[str, Cells]) -> list[Figure]:
    """The study's figure of weights or of maps, row by row, as far as cells are finished."""
    assert study.figure is not None
    found: list[Figure] = []
    for row in study.rows:
        kept = [cell[SEARCHED] for cell in results.get(row.name, ()) if cell.get(SEARCHED)]
        kept = [cell for cell in kept if cell["parties"] == kept[0]["parties"]]
        of = row.label if len(study.rows) > 1 else ""
        more = f"Mean of {plural(len(kept), 'run')}." if len(kept) > 1 else ""
        if study.figure.kind == WEIGHTS:
            found += trajectories(mean_weights(kept), of, more)
        else:
            found += maps(mean_maps(kept), of, more)
    return found


def mean_weights(cells: Cells) -> dict[str, list[tuple[float, float]]]:
    """By party: (round, mean weight) at the rounds that all cells have."""
    if not cells:
        return {}
    rounds = sorted(set.intersection(*(set(cell["rounds"]) for cell in cells)), key=int)
    found: dict[str, list[tuple[float, float]]] = {party: [] for party in cells[0]["parties"]}
    for round in rounds:
        for number, party in enumerate(found):
            weights = [cell["rounds"][round][number] for cell in cells]
            if None not in weights:
                found[party].append((int(round), fmean(weights)))
    return {party: points for party, points in found.items() if points}


def mean_maps(cells: Cells) -> dict[int, list[tuple[dict[str, float], float]]]:
    """By round: the weightings that all cells have asked about, with their mean score."""
    if not cells:
        return {}
    parties = cells[0]["parties"]
    found: dict[int, list[tuple[dict[str, float], float]]] = {}
    for round in sorted(set.intersection(*(set(cell["maps"]) for cell in cells)), key=int):
        scores = [{tuple(point[:-1]): point[-1] for point in cell["maps"][round]} for cell in cells]
        shared = [mix for mix in scores[0] if all(mix in of for of in scores)]
        found[int(round)] = [(dict(zip(parties, mix, strict=True)), fmean(of[mix] for of in scores)) for mix in shared]
    return found
