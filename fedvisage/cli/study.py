"""`fedvisage study`: list, run and show studies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.cli.run import ProgressBars
from fedvisage.core.errors import FedVisageError
from fedvisage.studies import (
    Cell,
    cells,
    list_studies,
    load_results,
    load_study,
    orderings,
    results_home,
    run_cell,
    table,
)

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A study, such as fedgc/table-5.")]
Scale = Annotated[str, typer.Option(help="laptop, paper, or smoke for a few steps.")]
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
    name: Name,
    scale: Scale = "laptop",
    seeds: Seeds = 1,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only these rows; repeatable.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where the real face sets are; FEDVISAGE_DATA by default.")] = None,
    work: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs/studies"),
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Run the cells of a study that are not finished, then show its table."""
    chosen = cells(name, scale, range(1, seeds + 1))
    unknown = set(rows or ()) - {cell.row for cell in chosen}
    if unknown:
        raise FedVisageError(f"study '{name}' has no row '{min(unknown)}'")
    chosen = [cell for cell in chosen if not rows or cell.row in rows]
    for number, cell in enumerate(chosen, 1):
        _run_one(cell, f"{number}/{len(chosen)}", data, work, results or results_home(), as_json)
    report_command(name, scale, results, as_json)


def _run_one(cell: Cell, place: str, data: Path | None, work: Path, results: Path, quiet: bool) -> None:
    if not quiet:
        print(f"{place}  {cell.row}, seed {cell.seed}", flush=True)
    with ProgressBars(quiet=quiet) as bars:
        run_cell(cell, work, results, data, bars.watch)


@app.command("report")
def report_command(name: Name, scale: Scale = "laptop", results: Results = None, as_json: Json = False) -> None:
    """Show a study's table: the paper's numbers beside ours, and which of its orderings hold."""
    study = load_study(name)
    numbers = table(study, scale, load_results(name, scale, results or results_home()))
    found = orderings(study, numbers)
    if as_json:
        plain = {row: {column: entry._asdict() for column, entry in of.items()} for row, of in numbers.items()}
        show_json({"study": name, "scale": scale, "rows": plain, "orderings": found})
        return
    print(f"{study.title} ({study.source}), {scale} scale")
    columns = [column for column in study.columns if scale in column.by]
    for column in columns:
        measure = column.by[scale]
        print(f"  {column.name}: {measure.metric} on {measure.what}")
    lines = []
    for row in study.rows:
        line = [row.label]
        for column in columns:
            ours = numbers.get(row.name, {}).get(column.name)
            line += [_number(row.paper.get(column.name)), _ours(ours)]
        lines.append(line)
    heads = [part for column in columns for part in (f"{column.name}, paper", "ours")]
    show_table(["", *heads], lines)
    agree = sum(pair["agrees"] for pair in found)
    clear = sum(pair["agrees"] and pair["clear"] for pair in found)
    against = sum(not pair["agrees"] and pair["clear"] for pair in found)
    beyond = f"{clear} beyond the spread over seeds; {against} clearly against it"
    print(f"\n{agree} of {len(found)} orderings are the paper's ({beyond})")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ours(entry: Any) -> str:
    if entry is None or math.isnan(entry.mean):
        return "-"
    spread = "" if math.isnan(entry.spread) else f" ± {entry.spread:.2f}"
    best = "" if math.isnan(entry.chosen) else f" (chosen round {entry.chosen:.2f})"
    return f"{entry.mean:.2f}{spread}{best}"
