"""The distance that keeps known people apart, against trying every one, and the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvisage.clustering import c_finch, choose_distance, dbscan, largest_pure_distance, pairwise
from fedvisage.core.errors import FedVisageError

RULES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "c-finch": c_finch,
    "mutual": lambda x, d: c_finch(x, d, merge="mutual"),
    "dbscan": dbscan,
}


def mixes_people(labels: np.ndarray, truth: np.ndarray) -> bool:
    """Whether two images of different people have one label, pair by pair."""
    pairs = [(i, j) for i in range(len(truth)) for j in range(i)]
    return any(labels[i] == labels[j] >= 0 and truth[i] != truth[j] for i, j in pairs)


def some(seed: int, people: int, images: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.arange(people).repeat(images)
    return rng.normal(size=(people, 4))[truth] + noise * rng.normal(size=(len(truth), 4)), truth


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(1, 4), st.floats(0.02, 1.0))
def test_it_is_what_trying_every_distance_gives(rule: str, seed: int, people: int, images: int, noise: float) -> None:
    x, truth = some(seed, people, images, noise)
    clusters = {step / 100: RULES[rule](x, step / 100) for step in range(1, 201)}
    expected = None
    for distance, labels in clusters.items():
        if mixes_people(labels, truth):
            break
        expected = distance
    assert largest_pure_distance(clusters.__getitem__, truth) == expected
    found = choose_distance(clusters.__getitem__, truth)
    assert (found.pure.distance if found.pure else None) == expected
    together = next((d for d, labels in clusters.items() if (labels == 0).all()), 2.0)
    scores = {d: pairwise(truth, labels) for d, labels in clusters.items() if d <= together}
    best = max(scores, key=lambda d: scores[d].f)
    assert (found.best.distance, found.best.pairwise) == (best, scores[best])


def test_a_distance_beyond_an_impure_one_is_not_taken() -> None:
    """C-FINCH is not monotone; here 0.02 is impure, and 0.03 and more are pure again."""
    truth = np.array([0, 0, 1, 1])
    apart, mixed, one = np.arange(4), np.array([0, 1, 1, 2]), np.zeros(4, np.int64)
    labels = {0.01: apart, 0.02: mixed}
    cluster = lambda d: labels.get(d, one if d > 1 else np.array([0, 0, 1, 1]))  # noqa: E731
    assert largest_pure_distance(cluster, truth) == 0.01
    found = choose_distance(cluster, truth)
    assert found.pure is not None
    assert (found.pure.distance, found.pure.clusters, found.best.distance) == (0.01, 4, 0.03)


def test_c_finch_is_not_monotone() -> None:
    """Among random sets there is one that is impure at some distance and pure at a larger one."""

    def pure_again(seed: int) -> bool:
        x, truth = some(seed, 3, 4, 0.5)
        pure = [not mixes_people(c_finch(x, step / 100), truth) for step in range(1, 201)]
        return not all(pure) and any(pure[pure.index(False) :])

    assert any(pure_again(seed) for seed in range(300))


def test_edges() -> None:
    x = np.eye(3)
    alone = choose_distance(lambda d: c_finch(x, d), np.arange(3))  # all singletons: until the first two meet, at 1.414
    assert alone.pure is not None
    assert (alone.pure.distance, alone.pure.clusters, alone.pure.pairwise.f) == (1.41, 3, 1.0)
    same = np.ones((4, 3))
    assert largest_pure_distance(lambda d: c_finch(same, d), [0, 0, 1, 1]) is None
    assert choose_distance(lambda d: dbscan(same, d), ["a", "a", "b", "b"]).pure is None
    apart = np.array([[1.0, 0.0], [-1.0, 0.0]])  # never closer than 2, and the threshold is exclusive
    assert largest_pure_distance(lambda d: c_finch(apart, d), [0, 1]) == 2.0
    with pytest.raises(FedVisageError, match="fewer than two people"):
        largest_pure_distance(lambda d: c_finch(x, d), [5, 5, 5])
    with pytest.raises(FedVisageError, match="fewer than two people"):
        choose_distance(lambda d: c_finch(x, d), [])
