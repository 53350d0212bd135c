"""`fedvisage study`: list, run and show studies."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.cli.plan import show_study
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.planning import plan_study
from fedvisage.report.words import listed
from fedvisage.studies import (
    Cell,
    Entry,
    News,
    Place,
    Row,
    Study,
    cells,
    choices,
    chosen_cells,
    diverging,
    explained,
    list_studies,
    load_results,
    load_study,
    orderings,
    rate_words,
    results_home,
    run_cells,
    seeds_of,
    summary,
    table,
    tried_cells,
    unchosen,
    uneven,
    write_study,
)
from fedvisage.studies.drawn import DRAWN, LAPTOP
from fedvisage.studies.sets import absent_sets, data_root, left_out

REVERSED = 8
"""Clearly reversed orderings that a terminal lists."""
COLUMNS = 5
"""Of a study side by side in a terminal, each with the paper's; a wider table is cut."""

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A study, such as fedgc/table-5.")]
Scale = Annotated[str, typer.Option(help="laptop, synthetic, paper, or smoke for a few steps; some have trained.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 1 to this many.")]
Results = Annotated[Path | None, typer.Option(help="Folder of finished cells; studies/results by default.")]


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the studies."""
    found = {name: load_study(name) for name in list_studies()}
    if as_json:
        show_json({name: study.model_dump(mode="json") for name, study in found.items()})
        return
    rows = [[name, study.title, str(len(study.rows)), ", ".join(study.scales)] for name, study in found.items()]
    show_table(["study", "what it is", "rows", "scales"], rows)


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(help="Studies, such as fedgc/table-5; cells they share run once.")],
    scale: Scale = "laptop",
    seeds: Seeds = 1,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only these rows; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Cells at a time; 0 for one per core, one at paper scale.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Where the real face sets are; FEDVISAGE_DATA by default.")] = None,
    work: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs/studies"),
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Run the cells of studies that are not finished, then show their tables."""
    known = {cell.row for name in names for cell in cells(name, scale, [1])}
    for row in rows or ():
        if row not in known:
            raise FedVisageError(f"{listed([repr(name) for name in names])} has no row '{row}': {nearest(row, known)}")
    lost = {(name, row.name) for name in names for row in load_study(name).rows if row.diverges(scale)}
    place, numbers = Place(work, results or results_home(), data), range(1, seeds + 1)

    def asked(found: Iterable[Cell]) -> list[Cell]:
        return [c for c in found if (c.row in rows if rows else (c.study, c.row) not in lost)]

    def work_through(found: Iterable[Cell]) -> None:
        to_run = asked(found)
        with CellBars(to_run, quiet=as_json) as bars:
            run_cells(to_run, place, jobs, bars.tell)

    def chosen() -> list[Cell]:
        return asked(cell for name in names for cell in chosen_cells(name, at[name], numbers, place.results))

    at = dict.fromkeys(names, scale)
    wanted = chosen() if scale == LAPTOP else []
    at |= {name: DRAWN for name in names if _is_absent(name, wanted, place)}
    tried = [cell for name in names for cell in tried_cells(name, at[name], numbers)]
    tell_left_out(chosen(), place)
    if tried:
        work_through(tried)
    work_through(chosen())
    written = {name: write_study(name, at[name], place.results, page_path(name, at[name], work)) for name in names}
    if as_json:
        tables = [as_table(name, at[name], place.results) | {"page": str(page)} for name, page in written.items()]
        show_json(tables[0] if len(tables) == 1 else tables)
        return
    for name, page in written.items():
        _show(name, at[name], place.results)
        print(f"page: {page}")


def _is_absent(name: str, chosen: Sequence[Cell], place: Place) -> bool:
    """Whether cells of a study would train on real faces that are not there, which is said."""
    absent = absent_sets([cell for cell in chosen if cell.study == name], place.results, place.data)
    if absent:
        said = f"no {listed(absent)} in {place.data or data_root()} (--data or FEDVISAGE_DATA says where)"
        typer.echo(f"{name}: {said}: drawn people stand in, at scale {DRAWN}", err=True)
    return bool(absent)


