"""Cells that begin with another row's model, face sets at another size, and what people do to a domain's scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedvisage.config import Evaluation
from fedvisage.core.codec import load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, FaceSet, open_faceset
from fedvisage.models import load_model
from fedvisage.scoring import open_test
from fedvisage.studies import cells, home, located, run_cell
from fedvisage.studies.people import test_influence as influence_of

ROWS = """
title = "t"
source = "s"
[[rows]]
name = "later"
label = "Later"
[[rows]]
name = "first"
label = "First"
[rows.recipe.training]
learning_rate = 0.01
"""


def study(folder: Path, start: str) -> Path:
    (folder / "x").mkdir(parents=True)
    base = (home() / "fedgc" / "_base.toml").read_text()
    (folder / "x" / "_base.toml").write_text(base)
    (folder / "x" / "y.toml").write_text(f'{ROWS}\n[scales.smoke.backbone]\nstart = "{start}"\n')
    return folder


def test_a_cell_begins_with_the_model_of_the_row_it_names(tmp_path: Path) -> None:
    later, first = cells("x/y", "smoke", [1], study(tmp_path / "studies", "@first"))
    assert (later.start, first.start, first.recipe.backbone.start) == (first, None, None)
    run_cell(later, tmp_path / "work", tmp_path / "results")
    model = load_model(tmp_path / "work" / first.key / "model.safetensors")
    begin = load_state(tmp_path / "work" / later.key / "start.safetensors")["backbone"]
    assert all(np.array_equal(model.state_dict()[name].numpy(), tensor.numpy()) for name, tensor in begin.items())
    assert [path.stem for path in (tmp_path / "results").glob("*.json")] == [later.key]
    done = (tmp_path / "work" / first.key / "metrics.jsonl").stat().st_mtime_ns
    result = json.loads(run_cell(first, tmp_path / "work", tmp_path / "results").read_text())
    assert result["row"] == "first"
    assert (tmp_path / "work" / first.key / "metrics.jsonl").stat().st_mtime_ns == done, "it was trained already"


def test_the_key_of_a_cell_depends_on_the_cell_it_begins_with(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies", "@first")
    before = cells("x/y", "smoke", [1], folder)[0].key
    path = folder / "x" / "y.toml"
    path.write_text(path.read_text().replace("0.01", "0.02"))
    assert cells("x/y", "smoke", [1], folder)[0].key != before


def test_a_start_that_is_no_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="row 'later' starts from no row of it: did you mean 'first'"):
        cells("x/y", "smoke", [1], study(tmp_path / "studies", "@fist"))


def test_a_face_set_is_imported_at_the_size_it_is_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for person in ("Ann_A", "Bob_B"):
        (tmp_path / "data" / "faces" / person).mkdir(parents=True)
        for number in range(2):
            picture = Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8))
            picture.save(tmp_path / "data" / "faces" / person / f"{number}.png")
    recipe = cells("fedgc/table-4", "smoke", [1])[0].recipe
    recipe = recipe.model_copy(update={"faces": recipe.faces.model_copy(update={"source": "@faces@24"})})
    found = located(recipe, tmp_path / "imported", tmp_path / "data").faces.source
    assert open_faceset(Path(str(found))).images.read(np.array([0])).shape == (1, 24, 24, 3)
    assert Path(str(found)).name == "faces"


@pytest.mark.parametrize("metric", ["a tar@0.1", "b tar@0.1", "a rank-1", "b rank-1"])
def test_a_domains_score_depends_on_its_own_people_as_if_they_were_alone(metric: str) -> None:
    """Influences are nought for the others, add up to nought, and are those of the score over the domain alone."""
    labels = np.repeat(np.arange(7), 5)
    domain = (labels >= 4).astype(np.int64)
    faces = FaceSet(ArrayImages(np.zeros((35, 8, 8, 3), np.uint8)), labels, tuple("abcdefg"), domain, ("a", "b"))
    test = open_test(faces, range(35), Evaluation(pairs=0, fars=(0.1,)), Streams(1))
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(7, 4))[labels] + rng.normal(size=(35, 4))).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = influence_of(x, test, metric)
    inside = np.arange(7) >= 4 if metric[0] == "b" else np.arange(7) < 4
    assert np.abs(found[~inside]).max() == 0
    assert np.abs(found[inside]).max() > 0
    assert found.sum() == pytest.approx(0, abs=1e-9)
    if metric.endswith("tar@0.1"):
        here = domain == int(metric[0] == "b")
        only = FaceSet(ArrayImages(np.zeros((35, 8, 8, 3), np.uint8)), labels, tuple("abcdefg"))
        alone = open_test(only, np.flatnonzero(here).tolist(), Evaluation(pairs=0, fars=(0.1,)), Streams(1))
        assert np.allclose(found[inside], influence_of(x[here], alone, "tar@0.1"))


def test_a_mistaken_key_of_a_column_is_one_line_that_names_the_nearest(tmp_path: Path) -> None:
    folder = study(tmp_path / "studies", "@first")
    path = folder / "x" / "y.toml"
    path.write_text(path.read_text() + '[[columns]]\nname = "c"\n[columns.by.smoke]\nwhat = "w"\nmetrik = "accuracy"\n')
    with pytest.raises(FedVisageError, match=r"unknown key 'columns.0.by.smoke.metrik'.*'metric'"):
        cells("x/y", "smoke", [1], folder)
