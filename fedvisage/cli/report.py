"""`fedvisage report`: write a run's page again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.classmap import write_map
from fedvisage.cli.output import Json, show_json
from fedvisage.core.errors import FedVisageError
from fedvisage.report import write_report


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    pairs_of: Annotated[
        Path | None, typer.Option(help="Another run of the same people: map its most confusable pairs, not this one's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report page of a run folder again."""
    if pairs_of is not None and write_map(run, like=pairs_of) is None:
        raise FedVisageError(f"{run} has no class embeddings of two parties to map")
    path = write_report(run)
    if as_json:
        show_json({"report": str(path)})
    else:
        print(f"report: {path}")
