"""The example that compares rules of clustering: distances come from the source, the table from what was scored."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedvisage.clustering import c_finch, largest_pure_distance, pairwise_f

EXAMPLE = Path(__file__).parents[2] / "examples" / "merge_rules.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("merge_rules", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def people(example: ModuleType, seed: int, count: int) -> object:
    rng = np.random.default_rng(seed)
    truth = np.arange(count).repeat(5)
    x = rng.normal(size=(count, 16))[truth] + 0.4 * rng.normal(size=(len(truth), 16))
    return example.People(x.astype(np.float32), truth)


def test_distances_come_from_the_source_and_scores_from_each_set(example: ModuleType) -> None:
    sets = {name: people(example, number, 8) for number, name in enumerate(example.SETS)}
    rows = example.rows(sets, 1)
    source, target = sets["source"], sets["target"]
    d = largest_pure_distance(lambda d: c_finch(source.x, d), source.truth)  # type: ignore[attr-defined]
    pure = rows["C-FINCH as published, purity"]
    assert pure.distance == d
    assert pure.f["target"] == 100 * pairwise_f(target.truth, c_finch(target.x, d))  # type: ignore[attr-defined, arg-type]
    lines = example.table([rows, rows])
    assert len(lines) == 2 + len(rows)
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    assert any(line.startswith(f"| C-FINCH as published, purity | {d:.2f} | ") for line in lines)
    assert len(example.over_distances([sets, sets])) == 2 + 2 * len(example.BY_DISTANCE)


def test_the_spread_is_over_seeds_and_one_value_has_none(example: ModuleType) -> None:
    assert example.shown([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert example.shown([90.5, 90.5, 90.5]) == "90.5"
    assert example.shown([np.nan]) == ""


def test_the_nearest_impostors(example: ModuleType) -> None:
    x = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], np.float32)
    people = example.People(x, np.array([0, 0, 1, 2]))  # of different people: √2, √2, √2, 2 and 2
    assert example.impostors(people, 0.0) == pytest.approx(np.sqrt(2))
    assert example.impostors(people, 1.0) == pytest.approx(2.0)
