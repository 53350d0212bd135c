"""The page's figures: dots with spread, lines, and two histograms over each other. Pure functions of numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from xml.etree.ElementTree import Element

from fedvisage.report import drawing
from fedvisage.report.drawing import FLAT, WIDTH, Scale, add

MARKED = 24
"""Lines with at most this many points show each of them."""
LEFT, RIGHT, TOP = 60, WIDTH - 12, 12
SIDE = 34
"""Beside the axis of dots and bars: half of what its outermost numbers take on a phone."""
ROW, LINE = 44, 16
NAME = 30
"""Characters that leave room for a number beside them, on a phone too."""


@dataclass(frozen=True)
class Dot:
    """A row of the dot chart."""

    label: str
    tone: str
    value: float
    spread: float | None = None
    others: Sequence[float] = ()
    """Single values that `value` is the mean of."""


@dataclass(frozen=True)
class Line:
    """A line of the line chart, through (x, y)."""

    label: str
    tone: str
    points: Sequence[tuple[float, float]]


def short_percent(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.10g}%"


def short_number(value: float) -> str:
    """A number on an axis."""
    return f"{value:g}".replace("-", "−", value < 0).replace("e-0", "e−")


def dot_chart(dots: Sequence[Dot], label: str, description: str, reference: float) -> str:
    """One row per dot with its spread as a whisker, all on one axis of shares; `reference` is a line where in sight."""
    lows = [min(dot.value - (dot.spread or 0), *dot.others, dot.value) for dot in dots]
    highs = [max(dot.value + (dot.spread or 0), *dot.others, dot.value) for dot in dots]
    ticks = [tick for tick in drawing.nice_ticks(max(0.0, min(lows)), min(1.0, max(highs))) if 0 <= tick <= 1]
    tops = _tops([dot.label for dot in dots])
    bottom = tops.pop() + 6
    root = drawing.figure(bottom + 42, description)
    scale = Scale(ticks[0], ticks[-1], SIDE, WIDTH - SIDE)
    for tick in ticks:
        add(root, "line", x1=scale(tick), x2=scale(tick), y1=TOP, y2=bottom, kind="grid")
    if ticks[0] <= reference <= ticks[-1]:
        add(root, "line", x1=scale(reference), x2=scale(reference), y1=TOP, y2=bottom, kind="reference")
    for dot, top in zip(dots, tops, strict=True):
        _dot_row(root, dot, scale, top)
    drawing.horizontal_axis(root, scale, ticks, bottom, label, short_percent)
    return drawing.markup(root)


def _tops(labels: Sequence[str]) -> list[float]:
    """Where each row begins, one with a long label being higher, and where the last one ends."""
    return list(accumulate((ROW + LINE * (len(_name(label)) - 1) for label in labels), initial=float(TOP)))


def _name(label: str) -> list[str]:
    return textwrap.wrap(label, NAME, break_on_hyphens=False) or [""]


def _head(group: Element, label: str, value: str, top: float) -> float:
    """A row's label, in lines, with its value; where its mark goes."""
    lines = _name(label)
    for number, line in enumerate(lines):
        add(group, "text", line, x=SIDE + 6, y=top + 14 + LINE * number, kind="name")
    add(group, "text", value, x=WIDTH - SIDE - 6, y=top + 14, text_anchor="end", kind="value")
    return top + 30 + LINE * (len(lines) - 1)


def _dot_row(root: Element, dot: Dot, scale: Scale, top: float) -> None:
    value = f"{100 * dot.value:.1f}%" + (f" ± {100 * dot.spread:.1f}" if dot.spread is not None else "")
    group = add(root, "g", kind=dot.tone)
    add(group, "title", f"{dot.label}: {value}")
    y = _head(group, dot.label, value, top)
    for other in dot.others:
        add(group, "circle", cx=scale(other), cy=y, r=2.5, kind="faint")
    if dot.spread is not None:
        ends = [scale(min(1.0, max(0.0, dot.value + sign * dot.spread))) for sign in (-1, 1)]
        _whisker(group, ends, y)
    add(group, "circle", cx=scale(dot.value), cy=y, r=5, kind="fill")


def _whisker(group: Element, ends: Sequence[float], y: float) -> None:
    """A line between two ends, each with a stroke across."""
    add(group, "line", x1=ends[0], x2=ends[1], y1=y, y2=y, kind="stroke whisker")
    for end in ends:
        add(group, "line", x1=end, x2=end, y1=y - 4, y2=y + 4, kind="stroke whisker")


SMALL = 2
"""Bars up to this long, such as cosines and losses, are told to the second decimal."""


@dataclass(frozen=True)
class Bar:
    """A row of the bar chart, in percent or in points."""

    label: str
    tone: str
    value: float
    spread: float | None = None


def bar_chart(bars: Sequence[Bar], label: str, description: str, points: bool = False) -> str:
    """Horizontal bars from nought with their spread as whiskers; `points` for differences, which may be negative."""
    ends = [end for bar in bars for end in (bar.value - (bar.spread or 0), bar.value + (bar.spread or 0))]
    ticks = drawing.nice_ticks(min(0.0, *ends), max(0.0, *ends))
    digits = 1 if max(map(abs, ends)) > SMALL else 2
    tops = _tops([bar.label for bar in bars])
    bottom = tops.pop() + 6
    root = drawing.figure(bottom + 42, description)
    scale = Scale(ticks[0], ticks[-1], SIDE, WIDTH - SIDE)
    for tick in ticks:
        add(root, "line", x1=scale(tick), x2=scale(tick), y1=TOP, y2=bottom, kind="grid")
    for bar, top in zip(bars, tops, strict=True):
        _bar_row(root, bar, scale, top, points, digits)
    add(root, "line", x1=scale(0), x2=scale(0), y1=TOP, y2=bottom, kind="axis")
    drawing.horizontal_axis(root, scale, ticks, bottom, label, short_number)
    return drawing.markup(root)


