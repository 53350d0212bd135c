"""`fedvisage run`: train, compare and report, with progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedvisage.cli.output import Json, score_rows, show_json, show_table
from fedvisage.config import Recipe, load_recipe, parse_change
from fedvisage.core.errors import FedVisageError
from fedvisage.federation import Event
from fedvisage.pipeline import run
from fedvisage.report import absence_lines
from fedvisage.runfolder import refuse_recipe_inside

Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a value, as section.key=value; repeatable.")]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="Use the parts of this module, too (see plug-ins); repeatable.")
]
RecipeArgument = Annotated[str, typer.Argument(help="A shipped recipe (demo, smoke) or a TOML file.")]


def run_command(
    recipe: RecipeArgument,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/<name> by default.")] = None,
    changes: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier run in the folder first.")] = False,
    on: Annotated[Path | None, typer.Option(help="A federation's folder: run on its hosts (see `deploy`).")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Run a recipe: prepare faces, train, compare, score, and write a run folder with a report page."""
    if resume and fresh:
        raise FedVisageError("--resume and --fresh contradict each other")
    chosen = chosen_recipe(recipe, changes, plugins)
    if fresh:
        refuse_recipe_inside(recipe, out or Path("runs") / chosen.name)
    with ProgressBars(quiet=as_json) as bars:
        result = run(chosen, out, resume=resume, fresh=fresh, on=on, watch=bars.watch)
    if as_json:
        ended: dict[str, Any] = {"answer": result.answer, "answers": result.answers, "warnings": list(result.warnings)}
        ended["absences"] = [one.table() for one in result.absences]
        show_json({"folder": str(result.folder), "report": str(result.report_path), "models": result.scores, **ended})
        return
    show_table(*score_rows(result.scores), title=f"Identities nobody trained on ({chosen.name}, seed {chosen.seed})")
    if result.answer:
        print(f"Score: {SCORE}")
        print(f"\n{result.answer['sentence']}")
    for domain, found in result.answers.items():
        print(f"{domain}: {found['sentence']}")
    for warning in result.warnings:
        print(f"Note: {warning}")
    for line in absence_lines(result.absences):
        print(line)
    print(f"\nreport: {result.report_path}")


def chosen_recipe(recipe: str, changes: list[str] | None, plugins: list[str] | None) -> Recipe:
    """The recipe that the words of a command name."""
    found = load_recipe(recipe, dict(map(parse_change, changes or [])))
    return found.model_copy(update={"plugins": tuple(dict.fromkeys((*found.plugins, *(plugins or ()))))})


class ProgressBars:
    """A bar over rounds and one over the parties of an exchange; a line per round where there is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console)
        self._tasks: dict[str, TaskID] = {}
        self._live = sys.stderr.isatty() and not quiet

    def __enter__(self) -> ProgressBars:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            if PARTIES in self._tasks:
                self._progress.remove_task(self._tasks[PARTIES])
            self._progress.stop()

    def watch(self, event: Event) -> None:
        """Show an event."""
        note = "  ".join(f"{name} {value:.3f}" for name, value in event.numbers.items() if name not in _COUNTS)
        if event.kind == "note":
            self._console.print(f"  round {event.round}, {event.phase}: {event.verdict}", markup=False)
            return
        if event.verdict:
            self._console.print(f"  {event.party} not counted in round {event.round}: {event.verdict}", markup=False)
        if event.kind == "absorbed" and not self._live:
            self._console.print(
                f"{event.phase:<24} {event.round}/{event.rounds}  {note}", markup=False, highlight=False
            )
        if self._live:
            self._draw(event, note)

    def _draw(self, event: Event, note: str) -> None:
        if event.kind in ("planned", "answer"):
            self._progress.update(self._task(PARTIES), completed=event.done, total=event.total, note=event.party)
        if event.round == 0 or event.kind not in ("planned", "absorbed"):
            return
        done = event.round if event.kind == "absorbed" else event.round - 1
        self._progress.update(self._task(event.phase), completed=done, total=event.rounds)
        if note:
            self._progress.update(self._task(event.phase), note=note)

    def _task(self, name: str) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None, note="")
        return self._tasks[name]


SCORE = (
    "TAR at FAR 0.01 over all pairs of at most 20 images a person, without mirror images; "
    "centred: less the mean of the training people."
)
PARTIES = "parties of this exchange"
_COUNTS = ("samples", "classes")
