"""`fedvisage report`: write a run's page again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.output import Json, show_json
from fedvisage.report import write_report


def report_command(run: Annotated[Path, typer.Argument(help="A run folder.")], as_json: Json = False) -> None:
    """Write the report page of a run folder again."""
    path = write_report(run)
    if as_json:
        show_json({"report": str(path)})
    else:
        print(f"report: {path}")
