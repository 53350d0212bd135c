"""Every command that the documents show is run, or says why it is not and at least parses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer
from page_inputs import INPUTS
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.planning import make_plan
from fedvisage.studies import cells

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "papers").glob("*.md")])
MARK = "*Not run by the tests"
ALWAYS = (["models"], ["methods"], ["study", "list"], ["study", "plan"], ["study", "report"])
"""Run wherever they are shown: they need nothing, and what a study's marked commands make is in the repository."""
COMMAND = re.compile(r"^(?:    |\$ )fedvisage (?P<rest>.*)$")
DOWN = ["deploy", "down", "demo-federation"]


def commands(page: Path) -> list[tuple[list[str], bool]]:
    """The arguments of each command that a page shows, and whether it is to be run."""
    found, said = [], ""
    for line in page.read_text("utf-8").splitlines():
        match = COMMAND.match(line)
        if match:
            arguments = shlex.split(match["rest"], comments=True)
            cheap = arguments[:1] in ALWAYS or arguments[:2] in ALWAYS
            found.append((arguments, cheap or not said.startswith(MARK)))
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
    assert len(SHOWN) > 60
    assert sum(runs for _, _, runs in SHOWN) >= 35
    assert {page.stem for page, _, runs in SHOWN if runs} >= set(INPUTS)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: " ".join(shown[1])[:60])
def test_every_command_parses(shown: tuple[Path, list[str], bool]) -> None:
    parse(shown[1])


def carry_out(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{' '.join(arguments)}: {done.output}{done.exception}"


@pytest.mark.parametrize("page", sorted({page for page, _, runs in SHOWN if runs}), ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that holds what the page begins with, one after the other."""
    if page.stem == "operators":
        pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    if page.stem in INPUTS:
        INPUTS[page.stem](tmp_path)
    try:
        for arguments, runs in commands(page):
            if runs:
                carry_out(*arguments)
    finally:
        if (tmp_path / "demo-federation").exists():
            CliRunner().invoke(app, DOWN)


LISTED: dict[str, list[str]] = {
    "data synth": ["data synth faces --identities 24 --images 3 --size 32"],
    "data preview": ["data preview --images 4", "data preview faces --images 3 --out faces.png"],
    "plan RECIPE": ["plan smoke", "plan demo"],
    "run RECIPE": ["run smoke --set federation.rounds=2 --set compare=[] --out runs/first"],
    "evaluate MODEL": ["evaluate runs/first --data faces --pairs 100"],
    "embed MODEL": ["embed runs/first --data faces --out faces.safetensors"],
    "cluster FILE": ["cluster faces.safetensors --faces faces --sheets sheets"],
    "report RUN": ["report runs/first"],
    "export FILE": ["export model.safetensors --model runs/first"],
    "study": ["study list", "study plan fedgc/table-5"],
    "deploy, party": [
        "deploy init hosts --recipe smoke --port 0",
        "deploy status hosts",
        "party check hosts/parties/party-00 smoke --set compare=[]",
    ],
    "methods, models": ["methods", "models"],
}
"""What the README lists, as it is tried here."""
WITH_PHOTOS = {"verify A B", "data align"}


def test_every_command_that_the_readme_lists_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need photos are tested where there are some (`tests/cli/test_recognise.py`, `tests/faces`)."""
    block = (ROOT / "README.md").read_text("utf-8").split("## Commands")[1].split("```")[1]
    listed = {re.split(r"\s{2,}", line.removeprefix("fedvisage "))[0] for line in block.strip().splitlines()}
    assert listed == set(LISTED) | WITH_PHOTOS
    pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    for lines in LISTED.values():
        for line in lines:
            carry_out(*shlex.split(line))


def test_commands_within_the_readmes_sentences_parse() -> None:
    text = (ROOT / "README.md").read_text("utf-8").replace("\n", " ")
    found = [re.sub(" +", " ", words) for words in re.findall(r"`fedvisage ([^`]*--[^`]*|run [a-z]+)`", text)]
    assert len(found) >= 3
    for words in found:
        parse(shlex.split(words))


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
