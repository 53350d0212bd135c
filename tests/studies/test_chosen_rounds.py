"""The chosen round in a study: protocols score its models, tries are not measured, and a cell is of one model."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedvisage.chosen import CHOSEN, chosen_round
from fedvisage.protocols import Data, Options, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.studies import Cell, cells, load_results, load_study, run_cell, table, tried_cells
from fedvisage.studies.numbers import at_best

OWN = "personal TAR@0.1 (clean)"


def cell_of(name: str, row: str) -> Cell:
    return next(cell for cell in cells(name, "smoke", [1]) if cell.row == row)


def content(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 3's three models of one run, and a row of Table 2 whose parties go on after the last round."""
    folder = tmp_path_factory.mktemp("studies")
    for cell in [*cells("fedfr/table-3", "smoke", [1]), cell_of("fedfr/table-2", "fine-tune")]:
        run_cell(cell, folder / "work", folder / "results")
    return folder


def test_protocols_score_the_models_of_the_chosen_round(place: Path) -> None:
    key = cell_of("fedfr/table-3", "personal").key
    kept, result = chosen_round(place / "work" / key), content(place / "results" / f"{key}.json")
    assert kept is not None
    assert (result["chosen"]["round"], result["chosen"]["by"]) == (kept["round"], "tar@0.1")
    models = place / "work" / key / CHOSEN
    for of, which in (("", "own"), (" of local", "local"), (" of global", "global")):
        options = Options(fars=(0.1,), pairs=0, which=which)  # type: ignore[arg-type]
        found = evaluate("personal", Data(models), open_subject(str(models)), options).metrics["TAR@0.1 (clean)"]
        assert result["chosen"]["scores"][f"{OWN}{of}"] == pytest.approx(found, abs=1e-6)


def test_each_row_has_the_score_of_its_own_model(place: Path) -> None:
    study = load_study("fedfr/table-3")
    numbers = table(study, "smoke", load_results("fedfr/table-3", "smoke", place / "results", [1]))
    scores = content(place / "results" / f"{cell_of('fedfr/table-3', 'personal').key}.json")["chosen"]["scores"]
    for row in study.rows:
        key = OWN + (f" of {row.of}" if row.of else "")
        assert numbers[row.name]["personal 1:1 @1e-5"].chosen == pytest.approx(100 * scores[key])


def test_models_that_are_trained_after_the_last_round_have_no_earlier_one(place: Path) -> None:
    cell = cell_of("fedfr/table-2", "fine-tune")
    result = content(place / "results" / f"{cell.key}.json")
    assert result["chosen"]["scores"] == {OWN: None}
    (column,) = [column for column in load_study("fedfr/table-2").measured("smoke") if "personal" in column.name]
    assert math.isnan(at_best(result, column, column.by["smoke"], "tar@0.1"))


def test_a_round_chosen_by_another_score_is_not_shown(place: Path) -> None:
    result = content(place / "results" / f"{cell_of('fedfr/table-3', 'personal').key}.json")
    (column,) = [column for column in load_study("fedfr/table-3").measured("smoke") if "personal" in column.name]
    assert not math.isnan(at_best(result, column, column.by["smoke"], "tar@0.1"))
    assert math.isnan(at_best(result, column, column.by["smoke"], "accuracy"))
    assert math.isnan(at_best(result, column, column.by["smoke"], ""))


def test_a_try_is_measured_once_it_is_chosen(tmp_path: Path) -> None:
    """It keeps its validation scores; the columns are filled from the same run, without training again."""
    tried = next(cell for cell in tried_cells("fedface/table-1", "smoke") if cell.row == "fedface")
    path = run_cell(tried, tmp_path / "work", tmp_path / "results")
    before = content(path)
    assert before["scores"] == {}
    assert before["rounds"]["validation"]
    chosen = next(
        cell
        for rate in (0.3, 1.0, 3.0)
        for cell in cells("fedface/table-1", "smoke", [1], rates={("fedface", 1, ""): rate})
        if cell.key == tried.key
    )
    run_cell(chosen, tmp_path / "work", tmp_path / "results")
    after = content(path)
    assert after["scores"].keys() == {measure.key for measure in chosen.measures}
    assert after["seconds"] == before["seconds"]


