"""The figures of a searched weighting: how it moved, and for three parties how every weighting would have scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvisage.report import charts
from fedvisage.report.folder import WEIGHT, Metrics, RunFiles
from fedvisage.report.results import Figure
from fedvisage.report.simplex import Point, simplex_chart
from fedvisage.report.words import listed, percent

SEARCH = "validate"
MOST_LINES = 12
MOST_MAPS = 4


Points = Sequence[tuple[float, float]]
"""(round, weight)."""
Scored = Sequence[tuple[Mapping[str, float], float]]
"""Weightings by party, each with its validation score."""


def weighting_figures(run: RunFiles) -> list[Figure]:
    """The weights over rounds, and the maps of validation scores; nothing where no weighting was searched for."""
    return [*trajectories(searched_weights(run.metrics)), *maps(run.metrics.maps)]


def searched_weights(metrics: Metrics) -> dict[str, list[tuple[float, float]]]:
    """By party: (round, weight) after every search."""
    found = {
        name.removeprefix(WEIGHT): charts.finite(points)
        for (phase, name), points in metrics.curves.items()
        if phase == SEARCH and name.startswith(WEIGHT)
    }
    return {party: points for party, points in found.items() if points}


def trajectories(found: Mapping[str, Points], of: str = "", more: str = "") -> list[Figure]:
    """A line per party, at most twelve; `of` says which run it is and `more` what else to know."""
    if not found:
        return []
    heaviest = sorted(found, key=lambda party: -found[party][-1][1])[:MOST_LINES]
    lines = [
        charts.Line(party, f"tone-party-{number}", found[party])
        for number, party in enumerate(party for party in found if party in heaviest)
    ]
    said = listed([f"{line.label} {percent(line.points[-1][1], 1)}" for line in lines])
    caption = "How much each party counts once the search of a round is over." + (more and f" {more}")
    if len(found) > MOST_LINES:
        caption += f" The {MOST_LINES} of {len(found)} parties that count most in the end."
    words = f"Weights of the parties per round{of and f', {of}'}. In the end: {said}."
    svg = charts.line_chart(lines, "round", words, True)
    title = "Weights of the parties" + (of and f": {of}")
    return [Figure(title, svg, caption, [(line.label, line.tone) for line in lines])]


def maps(by_round: Mapping[int, Scored], of: str = "", more: str = "") -> list[Figure]:
    """The last map, and up to three earlier ones evenly between."""
    drawn = {
        round: [point for weights, score in points if (point := _point(weights, score))]
        for round, points in by_round.items()
    }
    complete = [(round, points) for round, points in sorted(drawn.items()) if len(points) >= 3]
    step = max(1, -(-len(complete) // MOST_MAPS))
    return [_map(round, points, of, more) for round, points in complete[::-1][::step][::-1]]


def _point(weights: Mapping[str, float], score: float) -> Point | None:
    if len(weights) != 3:
        return None
    first, second, third = weights.values()
    return Point((first, second, third), tuple(weights), score)


def _map(round: int, points: Sequence[Point], of: str, more: str) -> Figure:
    parties = points[0].parties
    best, worst = max(points, key=lambda point: point.score), min(points, key=lambda point: point.score)
    mix = listed([f"{party} {percent(w, 0)}" for party, w in zip(parties, best.weights, strict=True)])
    caption = (
        f"Mean score of the validators, from {worst.score:.1f} (pale) to {best.score:.1f} (strong). "
        f"A corner is one party's model alone. Best, ringed: {mix}." + (more and f" {more}")
    )
    title = f"Every weighting after round {round}" + (of and f": {of}")
    svg = simplex_chart(points, f"Validation score of every weighting after round {round}{of and f', {of}'}. {caption}")
    return Figure(title, svg, caption)
