"""Answers that did not count stand wherever the outcome of a run does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli.main import app
from fedvisage.config import Recipe
from fedvisage.studies import run_cell
from fedvisage.studies.cells import Cell
from fedvisage.studies.definition import home

CHANGES = {
    "partition.groups": {
        "small": {"parties": 2, "identities_per_party": 2},
        "large": {"identities_per_party": 4},
    },
    "federation.guard": {"max_samples": 10},
    "federation.evaluate_every": 0,
}
"""People have three images to train on: the large party has twelve, two more than the guard believes."""
REASON = "samples = 12 is not a count between 1 and 10"
SAID = f"large-00, join: 0 of 1 answer counted (0%); {REASON}"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return tiny_recipe("fedavg", tmp_path / "tiny.toml", CHANGES)


def test_a_run_ends_with_whose_answers_did_not_count(recipe: Recipe, tmp_path: Path) -> None:
    done = fv.run(recipe, out=tmp_path / "run")
    assert str(done).splitlines()[-2:] == ["1 answer did not count:", f"  {SAID}"]
    words = ["run", str(tmp_path / "run" / "recipe.toml"), "--resume", "--out", str(tmp_path / "run")]
    ended = CliRunner().invoke(app, words)
    assert f"1 answer did not count:\n  {SAID}\n" in ended.output
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["absences"]
    assert told == [
        {
            "party": "large-00",
            "phase": "join",
            "counted": 0,
            "asked": 1,
            "reasons": {REASON: 1},
            "kinds": {"count": 1},
            "method": "",
            "share": 0.0,
        }
    ]
    assert "large-00 (0% counted)" in done.report_path.read_text()


def test_a_cell_of_a_study_keeps_whose_answers_did_not_count(recipe: Recipe, tmp_path: Path) -> None:
    cell = Cell("fedgc/table-5", "smoke", "fedpe", 1, recipe, home(), tried=True)
    result = json.loads(run_cell(cell, tmp_path / "work", tmp_path / "results").read_text())
    assert [(one["party"], one["reasons"]) for one in result["absences"]] == [("large-00", {REASON: 1})]
