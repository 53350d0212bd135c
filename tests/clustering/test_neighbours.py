"""First neighbours: equal to all pairs written out, for any tile, metric and input; faiss's recall is measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.clustering import first_neighbours, neighbour_recall, neighbours
from fedvisage.core.errors import FedVisageError

METRICS = ("euclidean", "squared-euclidean", "cosine")


def slow_distances(x: np.ndarray, metric: str, normalise: bool) -> np.ndarray:
    """All distances (N, N), the diagonal infinite."""
    x = x.astype(np.float64)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    if metric == "cosine":
        result = 1 - unit @ unit.T
    else:
        x = unit if normalise else x
        result = ((x[:, None] - x) ** 2).sum(axis=2)
        result = np.sqrt(result) if metric == "euclidean" else result
    np.fill_diagonal(result, np.inf)
    return result


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.integers(2, 6),
    st.sampled_from(METRICS),
    st.booleans(),
    st.integers(1, 45),
    st.floats(0, 100),
)
def test_first_neighbours_equal_all_pairs_written_out(
    seed: int, count: int, size: int, metric: str, normalise: bool, tile: int, offset: float
) -> None:
    x = np.random.default_rng(seed).normal(size=(count, size)) + offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "TILE", tile)
        found = first_neighbours(x, metric=metric, normalise=normalise)
    expected = slow_distances(x, metric, normalise)
    np.testing.assert_allclose(found.distance, expected.min(axis=1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(expected[np.arange(count), found.position], expected.min(axis=1), rtol=1e-5, atol=1e-7)
    assert (found.position != np.arange(count)).all()


def test_float32_and_tensors_give_the_same_neighbours() -> None:
    x = np.random.default_rng(0).normal(size=(500, 32))
    expected = first_neighbours(x)
    for given_x in (x.astype(np.float32), torch.from_numpy(x).float(), np.asfortranarray(x)):
        found = first_neighbours(given_x)
        assert np.array_equal(found.position, expected.position)
        np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-5)


def test_embeddings_far_from_the_origin_keep_their_neighbours_in_float32() -> None:
    x = (np.random.default_rng(0).normal(size=(300, 8)) + 1000).astype(np.float32)
    found = first_neighbours(x, normalise=False)
    assert np.array_equal(found.position, slow_distances(x, "euclidean", False).argmin(axis=1))


@pytest.mark.parametrize("tile", [2, 3, 1024])
def test_of_equally_close_ones_the_first_counts_and_duplicates_are_at_distance_zero(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "TILE", tile)
    x = np.eye(4, dtype=np.float32)
    assert first_neighbours(x).position.tolist() == [1, 0, 0, 0]
    twice = first_neighbours(np.concatenate([x, x, x]))
    assert twice.position.tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 0, 1, 2, 3]
    assert not twice.distance.any()


def test_inputs_are_left_alone() -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    before = x.copy()
    for metric in METRICS:
        for normalise in (True, False):
            first_neighbours(x, metric=metric, normalise=normalise)
    assert np.array_equal(x, before)


def test_approximate_neighbours_and_their_recall() -> None:
    pytest.importorskip("faiss", reason="the approximate extra is not installed")
    rng = np.random.default_rng(0)
    people = rng.normal(size=(300, 32))
    x = (people.repeat(5, axis=0) + 0.5 * rng.normal(size=(1500, 32))).astype(np.float32)
    exact = first_neighbours(x)
    for metric in METRICS:
        found = first_neighbours(x, metric=metric, search="approximate")
        recall = neighbour_recall(x, found.position, metric=metric, sample=1500)
        assert recall == pytest.approx(np.mean(found.position == exact.position), abs=1e-3)
        assert recall > 0.95
        assert (found.position != np.arange(1500)).all()
    assert neighbour_recall(x, exact.position, rng=rng, sample=100) == 1.0
    assert neighbour_recall(x, np.roll(np.arange(1500), 750), sample=200) < 0.05
    duplicates = np.ones((20, 8), np.float32)
    assert (first_neighbours(duplicates, search="approximate").position != np.arange(20)).all()
    assert first_neighbours(x[:2], search="approximate").position.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: first_neighbours(np.ones((1, 3))), "at least 2 embeddings"),
        (lambda: first_neighbours(np.ones(3)), r"got float64 \(3,\)"),
        (lambda: first_neighbours(np.ones((0, 3))), "not empty"),
        (lambda: first_neighbours([["a"], ["b"]]), "real numbers"),
        (lambda: first_neighbours([[1.0, np.nan], [1.0, 2.0]]), "1 of 2 embeddings hold NaN"),
        (lambda: first_neighbours([[0.0, 0.0], [1.0, 2.0]]), "1 of 2 embeddings are zero vectors"),
        (lambda: first_neighbours(np.eye(2), metric="cosin"), "did you mean 'cosine'"),
        (lambda: first_neighbours(np.eye(2), search="fast"), "unknown search 'fast'"),
        (lambda: neighbour_recall(np.eye(2), [1]), "no recall"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedVisageError, match=message):
        call()


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_finds_the_same_neighbours_the_first_of_equals(threads: int) -> None:
    rng = np.random.default_rng(5)
    x = np.eye(40)[rng.integers(0, 40, 200)]  # everybody several times, and all products are exact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "TILE", 16)
        alone = first_neighbours(x)
        torch.set_num_threads(threads)
        try:
            several = first_neighbours(x)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
    assert np.array_equal(alone.position, several.position)
    same = (x[:, None] == x).all(axis=2)
    np.fill_diagonal(same, False)
    twice = same.any(axis=1)
    assert np.array_equal(alone.position[twice], same[twice].argmax(axis=1))
