"""The figures of a study's page: the paper's figure redrawn from its rows, and the learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedvisage.report import charts
from fedvisage.report.charts import Bar, Dot, Line
from fedvisage.report.results import Figure
from fedvisage.report.words import listed, plural
from fedvisage.studies.alike import ALIKE
from fedvisage.studies.definition import TEST, Column, Row, Study
from fedvisage.studies.numbers import Entry, uneven

TONES = 12
LAST = "last round"
"""What an axis says of scores; the figure's title says which."""
Numbers = Mapping[str, Mapping[str, Entry]]


def redrawn(study: Study, scale: str, numbers: Numbers) -> list[Figure]:
    """Per column: lines over a swept setting or bars where the study is a figure, else dots with the single seeds."""
    found: list[Figure | None] = []
    for column in study.measured(scale):
        head = column.head(scale)
        measured = {
            row: of[column.name].mean
            for row, of in numbers.items()
            if column.name in of and not math.isnan(of[column.name].mean)
        }
        if not measured:
            continue
        if study.figure is None and column.unit == "percent":
            found.append(_dots(study, column, head, numbers))
        elif study.figure is None or study.figure.kind in ("bars", ALIKE):
            found.append(_bars(study, column, head, numbers))
        else:
            found.append(_lines(study, head, measured, "ours", _seeds(study, column, numbers)))
            found.append(_lines(study, column.name, _paper(study, column.name), "the paper's"))
    return [figure for figure in found if figure is not None]


def _tones(names: Sequence[str]) -> dict[str, str]:
    return {name: f"tone-party-{index % TONES}" for index, name in enumerate(dict.fromkeys(names))}


def _series(row: Row) -> str:
    return row.line or row.group or "all rows"


def _paper(study: Study, column: str) -> dict[str, float]:
    return {row.name: row.paper[column] for row in study.rows if column in row.paper}


def _seeds(study: Study, column: Column, numbers: Numbers) -> str:
    """Which points are means of how many seeds, where they differ."""
    if not uneven(numbers, column.name):
        return ""
    rows: dict[str, list[str]] = {}
    for row in study.rows:
        entry = numbers.get(row.name, {}).get(column.name)
        if entry and entry.seeds:
            rows.setdefault(entry.over, []).append(row.label)
    return "Not all are means of as many seeds. " + " ".join(f"{over}: {listed(of)}." for over, of in rows.items())


def _named(row: Row, entry: Entry, beside: bool) -> str:
    return f"{row.label} ({entry.over})" if beside else row.label


def _lines(study: Study, column: str, values: Mapping[str, float], whose: str, more: str = "") -> Figure | None:
    """A line per series over the rows' `x`; a row without `x` is in the table only."""
    assert study.figure is not None
    tones = _tones([_series(row) for row in study.rows])
    points: dict[str, list[tuple[float, float]]] = {}
    for row in study.rows:
        if row.name in values and row.x is not None:
            points.setdefault(_series(row), []).append((row.x, values[row.name] / 100))
    lines = [Line(name, tones[name], sorted(of)) for name, of in points.items()]
    if not lines:
        return None
    said = "; ".join(f"{line.label} {', '.join(f'{100 * y:.1f} at {x:g}' for x, y in line.points)}" for line in lines)
    words = f"{column} over {study.figure.x or 'the setting'}, {whose}. {said}."
    svg = charts.line_chart(lines, study.figure.x, words, True, study.figure.log)
    legend = [(line.label, line.tone) for line in lines] if len(lines) > 1 else []
    placeless = [row.label for row in study.rows if row.name in values and row.x is None]
    captions = [more, f"In the table only: {listed(placeless)}." if placeless else ""]
    return Figure(f"{column}, {whose}", svg, " ".join(filter(None, captions)), legend)


