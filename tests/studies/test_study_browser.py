"""The page of a study in a real browser: light, dark and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser

from fedvisage.studies import load_study, write_study

COLLISIONS = """[...document.querySelectorAll("svg.chart g")].flatMap(group => {
  const [value] = group.querySelectorAll(":scope > .value");
  if (!value) return [];
  const right = value.getBoundingClientRect();
  return [...group.querySelectorAll(":scope > .name")].filter(name => {
    const left = name.getBoundingClientRect();
    return left.right > right.left && left.bottom > right.top && left.top < right.bottom;
  }).map(name => name.textContent);
})"""
"""Labels of rows that run into their numbers."""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_the_page_of_a_study_is_whole(
    browser: Browser, made_up: Callable[..., Path], tmp_path: Path, width: int, dark: bool
) -> None:
    rows = {f"{loss}-{kind}": 0.7 for loss in ("softmax", "cosface") for kind in ("central", "fedpe", "fedgc")}
    page = write_study("fedgc/table-5", "laptop", made_up("fedgc/table-5", rows), tmp_path / "page.html")
    sight = browser.look(page, width, dark=dark)
    assert sight.complaints == []
    assert sight.requests == [page.resolve().as_uri()]
    assert sight.overflow == 0
    assert browser.evaluate(COLLISIONS) == []
    assert len(sight.figures) >= 5
    for figure in sight.figures:
        assert figure["width"] > 250
        assert figure["marks"] > 5
        assert figure["outside"] == []
    bright = sum(map(int, sight.background[4:-1].split(", "))) > 3 * 128
    assert bright != dark


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["pfm-fv/figure-4c", "pfm-fv/figure-5", "fedgc/figure-3", "fedface/figure-4"])
def test_figures_of_every_kind_keep_their_words_inside(
    browser: Browser, made_up: Callable[..., Path], tmp_path: Path, name: str, width: int
) -> None:
    """Bars, bars about a row, drawn pairs, and lines, under the longest heads that there are."""
    scores = {row.name: 0.5 + 0.01 * number for number, row in enumerate(load_study(name).rows)}
    sight = browser.look(write_study(name, "laptop", made_up(name, scores), tmp_path / "page.html"), width)
    assert sight.complaints == []
    assert sight.overflow == 0
    assert len(sight.figures) >= (10 if name == "fedgc/figure-3" else 2)
    assert [figure["outside"] for figure in sight.figures] == [[]] * len(sight.figures)
    assert browser.evaluate(COLLISIONS) == []


def test_on_a_phone_long_labels_numbers_and_verdicts_are_in_sight(
    browser: Browser, made_up: Callable[..., Path], tmp_path: Path
) -> None:
    scores = {"pre-trained": 0.8, "fedavg": 0.81, "hn-con": 0.82, "central": 0.83}
    page = write_study("fedfr/table-1", "laptop", made_up("fedfr/table-1", scores), tmp_path / "page.html")
    sight = browser.look(page, 390)
    assert sight.overflow == 0
    assert [figure["outside"] for figure in sight.figures] == [[]] * len(sight.figures)
    assert browser.evaluate(COLLISIONS) == []
    edge = '[...document.querySelectorAll(".verdict")].map(verdict => verdict.getBoundingClientRect().right)'
    assert max(browser.evaluate(edge)) < 390