@pytest.mark.parametrize("otherwise", ["", "curve", "score"])
def test_a_cell_that_is_trained_again_holds_the_scores_of_one_model(
    place: Path, tmp_path: Path, otherwise: str
) -> None:
    """Where the run comes out as before, its other scores are still its own; else all are taken anew."""
    cell = cell_of("fedfr/table-3", "personal")
    whole = content(place / "results" / f"{cell.key}.json")
    own = {measure.key: whole["scores"][measure.key] for measure in cell.measures}
    kept = {**whole, "scores": {"of another study": 0.5}}
    if otherwise == "curve":
        kept["rounds"] = {**whole["rounds"], "test": [{**whole["rounds"]["test"][0], "tar@0.1": 0.123}]}
    elif otherwise:
        kept["scores"] |= {"test tar@0.1": 0.123}
    (tmp_path / "results").mkdir()
    path = tmp_path / "results" / f"{cell.key}.json"
    path.write_text(json.dumps(kept))
    run_cell(cell, tmp_path / "work", tmp_path / "results")
    again = content(path)
    assert again["rounds"] == whole["rounds"]
    assert again["scores"] == own | ({} if otherwise else {"of another study": 0.5})


def test_a_run_begun_before_is_gone_on_with(place: Path, tmp_path: Path) -> None:
    """Runs of an earlier version, or of another study, may have chosen by something else, or not at all."""
    cell = cell_of("fedfr/table-3", "personal")
    shutil.copytree(place / "work", tmp_path / "work")
    recipe = tmp_path / "work" / cell.key / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('choose = "tar@0.1"', 'choose = ""'))
    shutil.rmtree(tmp_path / "work" / cell.key / CHOSEN)
    result = content(run_cell(cell, tmp_path / "work", tmp_path / "results"))
    assert result["scores"][OWN] is not None
    assert "chosen" not in result


@pytest.mark.parametrize("before", [None, {"round": 99, "by": "accuracy", "scores": {OWN: 0.5}}], ids=["null", "other"])
def test_a_round_chosen_otherwise_before_is_forgotten(place: Path, tmp_path: Path, before: Any) -> None:
    cell = cell_of("fedfr/table-3", "personal")
    shutil.copytree(place, tmp_path / "place")
    path = tmp_path / "place" / "results" / f"{cell.key}.json"
    whole = content(path)
    path.write_text(json.dumps({**whole, "chosen": before}))
    run_cell(cell, tmp_path / "place" / "work", tmp_path / "place" / "results")
    again = content(path)["chosen"]
    assert (again["round"], again["by"]) == (whole["chosen"]["round"], "tar@0.1")
    assert again["scores"] == {OWN: whole["chosen"]["scores"][OWN]}


def test_a_start_is_the_same_in_every_round(tmp_path: Path) -> None:
    """Shown beside rows with a chosen round, and not without them."""
    for cell in cells("fedface/table-1", "smoke", [1]):
        if cell.row in ("pre-trained", "fedface"):
            run_cell(cell, tmp_path / "work", tmp_path / "results")
    study = load_study("fedface/table-1")
    found = load_results("fedface/table-1", "smoke", tmp_path / "results", [1])
    both = table(study, "smoke", found)
    assert both["pre-trained"]["IJB-C"].chosen == both["pre-trained"]["IJB-C"].mean
    alone = table(study, "smoke", {"pre-trained": found["pre-trained"]})
    assert math.isnan(alone["pre-trained"]["IJB-C"].chosen)


def test_a_row_without_a_global_model_has_no_chosen_round(tmp_path: Path) -> None:
    cell = cell_of("fedfr/table-3", "personal")
    alone = replace(cell, recipe=cell.recipe.model_copy(update={"method": {"name": "alone"}}))
    result = content(run_cell(alone, tmp_path / "work", tmp_path / "results"))
    assert result["scores"]["test tar@0.1"] is not None
    assert "chosen" not in result
