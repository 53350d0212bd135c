"""Figures of searched weightings: what cells keep of a run, and what a study's page draws from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from smoke_study import labels, ran

from fedvisage.methods.fv import grid
from fedvisage.studies import cells, load_study, run_cell
from fedvisage.studies.weightings import MOST_ROUNDS, kept_weighting, mean_maps, mean_weights, thinned


def row(phase: str, round: int, score: float, **weights: float) -> dict[str, Any]:
    found = {"round": round, "phase": phase, "score": score, "parties": {}, "absent": {}}
    return found | {f"weight/{party}": weight for party, weight in weights.items()}


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def test_a_cell_keeps_the_weights_by_round_and_the_maps(tmp_path: Path) -> None:
    rows = [row("validate", 1, 80.0, a=0.25, b=0.75), row("validate", 2, 81.0, a=1 / 3, b=2 / 3)]
    rows += [row("survey", 2, 70.12345, a=0.0, b=1.0), row("survey", 2, 71.0, a=1.0, b=0.0)]
    assert kept_weighting(written(tmp_path, rows)) == {
        "parties": ["a", "b"],
        "rounds": {"1": [0.25, 0.75], "2": [0.33333, 0.66667]},
        "maps": {"2": [[0.0, 1.0, 70.123], [1.0, 0.0, 71.0]]},
    }


def test_nothing_is_kept_of_a_run_without_a_search(tmp_path: Path) -> None:
    assert kept_weighting(written(tmp_path, [row("train", 1, 1.0)])) == {}


def test_of_many_rounds_some_are_kept_the_first_and_the_last_among_them(tmp_path: Path) -> None:
    kept = kept_weighting(written(tmp_path, [row("validate", r, 80.0, a=1 / r, b=1 - 1 / r) for r in range(1, 3329)]))
    rounds = [int(round) for round in kept["rounds"]]
    assert len(rounds) == len(set(rounds)) == MOST_ROUNDS
    assert (rounds[0], rounds[-1]) == (1, 3328)
    assert thinned([1, 2, 3], 3) == [1, 2, 3]


def test_several_cells_are_drawn_as_their_mean_where_all_of_them_have_a_value() -> None:
    one = {"parties": ["a", "b"], "rounds": {"2": [0.2, 0.8], "10": [0.4, 0.6]}, "maps": {"2": [[0.0, 1.0, 70.0]]}}
    two = {"parties": ["a", "b"], "rounds": {"2": [0.4, 0.6], "10": [None, 1.0]}, "maps": {"2": [[0.0, 1.0, 80.0]]}}
    weights = mean_weights([one, two])
    assert weights["a"] == [(2, pytest.approx(0.3))]
    assert weights["b"] == [(2, pytest.approx(0.7)), (10, pytest.approx(0.8))]
    assert mean_maps([one, two]) == {2: [({"a": 0.0, "b": 1.0}, 75.0)]}
    two["maps"] = {"2": [[1.0, 0.0, 80.0]], "4": [[1.0, 0.0, 80.0]]}
    assert mean_maps([one, two]) == {2: []}


def test_figure_3_maps_what_fedavg_would_have_scored_under_every_weighting(tmp_path: Path) -> None:
    found, page = ran("pfm-fv/figure-3", tmp_path)
    for result in found:
        kept = result["weighting"]
        assert list(kept["maps"]) == ["1", "2"]
        assert [tuple(point[:3]) for point in kept["maps"]["2"]] == grid(2)
        assert all(weights == [pytest.approx(1 / 3, abs=1e-5)] * 3 for weights in kept["rounds"].values())
        assert len(json.dumps(kept)) < 2000
    best = max(score for *_, score in found[0]["weighting"]["maps"]["2"])
    assert 0 < best <= 100
    maps = [label for label in labels(page) if label.startswith("Validation score of every weighting after round")]
    assert len(maps) == 2
    assert all("Mean of 2 runs." in label for label in maps)
    assert "Every weighting after round 2" in page.text


def test_figure_6_draws_the_weights_of_three_and_of_twelve_parties(tmp_path: Path) -> None:
    found, page = ran("pfm-fv/figure-6", tmp_path)
    for result in found:
        for weights in result["weighting"]["rounds"].values():
            assert sum(weights) == pytest.approx(1, abs=1e-4)
    drawn = [label for label in labels(page) if label.startswith("Weights of the parties per round")]
    assert [label.split(".")[0].rpartition(", ")[2] for label in drawn] == ["three parties", "twelve parties"]
    assert drawn[0].count("%") == 2, "the smallest scale has two parties and four"
    assert drawn[1].count("%") == 4


def test_the_runs_of_figure_6_are_those_of_figure_4() -> None:
    for scale, part in (("laptop", "b"), ("paper", "a"), ("smoke", "a")):
        weights = {cell.row: cell.key for cell in cells("pfm-fv/figure-6", scale, [1])}
        for row, study in (("three", f"pfm-fv/figure-4{part}"), ("twelve", "pfm-fv/figure-4f")):
            assert weights[row] in {cell.key for cell in cells(study, scale, [1]) if cell.row == "pfm-fv"}


def test_a_cell_that_was_finished_without_its_weights_is_completed(tmp_path: Path) -> None:
    """As cells of Figure 4 were before; what they hold stays as it is."""
    cell = next(cell for cell in cells("pfm-fv/figure-6", "smoke", [1]) if cell.row == "three")
    path = run_cell(cell, tmp_path / "work", tmp_path / "results")
    whole = json.loads(path.read_text())
    before = {name: part for name, part in whole.items() if name != "weighting"} | {"seconds": 1.5}
    path.write_text(json.dumps(before))
    again = json.loads(run_cell(cell, tmp_path / "work", tmp_path / "results").read_text())
    assert again == before | {"weighting": whole["weighting"]}
    assert load_study(cell.study).figure is not None