def tell_left_out(chosen: Sequence[Cell], place: Place) -> None:
    """Name the columns that the cells cannot fill here, in one line, before anything is trained."""
    absent = left_out(chosen, place.results, place.data)
    if absent:
        sets = ", ".join(f"{column} ({data})" for column, data in absent.items())
        typer.echo(f"columns left out, as their face sets are not there: {sets}", err=True)


class CellBars:
    """A bar over all cells and one for each that is running; a line per finished cell where there is no terminal."""

    def __init__(self, chosen: Sequence[Cell], quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description:<34}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console)
        self._total = len(set(map(_known_by, chosen)))
        self._shares: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, float] = {}
        self._finished = 0
        self._live = sys.stderr.isatty() and not quiet

    def __enter__(self) -> CellBars:
        if self._live:
            self._whole = self._progress.add_task(f"{self._total} cells", total=self._total)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def tell(self, news: News) -> None:
        """Show what a cell has to say."""
        key, name = _known_by(news.cell), f"{news.cell.row}, seed {news.cell.seed}"
        if news.kind == "started":
            self._begun[key] = time.monotonic()
        self._shares[key] = max(self._shares.get(key, 0.0), news.share)
        over = news.kind in ("done", "failed")
        if over:
            self._finished += 1
            self._shares[key] = 1.0
            took = f"{time.monotonic() - self._begun[key]:.0f} s" if news.kind == "done" else news.reason
            text = f"{self._finished}/{self._total}  {name}: {news.kind}, {took}"
            self._console.print(text, markup=False, highlight=False)
        if self._live:
            self._draw(key, name, over)

    def _draw(self, key: str, name: str, over: bool) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(name, total=1.0)
        if over:
            self._progress.remove_task(self._tasks[key])
        else:
            self._progress.update(self._tasks[key], completed=self._shares[key])
        self._progress.update(self._whole, completed=sum(self._shares.values()))


def _known_by(cell: Cell) -> str:
    """A row of a study: rows that share a recipe are trained once and measured one by one."""
    return f"{cell.key} {cell.study} {cell.row}"


@app.command("plan")
def plan_command(name: Name, scale: Scale = "paper", as_json: Json = False) -> None:
    """Say what every row of a study costs before anything runs: bytes, memory, and an estimate of GPU hours."""
    plan = plan_study(name, scale)
    if as_json:
        show_json(plan)
    else:
        show_study(load_study(name), plan)


@app.command("report")
def report_command(
    name: Name,
    scale: Scale = "laptop",
    results: Results = None,
    out: Annotated[Path | None, typer.Option(help="The page to write; runs/studies/<name>.html by default.")] = None,
    as_json: Json = False,
) -> None:
    """Write a study's page and show its table: the paper's numbers beside ours, and which of its orderings hold."""
    kept = results or results_home()
    path = write_study(name, scale, kept, out or page_path(name, scale, Path("runs/studies")))
    if as_json:
        show_json(as_table(name, scale, kept) | {"page": str(path)})
        return
    _show(name, scale, kept)
    print(f"page: {path}")


def page_path(name: str, scale: str, folder: Path) -> Path:
    """Where a study's page goes unless asked otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace('/', '-')}-{scale}.html"


def as_table(name: str, scale: str, kept: Path) -> dict[str, Any]:
    """A study's numbers as plain data."""
    study, finished = load_study(name), load_results(name, scale, kept)
    numbers = table(study, scale, finished)
    found = orderings(study, scale, finished, np.random.default_rng(0))
    heads = {column.name: column.head(scale) for column in study.measured(scale)}
    columns = {
        column.head(scale): {"column": column.name, **column.by[scale].model_dump(include={"metric", "what"})}
        for column in study.measured(scale)
    }
    plain = {row: {heads[column]: _plain(entry) for column, entry in of.items()} for row, of in numbers.items()}
    ordered = [one.table() | {"column": heads[one.column]} for one in found]
    tried = {
        row: {
            "tried": {str(rate): _known(score) for rate, score in of.scores.items()},
            "taken": {str(rate): count for rate, count in of.counts.items()} if of.made else None,
        }
        for row, of in choices(name, scale, kept, seeds_of(finished)).items()
    }
    whole = {"study": name, "scale": scale, "columns": columns, "rows": plain, "orderings": ordered}
    return whole | ({"tries": tried} if tried else {})


