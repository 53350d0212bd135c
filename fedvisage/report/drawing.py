"""The pieces of a figure: scales, ticks and SVG elements that take their colours from the page's style sheet.

Elements are built with ElementTree, so whatever text they carry is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

WIDTH = 420
"""Of every figure, in units of its view box; the page scales it."""

FLAT = 1e-9
"""Relative to the values (or to 1), a smaller range counts as none."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto positions from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def nice_ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """About `count` round numbers that span `low` to `high`, the first and last at or beyond them."""
    if high - low <= FLAT * max(1.0, abs(low), abs(high)):
        margin = 0.5 * max(abs(low), abs(high))
        low, high = (low - margin, high + margin) if margin > FLAT else (low - 0.5, high + 0.5)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`, both included where they are such."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if first == last:
        first -= 1
    return [10.0**power for power in range(first, last + 1)]


def figure(height: float, description: str) -> Element:
    """An empty figure that a screen reader reads as `description`."""
    view = {"viewBox": f"0 0 {WIDTH} {height:g}", "role": "img", "aria-label": description, "class": "chart"}
    return Element("svg", view)


def add(parent: Element, name: str, text: str = "", /, **attributes: float | str) -> Element:
    """A child element; underscores in attribute names become hyphens, `kind` is the class."""
    child = SubElement(parent, name)
    for key, value in attributes.items():
        key = "class" if key == "kind" else key.replace("_", "-")
        child.set(key, value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0"))
    child.text = text or None
    return child


def markup(root: Element) -> str:
    """The figure as text."""
    return tostring(root, encoding="unicode")


def path(points: Sequence[tuple[float, float]]) -> str:
    """Path data through positions."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def horizontal_axis(
    root: Element, scale: Scale, ticks: Sequence[float], y: float, label: str, write: Callable[[float], str]
) -> None:
    """A base line at `y` with ticks under it and the label under those."""
    add(root, "line", x1=scale.start, x2=scale.end, y1=y, y2=y, kind="axis")
    for tick in ticks:
        add(root, "line", x1=scale(tick), x2=scale(tick), y1=y, y2=y + 4, kind="axis")
        add(root, "text", write(tick), x=scale(tick), y=y + 17, text_anchor="middle")
    add(root, "text", label, x=(scale.start + scale.end) / 2, y=y + 35, text_anchor="middle", kind="label")


def vertical_axis(
    root: Element, scale: Scale, ticks: Sequence[float], left: float, right: float, write: Callable[[float], str]
) -> None:
    """Grid lines from `left` to `right` with their values beside them."""
    for tick in ticks:
        add(root, "line", x1=left, x2=right, y1=scale(tick), y2=scale(tick), kind="grid")
        add(root, "text", write(tick), x=left - 7, y=scale(tick) + 4, text_anchor="end")
