"""Points on a plane without axes: a map in which only nearness means something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvisage.report import drawing
from fedvisage.report.drawing import WIDTH, add

MARGIN, SIZE = 12, WIDTH - 24


@dataclass(frozen=True)
class Cloud:
    """Points in the unit square that belong together."""

    label: str
    tone: str
    points: Sequence[tuple[float, float]]
    square: bool = False
    """Drawn as squares rather than discs."""


def scatter_chart(clouds: Sequence[Cloud], description: str) -> str:
    """All clouds in one frame."""
    height = 0.75 * SIZE
    root = drawing.figure(height + 2 * MARGIN, description)
    add(root, "rect", x=1, y=1, width=WIDTH - 2, height=height + 2 * MARGIN - 2, rx=6, kind="frame")
    for cloud in clouds:
        group = add(root, "g", kind=cloud.tone)
        add(group, "title", cloud.label)
        for x, y in cloud.points:
            place = MARGIN + x * SIZE, MARGIN + (1 - y) * height
            if cloud.square:
                add(group, "rect", x=place[0] - 3.2, y=place[1] - 3.2, width=6.4, height=6.4, kind="fill dim")
            else:
                add(group, "circle", cx=place[0], cy=place[1], r=3.6, kind="fill dim")
    return drawing.markup(root)
