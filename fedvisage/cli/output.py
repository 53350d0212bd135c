"""How results are shown: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedvisage.evaluation.gap import CENTRED, RAW

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


WIDE = 240
"""Columns where nobody watches: a file or a pipe has no edge at which lines must be folded."""


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=1))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table on standard output; columns after the first are aligned right when they hold numbers."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    rows = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(row[index][:1].isdigit() or row[index] in ("", "-", "nan") for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def score_rows(scores: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the scores of some models."""
    fars = sorted({far for score in scores.values() for far in score["tar"]}, key=float, reverse=True)
    variants = [v for v in (RAW, CENTRED) if any(v in _tested(score) for score in scores.values())]
    columns = ["model", "accuracy", *(f"TAR@FAR {far}" for far in fars), *(f"score, {variant}" for variant in variants)]
    rows = []
    for name, score in scores.items():
        numbers = [score.get("accuracy"), *(score["tar"][far] for far in fars), *map(_tested(score).get, variants)]
        rows.append([name, *("-" if number is None else f"{100 * number:.2f}" for number in numbers)])
    return columns, rows


def _tested(score: Mapping[str, Any]) -> Mapping[str, float]:
    found: Mapping[str, float] = score.get("people", {}).get("test", {})
    return found


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


@contextmanager
def progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar where there is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, advance=count)
