"""The demo's claim: federating helps, on whatever machine it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedvisage as fv


@pytest.mark.timeout(1200)
def test_the_demo_gains_beyond_chance_over_a_control_that_trains_nothing(tmp_path: Path) -> None:
    run = fv.run(fv.load_recipe("demo", {"compare": [], "evaluation.every": 0}), out=tmp_path / "demo")
    assert run.answer is not None
    assert run.answer["verdict"] == "helps"
    assert run.answer["gain"]["low"] > 0
    assert run.answer["validated"], "validation people chose between raw and centred scores"
    assert run.answer["people"] == 200
    assert run.warnings == []
