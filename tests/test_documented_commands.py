"""Every command that the documents show is run: long ones shortened as their page says, studies on finished cells."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from committed_cells import lacking
from page_inputs import INPUTS, ROOT
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.planning import make_plan
from fedvisage.studies import cells

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = (
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?"
    r"(?:fedvisage|python3?|pip|uv|make|git|docker|curl|wget|sudo|systemctl|pytest|ruff|mypy|mkdocs|pre-commit)\s+\S|\./\w"
)
COMMAND = re.compile(
    r"^ *```(?P<kind>\w*)[^\n]*\n(?P<fenced>.*?)^ *```$"
    rf"|^ {{4,}}(?:\$ )?(?P<indented>(?:{PROGRAM})[^\n]*)$"
    rf"|`(?P<inline>(?:{PROGRAM})[^`]*)`",
    re.DOTALL | re.MULTILINE,
)
SHELLS = ("bash", "sh")
SHORTER = re.compile(r"the tests add `(?P<rest>[^`]*)`")
"""In the line above commands that would take long: what makes them short."""
FEW_PEOPLE = (
    "--fresh --set seed=1 --set faces.seed=1 --set faces.size=32 --set faces.identities=40"
    " --set faces.images_per_identity=4 --set partition.test=20 --set partition.validation=0"
    " --set partition.identities_per_party=4"
    " --set federation.rounds=1 --set evaluation.pairs=100"
)
ALSO_SHORTER = {
    "fedvisage run demo": f"{FEW_PEOPLE} --set partition.public=4 --set partition.parties=2"
    " --set pretrain.epochs=1 --set compare=[]",
    "fedvisage run calibration": FEW_PEOPLE,
    "fedvisage methods --measure": "--only fedavg",
}
"""The same for pages that do not speak of tests: the README, and one that is generated."""
NOT_RUN = {
    "git clone": "takes the network, and what it would fetch is what is being tested",
    "pip install": "`make setup`, which `.ci/run` begins with, installs the same extras, pinned",
    "pre-commit install": "changes the clone; what its hooks run is in `make test`",
    "make setup": "part of every other `make`",
    "make test": "in `.ci/run`",
    "make docs": "in `.ci/run`",
    "make smoke": "in `.ci/run`",
    "make demo": "three minutes; `make smoke` is the same in seconds",
    "make bench": "ten minutes; `.ci/run` has all of it with `--smoke`",
    "python tests/freeze.py": "minutes on two commits; `tests/test_freeze.py` does the same with the committed table",
    "python -m benchmarks": "minutes; `.ci/run` has each of them with `--smoke`",
    "FEDVISAGE_CASES=20 .venv/bin/pytest": "`make test` has the same with fewer cases",
    "./start": "these scripts are started by `tests/nvflare`",
    "docker compose": "no container is started, as the page says; `tests/cli` compares the file",
    "fedvisage run RECIPE --on FOLDER": "takes hosts; the operators' page has the same on one machine, which is run",
    "fedvisage study run fedgc/table-5 --scale paper": "GPUs for days; `tests/test_three_commands.py` runs it small",
}
"""By how they begin, with the reason."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""As `conftest.py` has it: tests run side by side."""
DOWN = ["deploy", "down", "demo-federation"]


class Shown(NamedTuple):
    """A command, without its comment, in a line of its own or within a sentence."""

    page: Path
    words: str
    inline: bool
    shorter: str

    @property
    def arguments(self) -> list[str]:
        """What follows the program's name."""
        return [*shlex.split(self.words)[1:], *shlex.split(self.shorter)]

    @property
    def runs(self) -> bool:
        """Whether it is run here: not what is excepted, nor a mere name of a command that takes arguments."""
        return not self.words.startswith(tuple(NOT_RUN)) and not (self.inline and self.names_a_command)

    @property
    def names_a_command(self) -> bool:
        if not self.words.startswith("fedvisage "):
            return False
        command, rest = find(self.arguments)
        return not rest and (hasattr(command, "commands") or any(one.required for one in command.params))


def listing() -> str:
    """The README's list of commands, which has words beside them."""
    return README.read_text("utf-8").split("## Commands")[1].split("```")[1]


def commands(page: Path) -> list[Shown]:
    """What a page shows, from top to bottom."""
    found, text = [], page.read_text("utf-8").replace(listing(), "\n")
    for match in COMMAND.finditer(text):
        lines = [match["inline"] or match["indented"]]
        if match["fenced"] is not None:
            lines = match["fenced"].replace("\\\n", " ").splitlines()
        before = (line for line in reversed(text[: match.start()].splitlines()) if line.strip())
        shorter = SHORTER.search(next((line for line in before if not line.startswith(("    ", "```", "$ "))), ""))
        for line in map(str.strip, lines):
            if line.startswith("$ ") or re.match(PROGRAM, line) or (line and match["kind"] in SHELLS):
                words = " ".join(re.split(r"\s#", line.removeprefix("$ "))[0].split())
                also = [rest for begin, rest in ALSO_SHORTER.items() if words.startswith(begin)]
                if shorter and words.startswith("fedvisage run "):
                    also = [shorter["rest"]]
                found.append(Shown(page, words, bool(match["inline"]), " ".join(also)))
    return found


