"""Every command that the documents show is run: long ones shortened as their page says, studies on finished cells."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from pathlib import Path

import click
import pytest
import typer
from page_inputs import INPUTS
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.planning import make_plan
from fedvisage.studies import cells, chosen_cells, load_study, results_home, tried_cells

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "papers").glob("*.md")])
COMMAND = re.compile(r"^(?:    |\$ )fedvisage (?P<rest>.*)$")
SHORTER = re.compile(r"the tests add `(?P<rest>[^`]*)`")
"""In the line above commands that would take long: what makes them short."""
INLINE = re.compile(r"`fedvisage (?P<rest>study (?:run|report|plan) [^`]*)`")
DOWN = ["deploy", "down", "demo-federation"]


def commands(page: Path) -> list[list[str]]:
    """The arguments of each command that a page shows."""
    found, said, text = [], "", page.read_text("utf-8")
    for line in text.splitlines():
        match = COMMAND.match(line)
        if match:
            shorter = SHORTER.search(said)
            arguments = shlex.split(match["rest"], comments=True)
            runs = arguments[:1] == ["run"] and shorter is not None
            found.append(arguments + (shlex.split(shorter["rest"]) if runs and shorter else []))
        elif line.strip() and not line.startswith(("    ", "```", "$ ")):
            said = line
    return found + [shlex.split(words) for words in INLINE.findall(" ".join(text.split())) if words.isascii()]


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


SHOWN = [(page, arguments) for page in PAGES for arguments in commands(page)]


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 70
    assert {page.stem for page, _ in SHOWN} >= set(INPUTS)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: " ".join(shown[1])[:60])
def test_every_command_parses(shown: tuple[Path, list[str]]) -> None:
    parse(shown[1])


def carry_out(*arguments: str) -> None:
    if arguments[:2] == ("study", "run"):
        names = [*takewhile(lambda word: not word.startswith("--"), arguments[2:])]
        options = dict(pairwise(arguments))
        check_finished(names, options.get("--scale", "laptop"), int(options.get("--seeds", "1")))
    done = CliRunner().invoke(app, arguments)
    answers = (0, 1) if arguments[0] in ("verify", "identify") else (0,)
    assert done.exit_code in answers, f"{' '.join(arguments)}: {done.output}{done.exception}"
    assert done.exit_code == 0 or isinstance(done.exception, SystemExit)


def check_finished(names: list[str], scale: str, seeds: int) -> None:
    """That the cells of a study on real faces are in the repository, with every score that its columns ask for."""
    for name in names if scale != "smoke" else ():
        study = load_study(name)
        lost = {row.name for row in study.rows if row.diverges(scale)}
        wanted = [*tried_cells(name, scale), *chosen_cells(name, scale, range(1, seeds + 1), results_home())]
        for cell in (cell for cell in wanted if cell.row not in lost):
            found = cell.finished(results_home())
            assert found is not None, f"{name} at {scale} scale, {cell.row}, seed {cell.seed} is not finished"
            keys = {measure.key for measure in study.measures(scale, cell.row).values()}
            assert found.get("diverged") or keys <= found["scores"].keys()


@pytest.mark.parametrize("page", sorted({page for page, _ in SHOWN}), ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that holds what the page begins with, one after the other."""
    if page.stem == "operators":
        pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    if page.stem in INPUTS:
        INPUTS[page.stem](tmp_path)
    try:
        for arguments in commands(page):
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
