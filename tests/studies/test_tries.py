"""The same tries for every row: which cells they are, what validation people choose, and what the page says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.studies import (
    Cell,
    cells,
    choices,
    chosen_cells,
    home,
    list_studies,
    load_results,
    load_study,
    run_cell,
    tried_cells,
    write_study,
)
from fedvisage.studies.page import contents

STUDY = "fedgc/own"
BY = "tar@0.1"
ROWS = """
title = "t"
source = "s"

[tries.smoke]
rates = [0.5, 1.0, 1e30]
by = "tar@0.1"
note = "A word on what else was tried."

[[rows]]
name = "start"
label = "Start"
of = "start"

[[rows]]
name = "fedpe"
label = "FedPE"

[[rows]]
name = "fedgc"
label = "FedGC"

[rows.recipe.method]
name = "fedgc"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of studies with one that tries three learning rates."""
    (tmp_path / "studies" / "fedgc").mkdir(parents=True)
    (tmp_path / "studies" / "fedgc" / "own.toml").write_text(ROWS)
    (tmp_path / "studies" / "fedgc" / "_base.toml").write_text((home() / "fedgc" / "_base.toml").read_text())
    return tmp_path / "studies"


def finish(cell: Cell, results: Path, score: float | None, last: float = 0.5) -> None:
    """A cell's result with a validation curve that ends with a score; diverged without one."""
    results.mkdir(exist_ok=True)
    curve = [{"round": 1, BY: 0.99}, {"round": 2, BY: score}]
    content: dict[str, Any] = {
        **{"recipe": cell.key, "seed": cell.seed, "settings": cell.settings, "seconds": 1.0, "bytes": 1},
        **{"scores": {f"test {BY}": last}, "rounds": {"validation": curve, "test": curve}},
        "environment": {"processor": "a processor", "cores": 2, "python": "3.11", "packages": {}},
    }
    content |= {"diverged": "training diverged"} if score is None else {}
    (results / f"{cell.key}.json").write_text(json.dumps(content))


def finish_all(folder: Path, results: Path, scores: dict[tuple[str, float], float | None]) -> None:
    """All tries, with what validation people say by row and rate."""
    for cell in tried_cells(STUDY, "smoke", folder=folder):
        finish(cell, results, scores[cell.row, float(f"{cell.recipe.training.learning_rate / 0.005:.3g}")])


SCORES: dict[tuple[str, float], float | None] = {
    **{("fedpe", 0.5): 0.6, ("fedpe", 1.0): 0.7, ("fedpe", 1e30): None},
    **{("fedgc", 0.5): 0.8, ("fedgc", 1.0): 0.7, ("fedgc", 1e30): None},
}


def test_every_row_that_is_trained_has_the_same_tries_under_the_first_seed(folder: Path) -> None:
    found = tried_cells(STUDY, "smoke", folder=folder)
    assert {cell.seed for cell in found} == {1}
    rates = {row: sorted(c.recipe.training.learning_rate for c in found if c.row == row) for row in ("fedpe", "fedgc")}
    assert rates["fedpe"] == rates["fedgc"] == [0.0025, 0.005, 5e27]
    assert len(found) == 6, "the start is not trained"
    plain = {cell.key for cell in cells(STUDY, "smoke", [1], folder)}
    assert sum(cell.key in plain for cell in found) == 2, "a rate as it is makes the cell that there would be anyway"


def test_all_main_tables_try_as_much_for_every_row() -> None:
    """By the definition of tries a row cannot have more of them than another."""
    tried = {name for name in list_studies() if any(tries.rates for tries in load_study(name).tries.values())}
    main = {"fedfr/table-1", "fedgc/table-5", "fedface/table-1", "feduda/table-2", "feduda/table-3", "pfm-fv/figure-4a"}
    assert main <= tried
    for name in main:
        study = load_study(name)
        for scale in study.scales.keys() & {"laptop", "trained"}:
            found = tried_cells(name, scale)
            counts = {row: sum(cell.row == row for cell in found) for row in {cell.row for cell in found}}
            tries = study.tries[scale]
            assert set(counts.values()) == {len(tries.rates) * tries.seeds * len(study.variants)}
            untried = {row.name for row in study.rows} - counts.keys()
            started = {row.name for row in study.rows if row.of == "start"}
            begun_with = {cell.start.row for cell in cells(name, scale, [1]) if cell.start}
            assert untried == started | begun_with


