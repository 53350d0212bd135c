"""A stand-in never goes by the name of what it stands for; the paper's names are for the paper's numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from page_reader import Page
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.studies import home, list_studies, load_study, write_study

Make = Callable[..., Path]
BENCHMARKS = re.compile(
    r"IJB|MegaFace|MS1M|VGG|CFP|AgeDB|RFW|CALFW|CPLFW|SLLFW|FedFRBench|WebFace|DeepGlint|\bGA\b|african|caucasian", re.I
)
"""Sets that no scale but the paper's uses."""
LFW = re.compile(r"\bLFW\b(?! people| folds 6 and 7)")
"""LFW's people are used, and of its own list of pairs two folds."""


@pytest.mark.parametrize("name", list_studies())
def test_heads_and_labels_name_what_is_used(name: str) -> None:
    study = load_study(name)
    for scale in set(study.scales) - {"paper"}:
        shown = [column.head(scale) for column in study.measured(scale)]
        shown += [row.label for row in study.at_scale(scale).rows]
        assert [text for text in shown if BENCHMARKS.search(text) or LFW.search(text)] == [], scale
        assert all("LFW" not in text for text in shown if scale == "smoke")


@pytest.mark.parametrize("name", list_studies())
def test_a_rate_is_said_to_be_one(name: str) -> None:
    study = load_study(name)
    for scale in set(study.scales) - {"paper"}:
        for column in study.measured(scale):
            rate = re.search(r"(tar|tpir)@[0-9.]+", column.by[scale].metric, re.I)
            assert rate is None or rate[0].upper() in column.head(scale)


def test_at_paper_scale_a_column_has_the_papers_name() -> None:
    for name in list_studies():
        for column in load_study(name).measured("paper"):
            assert column.head("paper") == column.name


def test_the_papers_names_stand_over_its_numbers_only(made_up: Make) -> None:
    results = made_up("fedfr/table-1", {"pre-trained": 0.8, "fedavg": 0.81, "fedfr": 0.83})
    page = Page.read(write_study("fedfr/table-1", "laptop", results, results / "page.html"))
    heads = page.tables["The paper's numbers and ours"][0]
    assert heads[1:3] == ["paper: IJB-C 1:1 @1e-5", "LFW people, templates, TAR@0.001"]
    assert all(head.startswith("paper: ") for head in heads if BENCHMARKS.search(head))
    named = {row[0] for label, rows in page.tables.items() if label.startswith("Orderings") for row in rows[1:]}
    assert named >= {"LFW people, templates, TAR@0.001", "LFW people, templates, TAR@0.01"}
    assert not any(map(BENCHMARKS.search, named))
    drawings = [str(attributes["aria-label"]) for tag, attributes in page.tags if tag == "svg"]
    assert drawings
    assert not any(BENCHMARKS.search(text) for text in drawings)


def test_the_command_names_them_alike(made_up: Make) -> None:
    results = made_up("fedfr/table-1", {"pre-trained": 0.8, "fedfr": 0.83})
    asked = ["study", "report", "fedfr/table-1", "--results", str(results), "--out", str(results / "page.html")]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert found["columns"]["LFW people, templates, TAR@0.001"]["column"] == "IJB-C 1:1 @1e-5"
    assert set(found["rows"]["fedfr"]) == set(found["columns"])
    assert {one["column"] for one in found["orderings"]} <= set(found["columns"])
    lines = CliRunner().invoke(app, asked).output.splitlines()
    assert all(re.search("paper(: |'s )", line) for line in lines if BENCHMARKS.search(line))


def test_two_columns_that_look_alike_are_refused(tmp_path: Path) -> None:
    text = (home() / "fedgc" / "_base.toml").read_text().replace("ORL, TAR@0.1", "actors, TAR@0.1")
    (tmp_path / "p").mkdir()
    rows = 'title = "t"\nsource = "s"\n[[rows]]\nname = "a"\nlabel = "A"\n'
    (tmp_path / "p" / "own.toml").write_text(rows + text)
    with pytest.raises(FedVisageError, match=r"shows two columns as 'actors, TAR@0\.1' at laptop scale"):
        load_study("p/own", tmp_path)


def test_a_swept_setting_has_the_values_of_its_scale() -> None:
    study = load_study("feduda/sensitivity")
    for scale, values in (("laptop", [0.66, 0.74, 0.82, 0.9]), ("trained", [0.2, 0.24, 0.28, 0.32])):
        rows = [row for row in study.at_scale(scale).rows if row.line == "d"]
        assert [row.x for row in rows] == values
        assert [row.label for row in rows] == [f"d = {value:g}" for value in values]
