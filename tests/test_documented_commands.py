"""Every command that the documents show is run, or says why it is not and at least parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.planning import make_plan
from fedvisage.studies import cells

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "papers").glob("*.md")])
MARK = "*Not run by the tests"
COMMAND = re.compile(r"^(?:    |\$ )fedvisage (?P<rest>.*)$")


def commands(page: Path) -> list[tuple[list[str], bool]]:
    """The arguments of each command that a page shows, and whether it is to be run."""
    found, said = [], ""
    for line in page.read_text("utf-8").splitlines():
        match = COMMAND.match(line)
        if match:
            found.append((shlex.split(match["rest"], comments=True), not said.startswith(MARK)))
        elif line.strip() and not line.startswith(("    ", "```", "$ ")):
            said = line
    return found


def parse(arguments: list[str]) -> None:
    """Parse a command as the command line would, without carrying it out."""
    command: click.Command = typer.main.get_command(app)
    name = "fedvisage"
    while isinstance(command, click.Group):
        name, inner, *arguments = (
            arguments[0],
            command.get_command(click.Context(command), arguments[0]),
            *arguments[1:],
        )
        assert inner is not None, f"no command '{name}'"
        command = inner
    command.make_context(name, list(arguments))


SHOWN = [(page, arguments, runs) for page in PAGES for arguments, runs in commands(page)]


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 25
    assert sum(runs for _, _, runs in SHOWN) >= 10


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: " ".join(shown[1])[:60])
def test_every_command_parses(shown: tuple[Path, list[str], bool]) -> None:
    parse(shown[1])


@pytest.mark.parametrize("page", sorted({page for page, _, runs in SHOWN if runs}), ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, runs in commands(page):
        if runs:
            done = CliRunner().invoke(app, arguments)
            assert done.exit_code == 0, f"{' '.join(arguments)}: {done.output}{done.exception}"


def test_the_readme_reproduces_a_table_in_three_commands() -> None:
    """They parse, and every cell of the study they run can be planned."""
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.split("## Studies")[1].split("## ")[0]
    block = section.split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.strip().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert line[0] == "fedvisage"
        parse(line[1:])
    study, scale = lines[2][3], lines[2][lines[2].index("--scale") + 1]
    assert (study, scale) == ("fedgc/table-5", "paper")
    cell = cells(study, scale, [1])[0]
    assert cell.recipe.faces.source == lines[0][lines[0].index("--out") + 1]
    assert make_plan(cell.recipe)["compute"]["gpu_hours"]["V100"] > 1
