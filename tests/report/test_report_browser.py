"""The page of a real run in a real browser: light, dark and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser

import fedvisage as fv


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small run with every section that one run can have."""
    changes = {
        "federation.rounds": 2,
        "federation.workers": 1,
        "federation.evaluate_every": 1,
        "evaluation.every": 1,
        "pretrain.epochs": 1,
        "method.name": "fedgc",
        "compare": ["alone"],
    }
    return fv.run(fv.load_recipe("smoke", changes), out=tmp_path_factory.mktemp("runs") / "run").report_path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_page_of_a_run_is_whole(browser: Browser, page: Path, width: int, dark: bool) -> None:
    sight = browser.look(page, width, dark=dark)
    assert sight.complaints == []
    assert sight.requests == [page.resolve().as_uri()]
    assert sight.overflow == 0
    assert len(sight.figures) >= 12
    for figure in sight.figures:
        assert figure["width"] > 250, figure["label"]
        assert figure["marks"] > 3, figure["label"]
        assert figure["outside"] == [], figure["label"]
    bright = sum(map(int, sight.background[4:-1].split(", "))) > 3 * 128
    assert bright != dark


def test_every_section_of_the_navigation_is_there(browser: Browser, page: Path) -> None:
    browser.look(page)
    script = (
        '[...document.querySelectorAll("nav a")].filter(a => !document.querySelector(a.getAttribute("href"))).length'
    )
    assert browser.evaluate(script) == 0
    sections = browser.evaluate('[...document.querySelectorAll("section")].map(section => section.id)')
    assert {"comparison", "rates", "curves", "people", "separation", "parties", "scores", "exchanges"} <= set(sections)
