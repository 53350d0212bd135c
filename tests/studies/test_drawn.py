"""People of the generator in the place of real face sets: a study's `synthetic` scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedvisage.build import open_faces
from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.lists import PairList, open_list
from fedvisage.faces.partition import make_partition
from fedvisage.studies import Cell, cells, list_studies, load_study, located
from fedvisage.studies.drawn import DRAWN, LAPTOP, PLANS, draw_set, set_name

STUDIES = [name for name in list_studies() if LAPTOP in load_study(name).scales and name != "domains/synthetic"]


def test_every_laptop_study_has_a_synthetic_scale_under_names_of_its_own() -> None:
    assert len(STUDIES) > 30
    for name in STUDIES:
        study = load_study(name)
        assert DRAWN in study.scales
        heads = [column.head(DRAWN) for column in study.measured(DRAWN)]
        assert heads
        assert all(head.startswith("drawn for: ") for head in heads)
        assert len(heads) == len(study.measured(LAPTOP))


def test_nothing_of_a_synthetic_cell_is_at_a_data_root() -> None:
    for name in STUDIES:
        study = load_study(name)
        for cell in cells(name, DRAWN, [1]):
            sources = cell.recipe.faces.source
            several = (sources,) if isinstance(sources, str) else sources
            assert not [one for one in several if set_name(one) in PLANS]
        data = [measure.data for column in study.measured(DRAWN) if (measure := column.by[DRAWN]).data]
        assert all(one.startswith("@drawn-") for one in data)
        assert not {cell.key for cell in cells(name, LAPTOP, [1])} & {cell.key for cell in cells(name, DRAWN, [1])}


def people_of(cell: Cell) -> tuple[str, str]:
    """What a cell's people depend on."""
    return cell.recipe.faces.model_dump_json(), cell.recipe.partition.model_dump_json()


def test_there_are_people_enough_for_every_study(tmp_path: Path) -> None:
    different = {people_of(cell): cell for name in STUDIES for cell in cells(name, DRAWN, [1])}
    assert len(different) > 10
    for cell in different.values():
        recipe = located(cell.recipe, tmp_path / "data", tmp_path / "nowhere")
        partition = make_partition(
            open_faces(recipe, tmp_path / "cache"), recipe.partition, Streams(1).child("partition")
        )
        assert partition.parties
        assert partition.test or cell.study == "pfm-fv/table-1"


def test_a_drawn_set_has_the_folds_and_bounds_that_are_asked_for(tmp_path: Path) -> None:
    draw_set("lfw112-dev", 32, 4, 12, tmp_path)
    faces, pairs = open_faceset(tmp_path), open_list(tmp_path, "pairs")
    images = np.bincount(faces.labels)
    assert (images.min(), images.max()) == (4, 12)
    assert len(images) == 7 * (8 + 10 + 24 + 16)
    assert isinstance(pairs, PairList)
    assert set(pairs.fold.tolist()) == set(range(1, 8))
    left, right = faces.labels[pairs.left], faces.labels[pairs.right]
    assert np.array_equal(left == right, pairs.same == 1)
    folds = {person: {*pairs.fold[(left == person) | (right == person)].tolist()} for person in range(len(images))}
    assert all(len(own) == 1 for own in folds.values()), "folds share nobody, and everybody is in one"
    with pytest.raises(FedVisageError, match="nobody is drawn in the place of 'lfw'"):
        draw_set("lfw", 32, 1, None, tmp_path)


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a machine without real faces or finished cells."""
    monkeypatch.setenv("FEDVISAGE_DATA", str(tmp_path / "nowhere"))
    return ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work"), "--json"]


def test_without_real_faces_a_laptop_study_runs_on_drawn_people(nothing: list[str]) -> None:
    """The smallest cell that there is, really trained."""
    done = CliRunner().invoke(app, ["study", "run", "fedface/figure-4", "--row", "private-1", *nothing])
    assert done.exit_code == 0, done.output
    assert "no lfw112-dev in" in done.stderr
    assert "drawn people stand in, at scale synthetic" in done.stderr
    shown = json.loads(done.stdout)
    assert shown["scale"] == DRAWN
    assert shown["rows"]["private-1"]
    assert all(0 < score["mean"] < 100 for score in shown["rows"]["private-1"].values())


@pytest.mark.parametrize("name", ["fedface/figure-4", "fedgc/table-2"], ids=["all rows", "but a row that diverges"])
def test_finished_cells_are_shown_without_real_faces(name: str, nothing: list[str]) -> None:
    done = CliRunner().invoke(app, ["study", "run", name, "--work", nothing[3], "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scale"] == LAPTOP