def _bars(study: Study, column: Column, head: str, numbers: Numbers) -> Figure | None:
    """A bar per row, or its difference from the row that is taken as nought."""
    zero = study.figure.relative_to if study.figure else ""
    origin = numbers.get(zero, {}).get(column.name)
    if zero and (origin is None or math.isnan(origin.mean)):
        return None
    tones, beside = _tones([row.name for row in study.rows]), uneven(numbers, column.name)
    bars = []
    for row in study.rows:
        entry = numbers.get(row.name, {}).get(column.name)
        if entry is None or math.isnan(entry.mean) or row.name == zero:
            continue
        value, spread = (entry.mean, entry.spread) if origin is None else _difference(entry, origin)
        bars.append(Bar(_named(row, entry, beside), tones[row.name], value, None if math.isnan(spread) else spread))
    if not bars:
        return None
    unit = ", percent" if column.unit == "percent" else ""
    label = f"points above {_label(study, zero)}" if zero else f"{LAST}{unit}"
    said = listed([f"{bar.label} {bar.value:.1f}" for bar in bars])
    svg = charts.bar_chart(bars, label, f"{head}, {label}. {said}.", bool(zero))
    return Figure(head, svg, "Whiskers: one standard deviation over seeds." if _whiskers(bars) else "")


def _difference(entry: Entry, origin: Entry) -> tuple[float, float]:
    """Mean and spread over seeds of the difference, seed by seed where both have the same."""
    if entry.which != origin.which:
        return entry.mean - origin.mean, math.nan
    apart = [a - b for a, b in zip(entry.values, origin.values, strict=True)]
    middle = fmean(apart)
    spread = math.sqrt(sum((d - middle) ** 2 for d in apart) / (len(apart) - 1)) if len(apart) > 1 else math.nan
    return middle, spread


def _whiskers(bars: Sequence[Bar | Dot]) -> bool:
    return any(bar.spread is not None for bar in bars)


def _label(study: Study, name: str) -> str:
    return next(row.label for row in study.rows if row.name == name)


def _dots(study: Study, column: Column, head: str, numbers: Numbers) -> Figure:
    """Every row's mean with its spread, and the single seeds behind it."""
    tones, beside = _tones([row.group for row in study.rows]), uneven(numbers, column.name)
    dots = []
    for row in study.rows:
        entry = numbers.get(row.name, {}).get(column.name)
        if entry is None or math.isnan(entry.mean):
            continue
        spread = None if math.isnan(entry.spread) else entry.spread / 100
        seeds = [value / 100 for value in entry.values] if len(entry.values) > 1 else []
        dots.append(Dot(_named(row, entry, beside), tones[row.group], entry.mean / 100, spread, seeds))
    said = listed([f"{dot.label} {100 * dot.value:.1f}%" for dot in dots])
    svg = charts.dot_chart(dots, LAST, f"{head}, ours. {said}.", math.inf)
    caption = "Whiskers: one standard deviation over seeds. Faint dots: single seeds." if _whiskers(dots) else ""
    return Figure(f"{head}, ours", svg, caption)


def learning_curves(study: Study, scale: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Per group of rows: the first score that was followed while training, mean over seeds, round by round.

    Where no column is such a score, the one that rounds are chosen by.
    """
    tested = {column.head(scale): column.by[scale] for column in study.measured(scale)}
    metrics = {head: measure.metric for head, measure in tested.items() if measure.protocol == TEST}
    if not metrics and (followed := study.chooses_by(scale)):
        metrics[f"Pairs of images, {followed.replace('tar', 'TAR')}"] = followed
    head = next((head for head, metric in metrics.items() if any(_rounds(of, metric) for of in results.values())), None)
    if head is None:
        return []
    groups: dict[str, list[Line]] = {}
    numbers = {name: len(of) for name, of in results.items() if _rounds(of, metrics[head])}
    beside = len(set(numbers.values())) > 1
    for row in study.rows:
        points = _rounds(results.get(row.name, ()), metrics[head])
        if len(points) > 1:
            lines = groups.setdefault(row.group, [])
            label = f"{row.label} ({plural(numbers[row.name], 'run')})" if beside else row.label
            lines.append(Line(label, f"tone-party-{len(lines) % TONES}", points))
    figures = []
    for group, lines in groups.items():
        said = "; ".join(f"{line.label} ends at {100 * line.points[-1][1]:.1f}%" for line in lines)
        svg = charts.line_chart(lines, "round", f"{head}, on the test people per round. {said}.", True)
        title = f"{head}, by round" + (f": {group}" if group else "")
        figures.append(Figure(title, svg, "On the test people, mean over seeds.", [(o.label, o.tone) for o in lines]))
    return figures


def _rounds(results: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """(round, mean over seeds) as far as every seed was scored."""
    curves = [
        {row["round"]: row[metric] for row in result["rounds"].get(TEST, ()) if metric in row} for result in results
    ]
    shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return [(round, fmean(curve[round] for curve in curves)) for round in sorted(shared)]
