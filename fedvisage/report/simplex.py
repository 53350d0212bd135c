"""A triangle of scores: one cell per weighting of three parties, stronger where the score is higher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedvisage.report import drawing
from fedvisage.report.drawing import WIDTH, add

LEFT, RIGHT = 70, WIDTH - 70
NAME = 26
"""Above the upper cell: its party's name."""
PALEST = 0.06
"""Opacity of the lowest score: still seen on the page."""

Corners = tuple[float, float, float]


@dataclass(frozen=True)
class Point:
    """A weighting of three parties with its score."""

    weights: Corners
    parties: tuple[str, ...]
    score: float


def place(weights: Corners, top: float) -> tuple[float, float]:
    """Where a weighting lies: the first party's corner is on the left, the second's on the right, the third's above."""
    side = RIGHT - LEFT
    height = side * math.sqrt(3) / 2
    _, second, third = weights
    return LEFT + side * (second + third / 2), top + height * (1 - third)


def simplex_chart(points: Sequence[Point], description: str) -> str:
    """The map; the best weighting is ringed, and every cell says its weighting and score."""
    radius = _radius(points)
    top = radius + NAME
    bottom = place((1.0, 0.0, 0.0), top)[1]
    root = drawing.figure(bottom + radius + 30, description)
    scores = [point.score for point in points]
    low, span = min(scores), max(scores) - min(scores)
    best = max(points, key=lambda point: point.score)
    cells = add(root, "g", kind="tone-method")
    for point in points:
        strength = (point.score - low) / span if span else 1.0
        x, y = place(point.weights, top)
        opacity = f"{PALEST + (1 - PALEST) * strength:.3f}"
        cell = add(cells, "path", d=_hexagon(x, y, radius), kind="fill", fill_opacity=opacity)
        mix = ", ".join(f"{party} {100 * w:.0f}%" for party, w in zip(point.parties, point.weights, strict=True))
        add(cell, "title", f"{mix}: {point.score:.2f}")
    x, y = place(best.weights, top)
    add(root, "circle", cx=x, cy=y, r=max(4.0, 0.55 * radius), kind="ring")
    names = best.parties
    for corner, name, anchor, drop in (
        ((1.0, 0.0, 0.0), names[0], "middle", radius + 18),
        ((0.0, 1.0, 0.0), names[1], "middle", radius + 18),
        ((0.0, 0.0, 1.0), names[2], "middle", -radius - 8),
    ):
        x, y = place(corner, top)
        add(root, "text", name, x=x, y=y + drop, text_anchor=anchor, kind="label")
    return drawing.markup(root)


def _radius(points: Sequence[Point]) -> float:
    """Cells that just touch, from the smallest step between weightings."""
    values = sorted({round(point.weights[0], 9) for point in points})
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    return min(40.0, step * (RIGHT - LEFT) / math.sqrt(3))


def _hexagon(x: float, y: float, radius: float) -> str:
    corners = [math.pi / 3 * k + math.pi / 6 for k in range(6)]
    return drawing.path([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in corners]) + "Z"
