"""The page of a study says what its cells found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from page_reader import Page
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.studies import cells, explained, home, load_study, summary, write_study
from fedvisage.studies.figures import redrawn
from fedvisage.studies.numbers import Entry
from fedvisage.studies.page import duration

Make = Callable[..., Path]
SCORES = {"fedpe": 0.70, "fedcos": 0.72, "fedgc": 0.80}


def page_of(name: str, results: Path, folder: Path | None = None) -> Page:
    return Page.read(write_study(name, "laptop", results, results / "page.html", folder))


def test_where_the_paper_has_no_numbers_there_is_no_column_for_them(made_up: Make) -> None:
    page = page_of("feduda/sensitivity", made_up("feduda/sensitivity", {"d-0.2": 0.5, "d-0.24": 0.6}))
    head = page.tables["Our numbers"][1]
    assert {"ours"} <= set(head) <= {"ours", "chosen"}
    assert "The paper does not say which of these rows is better." in page.text


def test_the_table_has_the_papers_numbers_and_ours(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", SCORES))
    rows = page.tables["The paper's numbers and ours"]
    assert rows[0][:3] == ["Row", "paper: LFW", "LFW folds 6 and 7, accuracy"]
    assert rows[2][:4] == [
        "FedPE",
        "94.77",
        "70.40 ± 0.20",
        "78.00",
    ]  # mean of 70.2, 70.4, 70.6; chosen: 0.5 + 0.4 x 0.7
    assert rows[4][:3] == ["FedGC", "98.40", "80.40 ± 0.20"]


def test_the_orderings_come_with_a_confidence_and_the_sentence_counts_them(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", {"fedpe": 0.70, "fedcos": 0.699, "fedgc": 0.80}))
    rows = page.tables["Orderings"][1:]
    assert len(rows) == 3
    verdicts = {row[1].split(" 3 seeds")[0]: row[-1] for row in rows}
    assert verdicts["FedGC above FedPE"] == "holds"
    assert "chance" in verdicts["FedCos above FedPE"]
    assert "60 people" in rows[0][1]
    assert "2 of 3 orderings hold in our means, 2 of them beyond chance; none is clearly reversed." in page.text


def test_a_clearly_reversed_ordering_is_named_first(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", {"fedpe": 0.80, "fedgc": 0.60}))
    assert page.tables["Orderings"][1][-1] == "is reversed"
    assert "1 is clearly reversed" in page.text


def test_with_one_seed_the_page_says_that_chance_is_that_of_people_only(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", SCORES, [1]))
    assert "beyond chance (of people only: there is one seed); none is clearly reversed" in page.text


def test_the_sentence_is_right_for_a_single_ordering_and_for_ties(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", {"fedpe": 0.70, "fedgc": 0.80}))
    assert "1 of 1 ordering holds in our means, 1 of them beyond chance; none is clearly reversed." in page.text
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", {"fedpe": 0.70, "fedcos": 0.70, "fedgc": 0.80}))
    assert "2 of 3 orderings hold in our means, 2 of them beyond chance; 1 is level; none is" in page.text
    assert "level" in [row[-1] for row in page.tables["Orderings"]]


def test_a_scale_that_measures_nothing_the_paper_speaks_of_says_so(tmp_path: Path) -> None:
    study = load_study("fedface/table-1")
    others = study.model_copy(update={"columns": (study.columns[-1].model_copy(update={"name": "ours alone"}),)})
    assert summary(others, "laptop", [], True).startswith("There is nothing to compare with")
    assert summary(study, "laptop", [], True) == "Too few cells are finished to compare rows."


def test_a_figure_of_weights_has_no_sentence_on_which_row_is_better() -> None:
    assert summary(load_study("pfm-fv/figure-6"), "laptop", [], True) == ""


def test_of_many_orderings_those_within_chance_are_folded_away(made_up: Make) -> None:
    close = {"source-only": 0.60, "merge": 0.6001, "dan": 0.6002, "fedfr-2": 0.9}
    page = page_of("feduda/table-2", made_up("feduda/table-2", close))
    kinds = {label: rows[1:] for label, rows in page.tables.items() if label.startswith("Orderings")}
    assert set(kinds) == {"Orderings: Reversed", "Orderings: Hold", "Orderings: Within chance"}
    assert {row[-1] for row in kinds["Orderings: Reversed"]} == {"is reversed"}
    assert {row[-1] for row in kinds["Orderings: Hold"]} == {"holds"}
    assert sum(map(len, kinds.values())) == 60
    assert [tag for tag, _ in page.tags].count("details") == 1


def test_a_figure_that_the_paper_does_not_have_is_not_called_redrawn(made_up: Make) -> None:
    page = page_of("feduda/sensitivity", made_up("feduda/sensitivity", {"d-0.2": 0.5, "d-0.24": 0.6}))
    assert "The figure, redrawn" not in page.text


def test_where_rows_have_unequal_numbers_of_seeds_each_says_how_many(made_up: Make, tmp_path: Path) -> None:
    made_up("fedfr/figure-3", {"all": 0.6, "t-0.4": 0.7}, [1])
    results = made_up("fedfr/figure-3", {"t-0.5": 0.8}, [1, 2, 3])
    page = page_of("fedfr/figure-3", results)
    ours = {row[0]: row[1] for row in page.tables["Our numbers"][2:]}
    assert ours["t_HN = 0.4"] == "70.20 1 seed"
    assert ours["t_HN = 0.5"] == "80.40 ± 0.20 3 seeds"
    said = "Not all are means of as many seeds. 1 seed: all public images and t_HN = 0.4. 3 seeds: t_HN = 0.5."
    assert said in page.text
    asked = ["study", "report", "fedfr/figure-3", "--results", str(results), "--out", str(tmp_path / "page.html")]
    assert "80.40 ± 0.20 (82.00), 3 seeds" in " ".join(CliRunner().invoke(app, asked).output.split())


def test_where_neither_people_nor_seeds_tell_the_sentence_says_so(made_up: Make) -> None:
    results = made_up("fedgc/table-4", SCORES, [1])
    for path in results.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"people": {}}))
    page = page_of("fedgc/table-4", results)
    assert "3 of 3 orderings hold in our means; what chance does to them is not known." in page.text


def test_where_they_have_as_many_nothing_is_said(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", SCORES))
    assert page.tables["The paper's numbers and ours"][2][2] == "70.40 ± 0.20"


def test_only_columns_with_a_chosen_round_have_a_column_for_it(made_up: Make) -> None:
    page = page_of("fedgc/table-4", made_up("fedgc/table-4", SCORES))
    kinds = page.tables["The paper's numbers and ours"][1]
    assert kinds == ["ours", "chosen", "ours", "chosen", "ours", "ours"], "of actors and ORL nobody is asked on the way"
    assert "No round was chosen" not in page.text


def test_where_no_round_was_chosen_the_page_says_why(made_up: Make) -> None:
    page = page_of("fedgc/table-6", made_up("fedgc/table-6", {"softmax-fedpe": 0.7}))
    assert "No round was chosen on validation people: these columns were measured at the end only." in page.text
    results = made_up("fedgc/table-4", SCORES)
    for path in results.glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rounds": {}, "chosen": None}))
    page = page_of("fedgc/table-4", results)
    assert "chosen" not in page.tables["The paper's numbers and ours"][1]
    assert "No round was chosen on validation people: the runs were scored at the end only." in page.text


def test_cost_and_what_is_missing_are_said(made_up: Make) -> None:
    page = page_of("fedgc/table-5", made_up("fedgc/table-5", {"softmax-fedpe": 0.7}, [1]))
    assert page.tables["Cost of a run"][1] == ["softmax, FedPE", "1", "12.0 MB", "62 s"]
    assert "no face set stands in for them at laptop scale" in page.text
    assert "1 of 12" in page.text
    assert {"table", "figures", "costs", "missing", "again", "curves"} <= page.ids


def test_where_training_is_central_every_image_crosses_once(made_up: Make) -> None:
    page = page_of("fedgc/table-5", made_up("fedgc/table-5", {"softmax-central": 0.8, "softmax-fedpe": 0.7}, [1]))
    costs = {row[0]: row[2] for row in page.tables["Cost of a run"]}
    assert costs["softmax, central"] == "every image, once"
    assert costs["softmax, FedPE"] == "12.0 MB"
    assert "Moved between server and parties 12.0 MB" in page.text
    page = page_of("pfm-fv/table-1", made_up("pfm-fv/table-1", {"solo-ms1m": 0.5, "pfm": 0.4}, [1]))
    costs = [row[2] for row in page.tables["Cost of a run"][1:]]
    assert costs == ["nothing", "12.0 MB"]


def test_a_page_says_what_its_scale_lacks(made_up: Make) -> None:
    """Columns of the paper without a stand-in, whether it has numbers for them or bars, and nothing of other scales."""
    results = made_up("pfm-fv/figure-4a", {"pfm": 0.7}, [1])
    page = page_of("pfm-fv/figure-4a", results)
    lacking = "CPLFW, CALFW, CFP-FP, AgeDB-30, IJB-B, IJB-B @1e-5, IJB-C @1e-5 and MegaFace Ver."
    assert f"{lacking}: no face set stands in for them at laptop scale." in page.text
    assert "only the order of rows can be compared" in page.text
    assert "batches of 256" not in page.text
    assert "batches of 256" in Page.read(write_study("pfm-fv/figure-4a", "paper", results, results / "p.html")).text


def test_columns_are_told_in_words() -> None:
    study = load_study("fedgc/table-5")
    lfw = next(column for column in study.columns if column.name == "LFW")
    assert explained(study, lfw, "paper") == ("LFW", "accuracy: the pair list of LFW")
    head, words = explained(study, lfw, "laptop")
    assert head == "LFW folds 6 and 7, accuracy"
    assert words.startswith("LFW's own 1,200 pairs")
    assert words.endswith("; beside the paper's LFW")
    loss = load_study("pfm-fv/table-1")
    assert explained(loss, loss.columns[0], "laptop")[1].startswith(loss.columns[0].by["laptop"].what)


def test_a_file_that_is_no_cell_does_not_stand_in_the_way(made_up: Make) -> None:
    """A cell of the study itself that is damaged is named."""
    results = made_up("fedgc/table-4", SCORES)
    (results / "notes.json").write_text("")
    assert "3 of 3 orderings" in page_of("fedgc/table-4", results).text
    cell = next(cell for cell in cells("fedgc/table-4", "laptop", [2]) if cell.row == "fedpe")
    (results / f"{cell.key}.json").write_text("{")
    with pytest.raises(FedVisageError, match=f"{cell.key}.json is damaged"):
        page_of("fedgc/table-4", results)


def test_what_was_tried_is_said_where_it_is_known(made_up: Make) -> None:
    page = page_of("fedface/table-1", made_up("fedface/table-1", {"fedface": 0.7}, [1]))
    assert "tried for FedFace only" in page.text
    other = page_of("fedgc/few-people", made_up("fedgc/few-people", {"fedpe": 0.7}, [1]))
    assert "How settings were chosen" not in other.text
    assert "same number of tries" not in page.text + other.text


def test_a_study_without_cells_says_so(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert "No cell of this study is finished yet." in page_of("fedgc/table-4", tmp_path / "results").text


SWEEP = """
title = "Sweep"
source = "S"
missing = ["The paper's values are not in its text."]
[figure]
kind = "KIND"
x = "identities per party"
log = true
RELATIVE
[[claims]]
column = "LFW"
better = "b-8"
worse = "a-8"
[[rows]]
name = "a-1"
label = "A, 1"
line = "A"
x = 1
[rows.recipe]
compare = []
[[rows]]
name = "a-8"
label = "A, 8"
line = "A"
x = 8
[rows.recipe.training]
learning_rate = 0.04
[[rows]]
name = "b-8"
label = "B"
line = "B"
[rows.recipe.training]
learning_rate = 0.03
"""


def sweep(folder: Path, kind: str, relative: str = "") -> Path:
    """A study that is a figure, in a folder of studies of its own."""
    place = folder / "studies" / "p"
    place.mkdir(parents=True)
    text = SWEEP.replace("KIND", kind).replace("RELATIVE", relative)
    (place / "figure-1.toml").write_text(text + (home() / "fedgc" / "_base.toml").read_text())
    return folder / "studies"


def test_a_swept_setting_is_drawn_as_lines_and_a_row_without_place_is_left_out(made_up: Make, tmp_path: Path) -> None:
    folder = sweep(tmp_path, "lines")
    results = made_up("p/figure-1", {"a-1": 0.6, "a-8": 0.7, "b-8": 0.9}, [1], folder)
    page = page_of("p/figure-1", results, folder)
    said = [a["aria-label"] for tag, a in page.tags if tag == "svg" and "over identities" in str(a["aria-label"])]
    head = "LFW folds 6 and 7, accuracy over identities per party, ours."
    assert f"{head} A 60.2 at 1, 70.2 at 8." in said
    assert "In the table only: B." in page.text
    assert "The paper's values are not in its text." in page.text
    assert page.tables["Orderings"][1][:3] == ["LFW folds 6 and 7, accuracy", "B above A, 8 1 seed, 60 people", "said"]


def test_bars_may_be_differences_from_a_row(made_up: Make, tmp_path: Path) -> None:
    folder = sweep(tmp_path, "bars", 'relative_to = "a-8"')
    study = load_study("p/figure-1", folder)
    column = study.columns[0]
    entry = {
        name: {column.name: Entry(2, m, 1.0, math.nan, (m - 1, m + 1), (1, 2))}
        for name, m in (("a-8", 70.0), ("b-8", 75))
    }
    (figure,) = redrawn(study, "laptop", entry)
    assert "points above A, 8. B 5.0." in figure.svg
    assert "+5.0 ± 0.0" in figure.svg


@pytest.mark.parametrize(
    ("change", "match"),
    [(("worse", "nobody"), "a row 'nobody'"), (("column", "LFV"), "a column 'LFV': did you mean 'LFW'")],
)
def test_claims_about_what_is_not_there_are_refused(tmp_path: Path, change: tuple[str, str], match: str) -> None:
    folder = sweep(tmp_path, "lines")
    path = folder / "p" / "figure-1.toml"
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(change[0] + " ="))
    lines[place] = f'{change[0]} = "{change[1]}"'
    path.write_text("\n".join(lines))
    with pytest.raises(FedVisageError, match=match):
        load_study("p/figure-1", folder)


def test_the_command_writes_the_page_where_it_is_asked_to(made_up: Make, tmp_path: Path) -> None:
    results = made_up("fedgc/table-4", SCORES)
    out = tmp_path / "page.html"
    done = CliRunner().invoke(
        app, ["study", "report", "fedgc/table-4", "--results", str(results), "--out", str(out), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["page"] == str(out)
    assert out.stat().st_size > 5000
    assert {one["verdict"] for one in found["orderings"]} <= {"holds", "agrees, within chance"}
    assert found["rows"]["fedpe"]["LFW folds 6 and 7, accuracy"]["mean"] == pytest.approx(70.4)


@pytest.mark.parametrize(("seconds", "said"), [(12, "12 s"), (600, "10 min"), (7200, "2.0 h")])
def test_times_are_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_row_that_diverges_says_so_and_is_run_only_when_asked_for(made_up: Make, tmp_path: Path) -> None:
    results = made_up("fedgc/table-2", {"lambda-1": 0.7, "lambda-20": 0.8})
    command = ["study", "run", "fedgc/table-2", "--seeds", "3", "--results", str(results), "--work", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "λ = 50 diverged: At a rate of 0.05" in done.output
    page = page_of("fedgc/table-2", results)
    *_, last = page.tables["The paper's numbers and ours"]
    assert last[0].startswith("λ = 50")
    assert "At a rate of 0.05 the step is 2.5" in last[0]
    assert last[1:3] == ["97.42", "diverged"]
    assert "6 of 6" in page.text, "nobody waits for its cells"
    assert not load_study("fedgc/table-2").rows[2].diverges("paper")


def test_errata_are_marked_and_a_misprint_is_not_compared(made_up: Make) -> None:
    rows = {"softmax-central": 0.8, "softmax-fedpe": 0.7, "softmax-fixed": 0.75}
    page = page_of("fedgc/table-5", made_up("fedgc/table-5", rows))
    shown = {row[0]: row[1] for row in page.tables["The paper's numbers and ours"][2:]}
    assert {label.split(" *")[0].rstrip(): number for label, number in shown.items() if "*" in number} == {
        "softmax, central": "99.84*",
        "softmax, FedPE + fixed": "96.11*",
    }
    assert "a misprint, not compared" in page.text
    assert len(page.tables["Orderings"][1:]) == 1, "of three pairs, two are with the misprint"


def test_the_page_says_where_ours_differ_at_its_scale_and_why(made_up: Make) -> None:
    results = made_up("fedface/table-1", {"fedavg": 0.8, "random-fixed": 0.7})
    page = page_of("fedface/table-1", results)
    assert "Where ours differ, and why" in page.text
    said = load_study("fedface/table-1").disagreements
    assert said["laptop"][0][:60] in page.text
    assert said["trained"][0][:60] not in page.text


def test_a_study_of_our_own_does_not_speak_for_a_paper(made_up: Make) -> None:
    page = page_of("combined/table", made_up("combined/table", {"combined": 0.8, "fedfr": 0.7}))
    assert "Which of the expected orderings hold" in page.text
    assert "The paper says" not in page.text


def test_cells_without_every_score_do_not_count_as_finished(made_up: Make) -> None:
    results = made_up("fedgc/table-4", {"fedpe": 0.70})
    assert "3 of 27" in page_of("fedgc/table-4", results).text
    for path in results.glob("*.json"):
        content = json.loads(path.read_text())
        del content["scores"]["lfw @lfw112-dev+pairs accuracy"]
        path.write_text(json.dumps(content))
    assert "0 of 27" in page_of("fedgc/table-4", results).text
