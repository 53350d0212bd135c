"""Studies: every one runs at its smallest scale, cells are run once and shared, and the table says what they found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedvisage.build import CACHE, START, open_faces
from fedvisage.cli.main import app
from fedvisage.config import load_recipe
from fedvisage.core.codec import load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE
from fedvisage.faces.faceset import FaceSet, write_faceset
from fedvisage.faces.partition import Partition
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.pipeline import run
from fedvisage.protocols import Data, Options, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.studies import (
    SCALES,
    Study,
    cells,
    differences,
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
from fedvisage.studies.people import unpack

STUDIES = list_studies()


def test_there_are_studies() -> None:
    assert "fedgc/table-5" in STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_is_a_valid_recipe_at_every_scale(name: str) -> None:
    study = load_study(name)
    assert "smoke" in study.scales
    assert {"laptop", "paper"} <= set(study.scales) <= set(SCALES) or not any(row.paper for row in study.rows)
    columns = {column.name for column in study.columns}
    for scale in study.scales:
        found = cells(name, scale, [1])
        assert [cell.row for cell in found] == [row.name for row in study.rows] * len(study.variants)
        assert all(set(row.paper) <= columns for row in study.rows)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_its_smallest_scale(name: str, tmp_path: Path) -> None:
    for cell in cells(name, "smoke", [1]):
        run_cell(cell, WORK / "work", WORK / "results")
    study = load_study(name)
    numbers = table(study, "smoke", load_results(name, "smoke", WORK / "results", [1]))
    assert list(numbers) == [row.name for row in study.rows]
    losses = {column.name for column in study.columns if column.unit == "number"}
    shown = [(name, entry.mean) for row in numbers.values() for name, entry in row.items()]
    cosines = {column.name for column in study.measured("smoke") if column.by["smoke"].protocol == "alike"}
    bounds = {name: (-1, 1) if name in cosines else (0, 100) for name, _ in shown}
    within = [bounds[name][0] <= value <= bounds[name][1] for name, value in shown]
    assert all(
        fits or (name in losses and math.isnan(value)) for fits, (name, value) in zip(within, shown, strict=True)
    )
    assert not all(math.isnan(value) for _, value in shown)


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
    assert after["people"].keys() == after["scores"].keys()
    new = ("scores", "people")
    assert {k: v for k, v in after.items() if k not in new} == {k: v for k, v in before.items() if k not in new}


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


def test_a_cell_keeps_what_each_test_person_did_to_its_scores(tmp_path: Path) -> None:
    (one,) = [found for found in cells("fedgc/table-4", "smoke", [1]) if found.row == "fedpe"]
    content = json.loads(run_cell(one, tmp_path / "work", tmp_path / "results").read_text())
    assert content["people"].keys() == content["scores"].keys()
    for kept in content["people"].values():
        assert len(unpack(kept)) == content["test"]["identities"]
    assert len({kept["set"] for kept in content["people"].values()}) == 1
    assert len(json.dumps(content["people"])) < 2000


def test_a_setting_that_is_added_later_leaves_finished_cells_as_they_are(tmp_path: Path) -> None:
    one = cells("fedgc/table-4", "smoke", [1])[0]
    settings = json.loads(json.dumps(one.settings))
    del settings["federation"]["guard"]
    (tmp_path / f"{one.key}.json").write_text(json.dumps(WHOLE | {"settings": settings}))
    assert one.finished(tmp_path)
    settings["federation"]["quorum"] = 0.25
    assert differences(settings, one.settings) == ["federation.quorum"]
    (tmp_path / f"{one.key}.json").write_text(json.dumps(WHOLE | {"settings": settings}))
    assert one.finished(tmp_path) is None


WHOLE: dict[str, Any] = {
    **{"recipe": "0", "seed": 1, "settings": {}, "seconds": 1.0, "bytes": 1, "scores": {"test accuracy": 0.5}},
    **{"rounds": {}, "environment": {"processor": "a processor", "cores": 2, "python": "3.11", "packages": {}}},
}
"""As much as a finished cell must have."""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "Expecting property name"),
        ("[]", "valid dictionary"),
        *((json.dumps({k: v for k, v in WHOLE.items() if k != part}), f"{part}: Field required") for part in WHOLE),
        (json.dumps(WHOLE | {"seed": "x"}), "seed: Input should be a valid integer"),
        (
            json.dumps(WHOLE | {"scores": {"test accuracy": "0.5"}}),
            "scores.test accuracy: Input should be a valid number",
        ),
        (
            json.dumps(WHOLE | {"people": {"test accuracy": {"set": "a", "influence": "1 x"}}}),
            "influence: String should",
        ),
        (json.dumps(WHOLE | {"weighting": {"parties": []}}), "weighting.rounds: Field required"),
    ],
)
def test_a_damaged_cell_is_named_with_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    one = cells("fedgc/table-4", "smoke", [1])[0]
    (tmp_path / f"{one.key}.json").write_text(text)
    with pytest.raises(FedVisageError, match=f"{one.key}.json is damaged") as told:
        load_results("fedgc/table-4", "smoke", tmp_path)
    assert wrong in str(told.value)
    assert "\n" not in str(told.value)


def test_a_folder_of_results_that_is_not_there_is_refused(tmp_path: Path) -> None:
    asked = ["study", "report", "fedgc/table-4", "--results", str(tmp_path / "none"), "--out", str(tmp_path / "page")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code != 0
    assert "no folder of finished cells" in str(done.exception)
    assert not (tmp_path / "page").exists()


def test_a_row_may_change_something_at_one_scale_only() -> None:
    cell = {scale: cells("fedface/table-1", scale, [1])[0].recipe for scale in ("laptop", "smoke")}
    assert cell["laptop"].training.batchnorm == cell["smoke"].training.batchnorm == "fixed"
    with pytest.raises(FedVisageError, match="unknown scale 'lapto'"):
        _with_row("at = { lapto = { seed = 1 } }")


def _with_row(line: str) -> Study:
    with TemporaryDirectory() as name:
        folder = Path(name) / "fedface"
        folder.mkdir()
        (folder / "_base.toml").write_text((home() / "fedface" / "_base.toml").read_text())
        rows = f'title = "t"\nsource = "s"\n[[rows]]\nname = "a"\nlabel = "A"\n{line}\n'
        (folder / "own.toml").write_text(rows)
        return load_study("fedface/own", Path(name))


def test_a_study_may_leave_a_column_of_the_others_unmeasured_at_one_scale() -> None:
    """At that scale, and with the people who are drawn in the place of it."""
    found = _with_row("[unmeasured]\nlaptop = ['IJB-A']")
    whole = _with_row("")
    for scale in ("laptop", "synthetic"):
        names = [column.name for column in whole.measured(scale)]
        assert "IJB-A" in names
        assert [column.name for column in found.measured(scale)] == [name for name in names if name != "IJB-A"]
    assert "IJB-A" in [column.name for column in found.measured("paper")]
    with pytest.raises(FedVisageError, match="speaks of a column 'IJBA': did you mean 'IJB-A'"):
        _with_row("[unmeasured]\nlaptop = ['IJBA']")
    with pytest.raises(FedVisageError, match="unknown scale 'lapto'"):
        _with_row("[unmeasured]\nlapto = ['IJB-A']")


def test_rows_of_one_run_are_scored_with_different_models(tmp_path: Path) -> None:
    """The start, and the personal protocol with the run's model, each party's, and that without its last layer."""
    found = {}
    for cell in cells("fedfr/table-3", "smoke", [1]):
        path = run_cell(cell, WORK / "work", WORK / "results")
        found[cell.row] = path
    assert len(set(found.values())) == 1
    scores = json.loads(next(iter(found.values())).read_text())["scores"]
    metric = "personal TAR@0.1 (clean)"
    assert {metric, f"{metric} of global", f"{metric} of local"} <= set(scores)


def test_pre_training_that_cells_share_is_done_once(tmp_path: Path) -> None:
    by_row = {cell.row: cell for cell in cells("fedface/table-1", "smoke", [5])}
    for row in ("fedavg", "fedface"):
        run_cell(by_row[row], tmp_path / "work", tmp_path / "results")
    (kept,) = (tmp_path / "work" / "starts").iterdir()
    starts = [load_state(tmp_path / "work" / by_row[row].key / START) for row in ("fedavg", "fedface")]
    alone = run(by_row["fedface"].recipe, out=tmp_path / "alone")
    again = load_state(alone.folder / START)
    for name, tensor in load_state(kept)[BACKBONE].items():
        assert all(torch.equal(tensor, start[BACKBONE][name]) for start in (*starts, again))


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


def test_variants_run_every_row_again_and_are_compared_like_with_like(tmp_path: Path) -> None:
    """Two variants whose rows differ by one point each, though the second variant is harder by ten."""
    text = (home() / "fedgc" / "table-4.toml").read_text()
    base = (home() / "fedgc" / "_base.toml").read_text()
    (tmp_path / "fedgc").mkdir()
    (tmp_path / "fedgc" / "twice.toml").write_text(text)
    variants = '[[variants]]\nname = "a"\n\n[[variants]]\nname = "b"\n[variants.recipe.evaluation]\nflip = false\n\n'
    (tmp_path / "fedgc" / "_base.toml").write_text(variants + base)
    made = cells("fedgc/twice", "smoke", [1], tmp_path)
    study = load_study("fedgc/twice", tmp_path)
    assert [cell.variant for cell in made] == ["a"] * len(study.rows) + ["b"] * len(study.rows)
    assert len({cell.key for cell in made}) == 2 * len(study.rows)
    low, high = sorted((row for row in study.rows if "LFW" in row.paper), key=lambda row: row.paper["LFW"])[:2]
    results = {
        row.name: [
            {"seed": 1, "variant": variant, "scores": {"test accuracy": score}, "rounds": {}}
            for variant, score in (("a", 0.8 + better), ("b", 0.7 + better))
        ]
        for row, better in ((low, 0.0), (high, 0.01))
    }
    (found,) = [one for one in orderings(study, "smoke", results, np.random.default_rng(1)) if one.column == "LFW"]
    assert (found.low, found.high, found.seeds, found.variants) == (low.name, high.name, 1, 2)
    assert found.ours == pytest.approx(1.0)
    assert math.isnan(found.spread)


def test_the_personal_protocol_tells_people_too(tmp_path: Path) -> None:
    """Its clean rates: by every person of the run's faces, nobody but those with held-out images moving them."""
    one = next(found for found in cells("fedfr/table-1", "smoke", [1]) if found.recipe.method["name"] == "fedfr")
    content = json.loads(run_cell(one, tmp_path / "work", tmp_path / "results").read_text())
    kept = {key: unpack(value) for key, value in content["people"].items() if "(clean)" in key and "TAR@" in key}
    assert kept
    for key, influence in kept.items():
        assert content["scores"][key] is not None
        assert len(influence) == one.recipe.faces.identities
        assert influence.any()
    folder = tmp_path / "work" / one.key
    options = Options(fars=(0.1,), fpirs=(0.3,), influence=True)
    found = evaluate("personal", Data(folder), open_subject(str(folder)), options)
    held = {name for share in Partition.load(folder / "partition.json").parties.values() for name in share.held_out}
    faces = open_faces(load_recipe(str(folder / "recipe.toml")), folder / CACHE)
    there = np.isin(np.arange(len(faces.names)), faces.labels[sorted(held)])
    for name in ("TAR@0.1 (clean)", "TPIR@0.3 (clean)"):
        assert found.influence[name].any()
        assert not found.influence[name][~there].any()
    assert found.influence["TPIR@0.3 (clean)"].sum() == pytest.approx(0, abs=1e-9)


def test_a_setting_at_its_default_is_no_part_of_a_cells_name() -> None:
    """Nor is what a run keeps beside its result."""
    cell = next(cell for cell in cells("fedfr/table-1", "laptop", [1]) if cell.row == "central")

    def key(method: dict[str, Any], choose: str = "") -> str:
        evaluation = cell.recipe.evaluation.model_copy(update={"choose": choose})
        parts = {"method": {"name": "central", **method}, "evaluation": evaluation}
        return replace(cell, recipe=cell.recipe.model_copy(update=parts)).key

    assert key({}) == key({"losses_of": []}) == key({}, "tar@0.01")
    assert key({"losses_of": ["webcam"]}) != key({})
