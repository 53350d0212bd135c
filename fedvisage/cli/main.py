"""The `fedvisage` command. Errors a user can act on are one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from fedvisage.cli import cluster, data, deploy, evaluate, export, listings, party, plan, recognise, report, run, study
from fedvisage.cli.run import Plugins
from fedvisage.core.errors import FedVisageError
from fedvisage.core.plugins import load_plugins

app = typer.Typer(
    help="Train face-recognition models across parties whose face images never leave them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("embed")(evaluate.embed_command)
app.command("cluster")(cluster.cluster_command)
app.command("report")(report.report_command)
app.command("plan")(plan.plan_command)
app.command("methods")(listings.methods_command)
app.command("models")(listings.models_command)
app.command("verify")(recognise.verify_command)
app.command("enrol")(recognise.enrol_command)
app.command("identify")(recognise.identify_command)
app.command("export")(export.export_command)
app.command("calibrate")(recognise.calibrate_command)
app.command("centre")(recognise.centre_command)
app.add_typer(study.app, name="study", help="Reproduce a paper's tables and figures.")
app.add_typer(deploy.app, name="deploy", help="Make and run a federation of real hosts.")
app.add_typer(party.app, name="party", help="What a party's operator needs.")
app.add_typer(data.app, name="data", help="Make, look at and describe face data.")


@app.callback()
def everywhere(plugins: Plugins = None) -> None:
    """Train face-recognition models across parties whose face images never leave them."""
    load_plugins(plugins or ())


USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What typer raises for a mistake in the words of a command; it has no public name in every version."""
NAME, INTERRUPTED = "fedvisage", 130


def main() -> None:
    """Entry point of the console script."""
    sys.exit(guarded(lambda: app(standalone_mode=False, prog_name=NAME)))


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; a user's mistake becomes one line and exit code 2, a closed pipe is no mistake."""
    try:
        code = command() or 0
    except FedVisageError as error:
        print(f"fedvisage: {error}", file=sys.stderr)
        return 2
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            print(f"fedvisage: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if code == INTERRUPTED:
        print("fedvisage: interrupted; a run goes on with --resume", file=sys.stderr)
    return int(code)


def _one_line(error: Any) -> str:
    words = " ".join(error.format_message().split())
    return f"{words.rstrip('.')}: see `{error.ctx.command_path} --help`" if error.ctx else words
