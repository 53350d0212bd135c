"""The present code against the committed table of what must stay (see `freeze`)."""

from __future__ import annotations

import json
from pathlib import Path

import freeze
import pytest

TABLE = json.loads(freeze.COMMITTED.read_text())
ELSEWHERE = "bits were committed on another machine; compare two commits with `python tests/freeze.py` instead"


@pytest.mark.skipif(freeze.machine() != TABLE["machine"], reason=ELSEWHERE)
@pytest.mark.parametrize("name", TABLE["bits"])
def test_every_method_still_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    assert freeze.bits(freeze.run_case(name, tmp_path)) == TABLE["bits"][name]


@pytest.mark.parametrize("name", TABLE["folders"])
def test_a_run_folder_still_has_every_file_and_key(name: str, tmp_path: Path) -> None:
    assert freeze.missing(TABLE["folders"][name], freeze.folder_format(freeze.run_case(name, tmp_path))) == []


def test_commands_still_print_every_key(tmp_path: Path) -> None:
    assert freeze.missing(TABLE["commands"], freeze.commands(freeze.run_case("fedavg", tmp_path))) == []


def test_every_method_is_still_planned_to_cost_the_same(tmp_path: Path) -> None:
    assert freeze.missing(TABLE["plans"], freeze.plans(tmp_path)) == []


def test_finished_cells_still_have_their_keys() -> None:
    assert freeze.missing(TABLE["cells"], freeze.cell_keys()) == []


def test_the_comparison_sees_what_is_lost_or_changed_and_passes_what_is_new() -> None:
    before = {"a": {"b": "number"}, "c": "nothing"}
    assert freeze.missing(before, {"a": {"b": "number", "new": "text"}, "c": "text"}) == []
    assert freeze.missing(before, {"a": {}, "c": "text"}) == ["/a: no 'b' any more"]
    assert freeze.missing(before, {"a": {"b": "text"}}) == [": no 'c' any more", "/a/b: was number, is text"]