def find(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command, or group of commands, that arguments name, and what it is given."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments:
        name, *arguments = arguments
        assert name in command.commands, f"no command '{name}'"
        command = command.commands[name]
    return command, arguments


SHOWN = [shown for page in PAGES for shown in commands(page)]


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 120
    assert {shown.page.stem.lower() for shown in SHOWN} >= set(INPUTS)


def test_commands_are_found_wherever_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Say `fedvisage\nmodels` or `make it`, not `models`.\n\n    fedvisage methods  # all\n    what it prints\n\n"
        "```console\n$ frobnicate 1\nprinted\n```\n-\n  ```bash\n  fedvisage run \\\n  smoke\n  frobnicate 2\n  ```\n"
        "*Long; the tests add `--set seed=2`.*\n\n    $ fedvisage run demo\n"
    )
    assert [" ".join((shown.words, shown.shorter)).strip() for shown in commands(page)] == [
        *("fedvisage models", "make it", "fedvisage methods", "frobnicate 1", "fedvisage run smoke", "frobnicate 2"),
        "fedvisage run demo --set seed=2",
    ]


def test_every_command_is_run_or_has_a_reason_not_to_be() -> None:
    ours = ("fedvisage", "python")
    assert {shown.words for shown in SHOWN if shown.runs and shown.words.split()[0] not in ours} == set()
    unused = [begin for begin in NOT_RUN if not any(shown.words.startswith(begin) for shown in SHOWN)]
    assert not unused, "excepted and nowhere shown"


def test_what_continuous_integration_is_said_to_run_is_there() -> None:
    steps = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert {"make test", "make docs", "make smoke", ".venv/bin/python -m benchmarks --smoke"} <= set(steps)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for words in (shown.words.split() for shown in SHOWN):
        assert words[0] != "make" or words[1] in targets
        if words[:3] == ["python", "-m", "benchmarks"]:
            names = {word for word in words[3:] if word != "--full"}
            assert names <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


@pytest.mark.parametrize(
    "shown", [shown for shown in SHOWN if shown.words.startswith("fedvisage ")], ids=lambda shown: shown.words[:70]
)
def test_every_command_parses(shown: Shown) -> None:
    command, rest = find(shown.arguments)
    if not (shown.inline and shown.names_a_command):
        command.make_context(command.name, rest)


def carry_out(*arguments: str) -> None:
    if arguments[:2] == ("study", "run"):
        names = [*takewhile(lambda word: not word.startswith("--"), arguments[2:])]
        options = dict(pairwise(arguments))
        scale, seeds = options.get("--scale", "laptop"), range(1, int(options.get("--seeds", "1")) + 1)
        for name in names if scale != "smoke" else ():
            assert lacking(name, scale, seeds) == {}, "it would train for long"
    done = CliRunner().invoke(app, arguments)
    answers = (0, 1) if arguments[0] in ("verify", "identify") else (0,)
    assert done.exit_code in answers, f"{' '.join(arguments)}: {done.output}{done.exception}"
    assert done.exit_code == 0 or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("page", dict.fromkeys(shown.page for shown in SHOWN if shown.runs), ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that holds what the page begins with, one after the other."""
    if page.stem in ("operators", "evaluation"):
        pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # plug-ins of one page are not another's
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    if page.stem.lower() in INPUTS:
        INPUTS[page.stem.lower()](tmp_path)
    try:
        for shown in commands(page):
            if shown.runs and shown.words.startswith("fedvisage "):
                carry_out(*shown.arguments)
            elif shown.runs:
                command = [sys.executable, *shown.arguments]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | ONE_THREAD)
    finally:
        sys.modules.pop("my_parts", None)
        if (tmp_path / "demo-federation").exists():
            CliRunner().invoke(app, DOWN)


LISTED: dict[str, list[str]] = {
    "data align": ["data align photos --out aligned"],
    "data synth": ["data synth faces --identities 24 --images 3 --size 32"],
    "data preview": ["data preview --images 4", "data preview faces --images 3 --out faces.png"],
    "plan RECIPE": ["plan smoke", "plan demo"],
    "run RECIPE": ["run smoke --set federation.rounds=2 --set compare=[] --out runs/first"],
    "evaluate MODEL": ["evaluate runs/first --data faces --pairs 100"],
    "embed MODEL": ["embed runs/first --data faces --out faces.safetensors"],
    "cluster FILE": ["cluster faces.safetensors --faces faces --sheets sheets"],
    "report RUN": ["report runs/first"],
    "verify A B": ["verify photos/a.jpg photos/b.jpg"],
    "centre MODEL": ["centre runs/first --data faces --name others --out centred.safetensors"],
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


def test_every_command_that_the_readme_lists_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listing().strip().splitlines()
    assert {re.split(r"\s{2,}", line.removeprefix("fedvisage "))[0] for line in lines} == set(LISTED)
    pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    INPUTS["readme"](tmp_path)
    for tried in LISTED.values():
        for line in tried:
            carry_out(*shlex.split(line))


def test_the_readme_reproduces_a_table_in_three_commands() -> None:
    """Two of them run above; of the third every cell can be planned, and takes the faces that the first brings in."""
    block = README.read_text("utf-8").split("## Studies")[1].split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.strip().splitlines()]
    assert len(lines) == 3
    study, scale = lines[2][3], lines[2][lines[2].index("--scale") + 1]
    assert (study, scale) == ("fedgc/table-5", "paper")
    cell = cells(study, scale, [1])[0]
    assert cell.recipe.faces.source == lines[0][lines[0].index("--out") + 1]
    assert make_plan(cell.recipe)["compute"]["gpu_hours"]["V100"] > 1
