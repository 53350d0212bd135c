"""Every recipe that comes with the package runs, for a round and on few images."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedvisage as fv
from fedvisage.config import shipped_recipes

FEW = {
    "faces.size": 32,
    "faces.images_per_identity": 4,
    "federation.rounds": 1,
    "federation.workers": 1,
    "evaluation.pairs": 200,
    "evaluation.fars": [0.1],
}


@pytest.mark.parametrize("name", shipped_recipes())
def test_it_runs(name: str, tmp_path: Path) -> None:
    recipe = fv.load_recipe(name, FEW)
    if recipe.pretrain.epochs:
        recipe = fv.load_recipe(name, FEW | {"pretrain.epochs": 1})
    result = fv.run(recipe, out=tmp_path / name)
    expected = {"start", recipe.method["name"], *recipe.compare}
    assert set(result.scores) == expected
    assert all(0 < score["accuracy"] <= 1 for score in result.scores.values())
    assert result.report_path.exists()
