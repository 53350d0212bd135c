"""Parts from outside the package: every process that works on a run knows them, or the run says what to do.

The module and the recipe are those that docs/plug-ins.md shows. Runs are in processes of their own, whose registries
begin with what the package has.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from page_inputs import plug_ins
from plugin_processes import fedvisage, script

from fedvisage.core.errors import FedVisageError
from fedvisage.core.plugins import load_plugins, plugin_digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's module and recipe, and a run of them with one worker."""
    made = tmp_path_factory.mktemp("plugins")
    plug_ins(made)
    assert fedvisage(made, "run", "mine.toml", "--set", "federation.workers=1", "--out", "one")[0] == 0
    return made


def model(run: Path) -> str:
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def test_two_workers_give_the_bits_of_one_with_a_method_loss_backbone_and_schedule_of_ones_own(folder: Path) -> None:
    assert fedvisage(folder, "run", "mine.toml", "--set", "federation.workers=2", "--out", "two")[0] == 0
    assert model(folder / "two") == model(folder / "one")
    saved = (folder / "one" / "recipe.toml").read_text()
    assert 'plugins = ["my_parts"]' in saved
    assert "[training.schedule_options]\nlast = 0.5" in saved


def test_a_run_that_was_cut_off_goes_on_and_every_command_knows_the_parts(folder: Path) -> None:
    plan = json.loads(fedvisage(folder, "plan", "mine.toml", "--json")[1])
    assert (plan["method"], plan["backbone"]["parameters"]) == ("half-step", 37_968)
    (folder / "one" / "evaluation.json").unlink()
    assert fedvisage(folder, "run", "mine.toml", "--resume", "--set", "federation.workers=1", "--out", "one")[0] == 0
    assert "half-step" in json.loads(fedvisage(folder, "--plugin", "my_parts", "methods", "--json")[1])
    assert "half-step" in fedvisage(folder, "report", "one")[1] + (folder / "one" / "report.html").read_text()
    scored = fedvisage(folder, "--plugin", "my_parts", "export", "m.safetensors", "--model", "one")
    assert scored[0] == 0, scored


def test_a_module_that_a_script_imports_is_named_in_its_run(folder: Path) -> None:
    text = 'plugins = ["my_parts"]\n'
    (folder / "bare.toml").write_text((folder / "mine.toml").read_text().replace(text, ""))
    code, out = script(
        folder,
        "import my_parts, fedvisage as fv\n"
        'fv.run(fv.load_recipe("bare.toml", {"federation.workers": 2}), out="scripted")',
    )
    assert code == 0, out
    assert model(folder / "scripted") == model(folder / "one")
    assert text.strip() in (folder / "scripted" / "recipe.toml").read_text()


LOSS = """
import fedvisage as fv
from fedvisage.losses import LOSSES, cosface
@LOSSES.register("own")
def own(features, class_embeddings, labels, *, reduction="mean"):
    return cosface(features, class_embeddings, labels, reduction=reduction)
CHANGES = {"training.loss": "own", "compare": [], "federation.rounds": 1, "pretrain.epochs": 1, "evaluation.pairs": 60}
def go(workers):
    fv.run(fv.load_recipe("smoke", CHANGES | {"federation.workers": workers}), out=f"own-{workers}")
"""


def test_a_loss_that_a_script_defines_works_with_two_workers_under_a_guard(tmp_path: Path) -> None:
    code, out = script(tmp_path, f'{LOSS}\nif __name__ == "__main__":\n    go(1), go(2)')
    assert code == 0, out
    assert model(tmp_path / "own-1") == model(tmp_path / "own-2")
    code, out = script(tmp_path, f"{LOSS}\ngo(3)", "unguarded.py")
    assert code == 1
    assert "put what starts the run under `if __name__ == '__main__':`" in out.splitlines()[-1]


def test_a_loss_that_a_notebook_defines_is_said_to_need_a_module(tmp_path: Path) -> None:
    code, out = script(tmp_path, f"{LOSS}\ngo(2)", "")
    assert code == 1
    last = out.splitlines()[-1]
    assert "loss 'own' is defined in __main__, which worker processes (federation.workers = 1 has none)" in last
    assert 'plugins = ["my_parts"]' in last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plugin", "nowhere"], "no plug-in 'nowhere': there is no module 'nowhere' among the installed packages"),
        (["--plugin", "a b"], "no plug-in 'a b': neither a module nor one that is installed"),
        (["--plugin", "broken"], "plug-in 'broken' cannot be imported: ZeroDivisionError"),
        (["--plugin", "twice"], "plug-in 'twice' cannot be imported: ValueError: loss 'cosface' is registered twice"),
    ],
)
def test_a_plug_in_that_is_not_there_or_fails_is_one_line(folder: Path, words: list[str], message: str) -> None:
    (folder / "broken.py").write_text("1 / 0")
    (folder / "twice.py").write_text("from fedvisage.losses import LOSSES\nLOSSES.register('cosface')(print)")
    code, out = fedvisage(folder, "run", "mine.toml", *words, "--out", "none")
    assert (code, len(out.splitlines())) == (2, 1)
    assert message in out
    assert not (folder / "none").exists()


def test_a_package_is_known_by_all_its_files_and_an_installed_one_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, about = tmp_path / "some_parts", tmp_path / "some_parts-1.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "more.py").write_text("")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-parts\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[fedvisage.plugins]\nsome-parts = some_parts.more\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = plugin_digest("some-parts")
    assert plugin_digest("some_parts.more") == plugin_digest("some_parts") == before
    (package / "more.py").write_text("x = 1")
    assert plugin_digest("some-parts") != before
    with pytest.raises(FedVisageError, match="plug-in 'some-parts' cannot be imported: RuntimeError: imported"):
        load_plugins(["some-parts"])
    (package / "__init__.py").write_text("")
    load_plugins(["some-parts"])
    assert sys.modules["some_parts.more"].x == 1
    assert os.environ.get("PYTHONPATH") is None or str(tmp_path) not in os.environ["PYTHONPATH"]


ENDS = """
from fedvisage.core.method import METHODS
from fedvisage.methods.fedavg import FedAvg

@METHODS.register("ends")
class Ends(FedAvg):
    def absorb_train(self, server, result, context):
        if context.round == 2:
            context.end("the budget of two rounds is spent")
        return super().absorb_train(server, result, context)
"""


def test_a_method_that_ends_the_run_is_shown_with_its_reason_and_its_last_round_is_scored(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    changes = ("method.name=ends", "compare=[]", "federation.rounds=9", "federation.workers=1", "evaluation.every=5")
    options = [word for change in changes for word in ("--set", change)]
    code, out = fedvisage(tmp_path, "run", "smoke", "--plugin", "ends", *options, "--out", "run")
    assert code == 0, out
    reason = "ends ended after round 2 of 9: the budget of two rounds is spent"
    page = (tmp_path / "run" / "report.html").read_text()
    assert reason in out
    assert reason in page
    assert "2 of 9" in page
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if row["phase"] == "test"] == [2]
