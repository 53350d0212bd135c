"""Studies: every one runs at its smallest scale, cells are run once and shared, and the table says what they found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import FaceSet, write_faceset
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.studies import (
    SCALES,
    Column,
    Entry,
    Measure,
    Row,
    Study,
    cells,
    home,
    list_studies,
    load_results,
    load_study,
    located,
    merged,
    orderings,
    run_cell,
    table,
)

STUDIES = list_studies()


def test_there_are_studies() -> None:
    assert "fedgc/table-5" in STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_is_a_valid_recipe_at_every_scale(name: str) -> None:
    study = load_study(name)
    assert {"laptop", "paper", "smoke"} == set(study.scales) == set(SCALES)
    columns = {column.name for column in study.columns}
    for scale in SCALES:
        found = cells(name, scale, [1])
        assert [cell.row for cell in found] == [row.name for row in study.rows]
        assert all(set(row.paper) <= columns for row in study.rows)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_its_smallest_scale(name: str, tmp_path: Path) -> None:
    for cell in cells(name, "smoke", [1]):
        run_cell(cell, WORK / "work", WORK / "results")
    study = load_study(name)
    numbers = table(study, "smoke", load_results(name, "smoke", WORK / "results", [1]))
    assert list(numbers) == [row.name for row in study.rows]
    assert all(0 <= entry.mean <= 100 for row in numbers.values() for entry in row.values())


WORK = Path()


@pytest.fixture(scope="module", autouse=True)
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for all studies: a cell that two of them share is trained once."""
    global WORK
    WORK = tmp_path_factory.mktemp("studies")


def test_cells_of_the_same_recipe_have_one_key_whatever_study_they_are_in() -> None:
    five = {cell.row: cell.key for cell in cells("fedgc/table-5", "laptop", [1])}
    four = {cell.row: cell.key for cell in cells("fedgc/table-4", "laptop", [1])}
    two = {cell.row: cell.key for cell in cells("fedgc/table-2", "laptop", [1])}
    assert five["softmax-fedpe"] == four["fedpe"]
    assert five["softmax-fedgc"] == four["fedgc"] == two["lambda-20"]
    assert len(set(five.values())) == len(five)


def test_another_seed_is_another_cell() -> None:
    one, two = (cells("fedgc/table-4", "smoke", [seed])[0].key for seed in (1, 2))
    assert one != two


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    cell = cells("fedgc/table-4", "smoke", [3])[0]
    path = run_cell(cell, tmp_path / "work", tmp_path / "results")
    content = json.loads(path.read_text())
    assert (content["row"], content["seed"], content["recipe"]) == (cell.row, 3, cell.key)
    path.write_text(json.dumps(content | {"marked": True}))
    run_cell(cell, tmp_path / "work", tmp_path / "results")
    assert json.loads(path.read_text())["marked"]


def test_a_finished_cell_is_scored_by_what_another_study_measures_without_training_again(tmp_path: Path) -> None:
    """A face folder for a protocol, and the same cell in a study with one more column."""
    synthetic = SyntheticFaces(seed=5, identities=20, images_per_identity=2, size=32)
    names = tuple(f"p{number}" for number in range(20))
    write_faceset(tmp_path / "others", FaceSet(synthetic, np.asarray(synthetic.labels), names))
    base = (home() / "fedgc" / "_base.toml").read_text()
    column = f"""
[[columns]]
name = "others"

[columns.by.smoke]
protocol = "all-pairs"
data = "{tmp_path / "others"}"
metric = "TAR@0.1"
what = "other synthetic faces"
"""
    folder = tmp_path / "studies"
    (folder / "fedgc").mkdir(parents=True)
    for name, text in (("plain", base), ("wider", column + base)):
        rows = 'title = "t"\nsource = "s"\n[[rows]]\nname = "fedpe"\nlabel = "FedPE"\n'
        (folder / "fedgc" / f"{name}.toml").write_text(rows + text)
    plain, wider = (cells(f"fedgc/{name}", "smoke", [1], folder)[0] for name in ("plain", "wider"))
    assert plain.key == wider.key
    before = json.loads(run_cell(plain, tmp_path / "work", tmp_path / "results").read_text())
    after = json.loads(run_cell(wider, tmp_path / "work", tmp_path / "results").read_text())
    key = f"all-pairs {tmp_path / 'others'} TAR@0.1"
    assert after["scores"].keys() - before["scores"].keys() == {key}
    assert 0 <= after["scores"][key] <= 1
    assert {k: v for k, v in after.items() if k != "scores"} == {k: v for k, v in before.items() if k != "scores"}


