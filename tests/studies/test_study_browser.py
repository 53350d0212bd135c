"""The page of a study in a real browser: light, dark and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser

from fedvisage.studies import write_study


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
    assert len(sight.figures) >= 5
    for figure in sight.figures:
        assert figure["width"] > 250
        assert figure["marks"] > 5
        assert figure["outside"] == []
    bright = sum(map(int, sight.background[4:-1].split(", "))) > 3 * 128
    assert bright != dark
