"""The shape of the package: imports go one way, every module says what it is, and none grows too long."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedvisage

ROOT = Path(fedvisage.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))
EVERYTHING = {
    "config",
    "core",
    "faces",
    "models",
    "losses",
    "training",
    "clustering",
    "evaluation",
    "methods",
    "privacy",
    "federation",
    "report",
}
TOP = {
    "build",
    "cards",
    "chosen",
    "classmap",
    "comparison",
    "costs",
    "deploy",
    "export",
    "pipeline",
    "planning",
    "plugins",
    "protocols",
    "recognise",
    "runfolder",
    "scoring",
    "verdict",
    "studies",
    "work",
}

MAY_IMPORT = {
    "config": {"core.errors"},
    "core": {"core"},
    "faces": {"config", "core"},
    "models": {"core"},
    "losses": {"core"},
    "clustering": {"core"},
    "evaluation": {"core"},
    "training": {"config", "core", "faces", "models", "losses"},
    "privacy": {"core"},
    "federation": {"config", "core", "privacy"},
    "methods": {"config", "core", "faces", "models", "losses", "training", "clustering", "evaluation", "privacy"},
    "report": {"core", "evaluation"},
    **dict.fromkeys(TOP, EVERYTHING | TOP),
    "__init__": EVERYTHING | TOP,
    "cli": EVERYTHING | TOP | {"cli", "__init__"},
    "__main__": {"cli"},
}
"""Who may import whom: the table of the design, with what a folder may import of itself left out."""


def place(path: Path) -> str:
    """The folder (or top-level module) that a file belongs to."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """What a file imports of the package, as dotted names below it, wherever in the file it does so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{name.name}" for name in node.names} if module == "fedvisage" else {module}
    return {name.removeprefix("fedvisage.") for name in found if name.startswith("fedvisage.")}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_in_the_designs_direction(path: Path) -> None:
    home = place(path)
    assert home in MAY_IMPORT, f"{home} has no place in the design's table"
    allowed = MAY_IMPORT[home] | {home}
    against = {
        name
        for name in imports(path)
        if name not in allowed and name.partition(".")[0] not in allowed and not hasattr(fedvisage, f"__{name}__")
    }
    assert not against, f"{name_of(path)} may not import {', '.join(sorted(against))}"


def test_nothing_but_the_command_line_imports_the_command_line() -> None:
    guilty = [
        name_of(p)
        for p in MODULES
        if place(p) not in ("cli", "__main__") and "cli" in {n.partition(".")[0] for n in imports(p)}
    ]
    assert guilty == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring
    assert docstring[0].isupper() or docstring[0] == "`"
    assert docstring.splitlines()[0].endswith((".", "?"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_passes_400_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_pickled_and_no_seed_is_global(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    names = {ast.unparse(call.func) for call in calls}
    assert not names & {"torch.save", "pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "eval", "exec"}
    assert not names & {"torch.manual_seed", "np.random.seed", "random.seed"}
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert all("weights_only=True" in ast.unparse(call) for call in loads)
