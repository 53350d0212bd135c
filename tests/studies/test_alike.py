"""FedGC's Figure 3: what cells keep of the people whom a model takes for most alike, and what the page draws of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from smoke_study import labels, ran

from fedvisage.core.errors import FedVisageError
from fedvisage.studies import cells, load_study, run_cell, write_study
from fedvisage.studies.alike import drawn_alike, kept_alike
from fedvisage.studies.cells import read_result


def test_each_model_is_drawn_on_its_own_closest_pairs_from_the_files_alone(tmp_path: Path) -> None:
    found, page = ran("fedgc/figure-3", tmp_path)
    drawn = [label.partition(". ")[0] for label in labels(page)]
    rows = ["softmax, FedPE", "softmax, FedGC", "cosface, FedPE", "cosface, FedGC"]
    for row in rows:
        assert f"{row}: images of the most confusable pairs" in drawn
        assert f"{row}: cosines of images of the most confusable pairs" in drawn
    for result in found:
        pairs = result["alike"]["pairs"]
        measured = result["scores"]
        mean = sum(pair["mean"] for pair in pairs) / len(pairs)
        assert mean == pytest.approx(next(value for key, value in measured.items() if "images" in key), abs=1e-5)
        assert len(result["alike"]["points"]) == len(result["alike"]["which"]) > len(pairs)


def test_a_cell_that_was_finished_without_its_map_is_completed(tmp_path: Path) -> None:
    """As cells of FedGC's other tables are; what they hold stays as it is."""
    cell = cells("fedgc/figure-3", "smoke", [1])[0]
    path = run_cell(cell, tmp_path / "work", tmp_path / "results")
    whole = json.loads(path.read_text())
    before = {name: part for name, part in whole.items() if name != "alike"} | {"seconds": 1.5}
    path.write_text(json.dumps(before))
    again = json.loads(run_cell(cell, tmp_path / "work", tmp_path / "results").read_text())
    assert again == before | {"alike": whole["alike"]}


def test_of_a_run_without_a_map_nothing_is_kept_and_nothing_drawn(tmp_path: Path) -> None:
    assert kept_alike(tmp_path) is None
    assert drawn_alike(load_study("fedgc/figure-3"), {"softmax-fedpe": [{"alike": None}]}) == []


def test_a_damaged_map_in_a_cell_is_named(tmp_path: Path) -> None:
    cell = cells("fedgc/figure-3", "smoke", [1])[0]
    path = run_cell(cell, tmp_path / "work", tmp_path / "results")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alike": {"pairs": 4}}))
    with pytest.raises(FedVisageError, match=r"is damaged \(alike\.pairs: "):
        read_result(path)
    with pytest.raises(FedVisageError, match=r"is damaged \(alike\.pairs: "):
        write_study("fedgc/figure-3", "smoke", tmp_path / "results", tmp_path / "page.html")