def test_a_column_whose_faces_are_not_there_is_left_open(tmp_path: Path) -> None:
    base = (home() / "fedgc" / "_base.toml").read_text()
    column = '[[columns]]\nname = "x"\n[columns.by.smoke]\nprotocol = "lfw"\ndata = "nowhere"\nwhat = "x"\n'
    rows = 'title = "t"\nsource = "s"\n[[rows]]\nname = "fedpe"\nlabel = "FedPE"\n'
    (tmp_path / "fedgc").mkdir()
    (tmp_path / "fedgc" / "open.toml").write_text(rows + column + base)
    (cell,) = cells("fedgc/open", "smoke", [1], tmp_path)
    result = json.loads(run_cell(cell, tmp_path / "work", tmp_path / "results").read_text())
    assert "lfw nowhere accuracy" not in result["scores"]
    entry = table(load_study("fedgc/open", tmp_path), "smoke", {"fedpe": [result]})["fedpe"]["x"]
    assert math.isnan(entry.mean)


def test_parts_that_are_named_anew_replace_those_below() -> None:
    below: dict[str, Any] = {"method": {"name": "fedpe", "embeddings": "fixed"}, "training": {"loss": "softmax"}}
    above = {"method": {"name": "fedgc"}, "training": {"epochs": 2}}
    assert merged(below, above) == {"method": {"name": "fedgc"}, "training": {"loss": "softmax", "epochs": 2}}


def result(score: float, validation: list[float], test: list[float]) -> dict[str, Any]:
    rounds = {"validation": validation, "test": test}
    curves = {name: [{"round": i, "accuracy": v} for i, v in enumerate(values)] for name, values in rounds.items()}
    return {"scores": {"test accuracy": score}, "rounds": curves}


STUDY = Study(
    title="t",
    source="s",
    columns=(Column(name="LFW", by={"laptop": Measure(what="faces")}), Column(name="other", by={})),
    scales={},
    rows=(
        Row(name="a", label="A", paper={"LFW": 90.0}),
        Row(name="b", label="B", paper={"LFW": 95.0}),
        Row(name="c", label="C", paper={"LFW": 99.0}, group="other"),
    ),
)


def test_the_table_has_mean_spread_and_the_round_that_validation_people_chose() -> None:
    results = {"a": [result(0.5, [0.1, 0.9, 0.2], [0.3, 0.4, 0.5]), result(0.7, [0.9, 0.1, 0.1], [0.6, 0.5, 0.7])]}
    assert set(table(STUDY, "laptop", results)["a"]) == {"LFW"}
    entry = table(STUDY, "laptop", results)["a"]["LFW"]
    assert entry.seeds == 2
    assert entry.mean == pytest.approx(60.0)
    assert entry.spread == pytest.approx(math.sqrt(2) * 10)
    assert entry.chosen == pytest.approx((40 + 60) / 2)


def test_orderings_are_compared_within_a_group_only() -> None:
    numbers = {row: {"LFW": Entry(3, mean, 1.0, math.nan)} for row, mean in (("a", 80.0), ("b", 79.0), ("c", 50.0))}
    (pair,) = orderings(STUDY, numbers)
    assert (pair["low"], pair["high"], pair["agrees"], pair["clear"]) == ("a", "b", False, False)
    assert pair["ours"] == pytest.approx(-1.0)
    assert pair["spread"] == pytest.approx(math.sqrt(2))


def test_a_missing_face_set_says_where_it_was_looked_for(tmp_path: Path) -> None:
    recipe = cells("fedgc/table-4", "laptop", [1])[0].recipe
    with pytest.raises(FedVisageError, match="no face set 'lfw112-dev'"):
        located(recipe, tmp_path / "imported", tmp_path / "nothing")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(FedVisageError, match="did you mean 'fedgc/table-5'"):
        load_study("fedgc/table5")
    with pytest.raises(FedVisageError, match="no scale 'laptopp'"):
        cells("fedgc/table-5", "laptopp", [1])


def test_the_command_runs_and_shows_a_study(tmp_path: Path) -> None:
    options = ["--scale", "smoke", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(
        app, ["study", "run", "fedgc/table-4", "--row", "fedpe", "--work", str(tmp_path / "work"), *options]
    )
    assert done.exit_code == 0, done.output
    assert "94.77" in done.output
    shown = CliRunner().invoke(app, ["study", "report", "fedgc/table-4", "--json", *options])
    assert set(json.loads(shown.output)["rows"]) == {"fedpe"}
    listed = CliRunner().invoke(app, ["study", "list"])
    assert "fedgc/table-5" in listed.output