def _show(name: str, scale: str, kept: Path) -> None:
    study, finished = load_study(name).at_scale(scale), load_results(name, scale, kept)
    numbers = table(study, scale, finished)
    found = orderings(study, scale, finished, np.random.default_rng(0))
    print(f"{study.title} ({study.source}), {scale} scale")
    columns = study.measured(scale)
    heads = {column.name: column.head(scale) for column in columns}
    for column in columns:
        print(f"  {': '.join(explained(study, column, scale))}")
    entries = {row.name: numbers.get(row.name, {}) for row in study.rows}
    diverged = diverging(study, scale, finished)
    none = {row.name: "diverged" if row.name in diverged else "-" for row in study.rows}
    for start in range(0, len(columns), COLUMNS):
        shown: dict[str, list[str]] = {"": [row.label for row in study.rows]}
        for column in columns[start : start + COLUMNS]:
            beside = uneven(numbers, column.name)
            shown[heads[column.name]] = [_ours(entries[r].get(column.name), none[r], beside) for r in entries]
            if any(column.name in row.paper for row in study.rows):
                shown[f"paper: {column.name}"] = [_papers(row, column.name) for row in study.rows]
        show_table(list(shown), zip(*shown.values(), strict=True))
    if any(not math.isnan(entry.chosen) for of in entries.values() for entry in of.values()):
        print("in brackets: at the round chosen on validation people")
    elif finished:
        print(unchosen(study, scale, finished))
    _show_tries(study, scale, kept, name, seeds_of(finished))
    for row in study.rows:
        if row.name in diverged:
            print(f"{row.label} diverged{f': {row.note}' if row.note else ''}")
    for row in study.rows:
        for erratum in row.errata.values():
            print(f"* {row.label}: {erratum.words}")
    print(f"\n{summary(study, scale, found, bool(finished))}".rstrip())
    labels = {row.name: row.label for row in study.rows}
    units = {column.name: " points" if column.unit == "percent" else "" for column in columns}
    against = [one for one in found if one.clear and not one.agrees]
    for one in against[:REVERSED]:
        apart = f"{-one.ours:.2f}{units[one.column]}"
        print(f"  {heads[one.column]}: {labels[one.high]} is {apart} below {labels[one.low]}, not above it")
    if len(against) > REVERSED:
        print(f"  and {len(against) - REVERSED} more, which the page lists")
    for said in study.disagreements.get(scale, ()) if found else ():
        print(textwrap.fill(said, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))


def _show_tries(study: Study, scale: str, kept: Path, name: str, seeds: Sequence[int]) -> None:
    """Which learning rate was taken for each row."""
    tried = choices(name, scale, kept, seeds)
    if not any(of.made for of in tried.values()):
        return
    taken: dict[str, list[str]] = {}
    for row in study.rows:
        if row.name in tried:
            taken.setdefault(rate_words(tried[row.name]), []).append(row.label)
    tries = study.tries[scale]
    print(f"{len(tries.rates)} learning rates tried for every row under {tries.under}; validation people chose:")
    for words, labels in taken.items():
        print(textwrap.fill("; ".join(labels), 120, initial_indent=f"  {words}: ", subsequent_indent="    "))


def _plain(entry: Entry) -> dict[str, Any]:
    """What is not known is None, which JSON can say."""
    named = entry._asdict() | {"values": list(entry.values)}
    return {key: _known(value) for key, value in named.items()}


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _papers(row: Row, column: str) -> str:
    value = row.paper.get(column)
    return "-" if value is None else f"{value:.2f}{'*' if column in row.errata else ''}"


def _ours(entry: Entry | None, none: str, beside: bool) -> str:
    if entry is None or math.isnan(entry.mean):
        return none
    spread = "" if math.isnan(entry.spread) else f" ± {entry.spread:.2f}"
    best = "" if math.isnan(entry.chosen) else f" ({entry.chosen:.2f})"
    return f"{entry.mean:.2f}{spread}{best}" + (f", {entry.over}" if beside else "")