def test_the_best_after_the_last_round_is_taken_under_all_seeds(folder: Path, tmp_path: Path) -> None:
    finish_all(folder, tmp_path / "results", SCORES)
    made = choices(STUDY, "smoke", tmp_path / "results", folder=folder)
    assert {row: of.taken[row, 1, ""] for row, of in made.items()} == {"fedpe": 1.0, "fedgc": 0.5}
    assert all(of.made for of in made.values())
    taken = chosen_cells(STUDY, "smoke", [1, 2], tmp_path / "results", folder)
    rates = {(cell.row, cell.seed): cell.recipe.training.learning_rate for cell in taken}
    assert rates == {(row, seed): 0.0025 if row == "fedgc" else 0.005 for row, seed in rates}
    assert len(rates) == 6
    finished = load_results(STUDY, "smoke", tmp_path / "results", folder=folder)
    assert finished["fedgc"][0]["settings"]["training"]["learning_rate"] == 0.0025


def test_nothing_is_chosen_while_a_try_is_open_or_when_none_has_a_model(folder: Path, tmp_path: Path) -> None:
    finish_all(folder, tmp_path / "results", SCORES)
    one = next(cell for cell in tried_cells(STUDY, "smoke", folder=folder) if cell.row == "fedgc")
    (tmp_path / "results" / f"{one.key}.json").unlink()
    found = choices(STUDY, "smoke", tmp_path / "results", folder=folder)["fedgc"]
    assert (found.made, found.taken, None in found.scores.values()) == (False, {("fedgc", 1, ""): 1.0}, True)
    finish_all(folder, tmp_path / "results", SCORES | {("fedgc", rate): None for rate in (0.5, 1.0)})
    found = choices(STUDY, "smoke", tmp_path / "results", folder=folder)["fedgc"]
    assert (found.made, found.taken) == (False, {("fedgc", 1, ""): 1.0})
    page = contents(STUDY, "smoke", tmp_path / "results", folder)
    assert [row.entries[-1][1] for row in page["rows"]] == ["–", "50.00", "diverged"]


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "fedgc" / "own.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def by_seed(folder: Path, results: Path, scores: dict[tuple[float, int], float]) -> None:
    """All tries under seeds 1 and 2, with what validation people say by rate and seed."""
    for cell in tried_cells(STUDY, "smoke", [1, 2], folder):
        finish(cell, results, scores[float(f"{cell.recipe.training.learning_rate / 0.005:.3g}"), cell.seed])


BY_SEED = {(0.5, 1): 0.6, (0.5, 2): 0.4, (1.0, 1): 0.3, (1.0, 2): 0.5, (2.0, 1): 0.1, (2.0, 2): 0.1}


def test_the_mean_over_seeds_decides_for_all_runs(folder: Path, tmp_path: Path) -> None:
    """By hand: 0.5 has a mean of 0.5, 1 has 0.4."""
    change(folder, "rates = [0.5, 1.0, 1e30]", "rates = [0.5, 1.0, 2.0]\nseeds = 2")
    by_seed(folder, tmp_path / "results", BY_SEED)
    found = choices(STUDY, "smoke", tmp_path / "results", [1, 2, 3], folder)["fedpe"]
    assert found.taken == {("fedpe", seed, ""): 0.5 for seed in (1, 2, 3)}
    assert found.scores == {0.5: pytest.approx(0.5), 1.0: pytest.approx(0.4), 2.0: pytest.approx(0.1)}


def test_runs_whose_people_change_parts_choose_alone(folder: Path, tmp_path: Path) -> None:
    change(folder, "rates = [0.5, 1.0, 1e30]", "rates = [0.5, 1.0, 2.0]\nalone = true")
    by_seed(folder, tmp_path / "results", BY_SEED)
    found = choices(STUDY, "smoke", tmp_path / "results", [1, 2], folder)["fedpe"]
    assert found.taken == {("fedpe", 1, ""): 0.5, ("fedpe", 2, ""): 1.0}
    assert found.made
    cells_of = {
        c.seed: c for c in chosen_cells(STUDY, "smoke", [1, 2], tmp_path / "results", folder) if c.row == "fedpe"
    }
    assert {seed: cell.recipe.training.learning_rate for seed, cell in cells_of.items()} == {1: 0.0025, 2: 0.005}
    page = contents(STUDY, "smoke", tmp_path / "results", folder)
    assert [taken for _, _, taken in page["tries"][0][1]] == ["taken by 1 of 2", "taken by 1 of 2", ""]