def _bar_row(root: Element, bar: Bar, scale: Scale, top: float, points: bool, digits: int) -> None:
    value = f"{bar.value:+.{digits}f}".replace("-", "−") if points else f"{bar.value:.{digits}f}"
    value += f" ± {bar.spread:.{digits}f}" if bar.spread is not None else ""
    group = add(root, "g", kind=bar.tone)
    add(group, "title", f"{bar.label}: {value}")
    y = _head(group, bar.label, value, top)
    low, high = sorted((scale(0), scale(bar.value)))
    add(group, "rect", x=low, y=y - 7, width=max(high - low, 0.5), height=14, kind="fill soft")
    if bar.spread is not None:
        ends = [scale(bar.value + sign * bar.spread) for sign in (-1, 1)]
        _whisker(group, ends, y)


def line_chart(
    lines: Sequence[Line],
    x_label: str,
    description: str,
    shares: bool = False,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Lines over rounds or a setting, on a logarithmic axis or not; `shares` writes the vertical one in percent."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    y_ticks = drawing.log_ticks(min(ys), max(ys)) if log_y else drawing.nice_ticks(min(ys), max(ys))
    if shares and min(ys) >= 0 and max(ys) <= 1:  # what is a whole or less gets no axis beyond it
        y_ticks = [tick for tick in y_ticks if -1e-9 <= tick <= 1 + 1e-9]
    bottom = 214
    root = drawing.figure(bottom + 42, description)
    if log_x:
        x_ticks = drawing.log_ticks(min(xs), max(xs))
        across = Scale(x_ticks[0], x_ticks[-1], LEFT + 8, RIGHT - 10, log=True)
    else:
        low, high = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
        whole = all(float(x).is_integer() for x in xs)
        inside = FLAT * (high - low)
        x_ticks = [t for t in drawing.nice_ticks(low, high, 6, whole) if low - inside <= t <= high + inside]
        across = Scale(low, high, LEFT + 8, RIGHT - 10)
    up = Scale(y_ticks[0], y_ticks[-1], bottom - 6, TOP, log_y)
    drawing.vertical_axis(root, up, y_ticks, LEFT, RIGHT, short_percent if shares else short_number)
    drawing.horizontal_axis(root, across, x_ticks, bottom, x_label, short_number)
    for line in lines:
        _line(root, line, across, up, shares)
    return drawing.markup(root)


def _line(root: Element, line: Line, across: Scale, up: Scale, shares: bool) -> None:
    group = add(root, "g", kind=line.tone)
    add(group, "title", line.label)
    if len(line.points) > 1:
        add(group, "path", d=drawing.path([(across(x), up(y)) for x, y in line.points]), kind="stroke line")
    if len(line.points) > MARKED:
        return
    for x, y in line.points:
        circle = add(group, "circle", cx=across(x), cy=up(y), r=3, kind="fill")
        add(circle, "title", f"{line.label}, {x:g}: {f'{100 * y:.2f}%' if shares else f'{y:.4g}'}")


def histogram_chart(
    genuine: Sequence[int], impostor: Sequence[int], span: tuple[int, int], top: float, description: str
) -> str:
    """Shares of the genuine and of the impostor pairs per bin of cosine; bins `span` of all, up to the share `top`."""
    bins = len(genuine)
    edges = [-1 + 2 * index / bins for index in range(bins + 1)]
    first, last = span
    bottom = 196
    root = drawing.figure(bottom + 42, description)
    across = Scale(edges[first], edges[last], LEFT, RIGHT)
    y_ticks = drawing.nice_ticks(0, top or 1, 4)
    up = Scale(0, y_ticks[-1], bottom, TOP)
    drawing.vertical_axis(root, up, y_ticks, LEFT, RIGHT, short_percent)
    for counts, tone in ((impostor, "impostor"), (genuine, "genuine")):
        total = sum(counts)
        if not total:
            continue
        outline = [(across(edges[first]), up(0))]
        for index in range(first, last):
            share = up(counts[index] / total)
            outline += [(across(edges[index]), share), (across(edges[index + 1]), share)]
        outline.append((across(edges[last]), up(0)))
        group = add(root, "g", kind=tone)
        add(group, "title", f"{tone} pairs")
        add(group, "path", d=drawing.path(outline), kind="stroke area")
    ticks = [tick for tick in drawing.nice_ticks(edges[first], edges[last]) if edges[first] <= tick <= edges[last]]
    drawing.horizontal_axis(root, across, ticks, bottom, "cosine of the two embeddings", short_number)
    return drawing.markup(root)


def occupied(histograms: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The bins from the first to the last that any histogram uses, with one to spare on each side."""
    used = [index for counts in histograms for index, count in enumerate(counts) if count]
    bins = max((len(counts) for counts in histograms), default=0)
    return (max(0, min(used) - 1), min(bins, max(used) + 2)) if used else (0, bins)


def finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points whose value is a number."""
    return [(x, y) for x, y in points if math.isfinite(y)]