def test_nobody_who_chooses_for_a_run_is_tested_on_in_it() -> None:
    """Runs choose together only where folds or names say who validates and who is tested, whatever the seed."""
    together = 0
    for name in list_studies():
        for scale, tries in load_study(name).tries.items():
            if scale == "smoke" or not tries.rates or tries.alone:
                continue
            together += 1
            for cell in tried_cells(name, scale):
                for part in (cell.recipe.partition.test, cell.recipe.partition.validation):
                    groups = part if isinstance(part, tuple) else (part,)
                    assert all(group.folds or group.names for group in groups), f"{name} at {scale} scale draws people"
    assert together > 3


def test_the_page_shows_the_tries_and_which_were_taken(folder: Path, tmp_path: Path) -> None:
    finish_all(folder, tmp_path / "results", SCORES)
    page = contents(STUDY, "smoke", tmp_path / "results", folder)
    heads = ("× 0.5", "as it is", "× 1e+30")
    assert page["tries"] == [
        ("FedPE", [*zip(heads, ("60.00", "70.00", "diverged"), ("", "taken", ""), strict=True)]),
        ("FedGC", [*zip(heads, ("80.00", "70.00", "diverged"), ("taken", "", ""), strict=True)]),
    ]
    text = write_study(STUDY, "smoke", tmp_path / "results", tmp_path / "page.html", folder).read_text()
    assert "Every row had 3 tries" in text
    assert "<strong>80.00</strong>" in text
    assert "<strong>70.00</strong>" in text
    assert "<strong>60.00</strong>" not in text
    assert "A word on what else was tried." in text


def test_a_run_that_diverges_is_a_finished_cell(folder: Path, tmp_path: Path) -> None:
    """Really trained: the largest rate ends without a model, and is not begun again."""
    *_, last = tried_cells(STUDY, "smoke", folder=folder)
    path = run_cell(last, tmp_path / "work", tmp_path / "results")
    content = json.loads(path.read_text())
    assert "training diverged" in content["diverged"] or "not finite" in content["diverged"]
    assert content["scores"] == {}
    path.write_text(json.dumps(content | {"marked": True}))
    run_cell(last, tmp_path / "work", tmp_path / "results")
    assert json.loads(path.read_text())["marked"]


def test_the_command_tries_first_and_runs_what_was_chosen(tmp_path: Path) -> None:
    name, options = "fedface/table-1", ["--scale", "smoke", "--results", str(tmp_path / "results")]
    rows = ("fedavg", "fedface")
    asked = [word for row in rows for word in ("--row", row)] + ["--jobs", "1", "--work", str(tmp_path / "work")]
    done = CliRunner().invoke(app, ["study", "run", name, "--seeds", "2", *asked, *options])
    assert done.exit_code == 0, done.output
    assert "3 learning rates tried for every row under the first seed; validation people chose:" in done.output
    assert "  tries not finished: Fine-tuning, pooled; Random fixed class embeddings" in done.output
    shown = json.loads(CliRunner().invoke(app, ["study", "report", name, "--json", *options]).output)
    made = choices(name, "smoke", tmp_path / "results")
    for row in rows:
        assert made[row].made
        best = max(score for score in made[row].scores.values() if score is not None)
        (taken,) = [rate for rate, count in shown["tries"][row]["taken"].items() if count]
        assert shown["tries"][row]["tried"][taken] == best
        assert {entry["seeds"] for entry in shown["rows"][row].values()} == {2}


def test_tries_without_validation_scores_or_by_an_unknown_one_are_refused(folder: Path, tmp_path: Path) -> None:
    finish_all(folder, tmp_path / "results", SCORES)
    path = folder / "fedgc" / "own.toml"
    path.write_text(ROWS.replace('by = "tar@0.1"', 'by = "tar@0.2"'))
    with pytest.raises(FedVisageError, match=r"by 'tar@0.2': did you mean 'tar@0.1'"):
        choices(STUDY, "smoke", tmp_path / "results", folder=folder)
    path.write_text(ROWS.replace('by = "tar@0.1"\n', ""))
    with pytest.raises(FedVisageError, match="does not say `by` what"):
        load_study(STUDY, folder)
    path.write_text(ROWS)
    for result in (tmp_path / "results").glob("*.json"):
        result.write_text(json.dumps(json.loads(result.read_text()) | {"rounds": {}}))
    with pytest.raises(FedVisageError, match="no validation people were scored"):
        choices(STUDY, "smoke", tmp_path / "results", folder=folder)
