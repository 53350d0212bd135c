"""FINCH against finch-clust, C-FINCH against its definition by brute force, and the edges of both."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.clustering import (
    c_finch,
    c_finch_partitions,
    dbscan,
    drop_small,
    finch,
    in_order,
    k_means,
    pairwise_f,
    sizes,
)
from fedvisage.core.errors import FedVisageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns when pynndescent, which it needs for large sets only, is missing
    from finch import FINCH

seeds = st.integers(0, 2**32 - 1)


def blobs(seed: int, people: int, images: int, size: int = 8, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(people).repeat(images)
    return rng.normal(size=(people, size))[labels] + noise * rng.normal(size=(people * images, size)), labels


def flood(links: np.ndarray) -> np.ndarray:
    """Connected components of a boolean matrix (N, N), by flooding."""
    labels = np.full(len(links), -1)
    for start in range(len(links)):
        if labels[start] < 0:
            number, reached = labels.max() + 1, [start]
            while reached:
                here = reached.pop()
                if labels[here] < 0:
                    labels[here] = number
                    reached += np.flatnonzero(links[here] & (labels < 0)).tolist()
    return labels


def by_definition(
    x: np.ndarray, threshold: float, measure: Callable[[np.ndarray], np.ndarray], normalise: bool, again: bool
) -> list[np.ndarray]:
    """C-FINCH as the paper defines it, with all links of all pairs."""

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    x = unit(x) if normalise else x
    labels, levels = np.arange(len(x)), [np.arange(len(x))]
    while True:
        means = np.stack([x[labels == cluster].mean(axis=0) for cluster in range(labels.max() + 1)])
        if again and len(levels) > 1:
            means = unit(means)
        distance = measure(means)
        np.fill_diagonal(distance, np.inf)
        first = distance.argmin(axis=1)
        numbers = np.arange(len(means))
        links = (first[:, None] == numbers) | (numbers[:, None] == first) | (first[:, None] == first)
        merged = flood(links & (distance < threshold))
        if len(means) == 1 or merged.max() + 1 == len(means):
            return levels
        labels = merged[labels]
        levels.append(labels)


def euclidean(x: np.ndarray) -> np.ndarray:
    return np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))


def cosine(x: np.ndarray) -> np.ndarray:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return 1 - unit @ unit.T


@given(seeds, st.integers(1, 30), st.integers(2, 5), st.floats(0.0, 1.6), st.booleans())
def test_c_finch_equals_its_definition(seed: int, count: int, size: int, threshold: float, again: bool) -> None:
    x = np.random.default_rng(seed).normal(size=(count, size))
    expected = by_definition(x, threshold, euclidean, True, again)
    found = c_finch_partitions(x, threshold, normalise_centroids=again)
    assert [level.tolist() for level in found] == [level.tolist() for level in expected]
    assert c_finch(x, threshold, normalise_centroids=again).tolist() == expected[-1].tolist()


@given(seeds, st.integers(1, 30), st.floats(0.0, 3.0))
def test_c_finch_equals_its_definition_in_other_metrics(seed: int, count: int, threshold: float) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    expected = by_definition(x, threshold, euclidean, False, False)[-1]
    assert c_finch(x, threshold, normalise=False, normalise_centroids=False).tolist() == expected.tolist()
    squared = c_finch(x, threshold**2, metric="squared-euclidean", normalise=False, normalise_centroids=False)
    assert squared.tolist() == expected.tolist()
    expected = by_definition(x, threshold, cosine, True, True)[-1]
    assert c_finch(x, threshold, metric="cosine").tolist() == expected.tolist()


def mutual_by_definition(x: np.ndarray, threshold: float, metric: str) -> np.ndarray:
    """The safer rule with all pairs of members looked at, one by one."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.arange(len(x))
    while True:
        members = [x[labels == cluster] for cluster in range(labels.max() + 1)]
        means = np.stack([m.mean(axis=0) for m in members])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        distance = euclidean(means)
        np.fill_diagonal(distance, np.inf)
        first = distance.argmin(axis=1)
        links = np.zeros(distance.shape, bool)
        for i, j in enumerate(first):
            pairs = [1 - a @ b if metric == "cosine" else ((a - b) ** 2).sum() for a in members[i] for b in members[j]]
            apart = np.sqrt(np.mean(pairs)) if metric == "euclidean" else np.mean(pairs)
            if len(means) > 1 and first[j] == i and apart < threshold:
                links[i, j] = links[j, i] = True
        merged = flood(links)
        if merged.max() + 1 == len(means):
            return labels
        labels = merged[labels]


@given(seeds, st.integers(1, 30), st.floats(0.0, 1.6), st.sampled_from(["euclidean", "squared-euclidean", "cosine"]))
def test_the_safer_rule_equals_its_definition(seed: int, count: int, threshold: float, metric: str) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    found = c_finch(x, threshold, metric=metric, merge="mutual")
    assert found.tolist() == in_order(mutual_by_definition(x, threshold, metric)).tolist()


@given(seeds, st.floats(0.1, 1.5))
def test_the_safer_rule_joins_nobody_who_is_further_apart_than_the_threshold_on_average(seed: int, d: float) -> None:
    """The last merge of a cluster was within d, and merges before it too, so its members are within d on average."""
    x, _ = blobs(seed, 5, 6)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = c_finch(x, d, merge="mutual")
    for cluster in range(labels.max() + 1):
        own = x[labels == cluster]
        if len(own) > 1:
            pairs = euclidean(own)[np.triu_indices(len(own), 1)]
            assert np.sqrt(np.mean(pairs**2)) < d


def test_a_chain_of_links_joins_people_whom_the_safer_rule_keeps_apart() -> None:
    """Points along an arc, each within reach of the next: one cluster as published, several by the safer rule."""
    angle = np.linspace(0, 2.0, 21) + 0.001 * np.arange(21) ** 2 / 21
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert c_finch(x, 0.4).max() == 0
    assert c_finch(x, 0.4, merge="mutual").max() >= 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_first_partition_equals_that_of_finch_clust(seed: int, metric: str) -> None:
    x, _ = blobs(seed, 40, 8, noise=0.8)
    theirs, _, _ = FINCH(x, distance=metric, verbose=False)
    assert np.array_equal(finch(x, metric=metric)[0], in_order(theirs[:, 0]))


@given(seeds, st.integers(2, 60))
def test_finch_goes_from_fine_to_one_cluster_by_merging(seed: int, count: int) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 4))
    levels = finch(x)
    assert levels[-1].max() == 0
    before = np.arange(count)
    for level in levels:
        assert level.max() + 1 <= (before.max() + 1) // 2  # everybody has a first neighbour
        assert all(len(np.unique(level[before == cluster])) == 1 for cluster in range(before.max() + 1))
        before = level


@given(seeds, st.floats(0.1, 1.5), st.floats(1e-3, 1e3))
def test_neither_order_nor_length_matters(seed: int, threshold: float, length: float) -> None:
    x, _ = blobs(seed, 5, 6)
    order = np.random.default_rng(seed).permutation(len(x))
    labels = c_finch(x, threshold)
    assert in_order(labels[order]).tolist() == c_finch(length * x[order], threshold).tolist()


def test_people_who_are_far_apart_are_found() -> None:
    x, people = blobs(0, 30, 12, size=64, noise=0.3)
    assert pairwise_f(people, c_finch(x, 0.9)) == 1.0
    assert pairwise_f(people, c_finch(x.astype(np.float32), 0.9)) == 1.0
    assert pairwise_f(people, k_means(x, 30, np.random.default_rng(0))) > 0.8
    assert pairwise_f(people, dbscan(x, 0.7)) == 1.0


def test_the_threshold_is_exclusive_and_zero_links_nobody() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert c_finch(x, np.sqrt(2)).tolist() == [0, 1]
    assert c_finch(x, np.sqrt(2) + 1e-9).tolist() == [0, 0]
    assert c_finch(np.ones((3, 2)), 0.0).tolist() == [0, 1, 2]


def test_edges() -> None:
    x, _ = blobs(0, 6, 5)
    assert c_finch(x, 1e-9).tolist() == list(range(30))
    assert c_finch(x, 3.0).tolist() == [0] * 30
    assert c_finch(np.ones((7, 3)), 0.1).tolist() == [0] * 7
    assert c_finch(np.ones((1, 3)), 0.5).tolist() == [0]
    assert finch(np.ones((1, 3)))[0].tolist() == [0]
    assert finch(np.eye(2))[0].tolist() == [0, 0]
    assert c_finch(np.array([[1.0, 0.0], [-1.0, 0.0]]), 3.0).tolist() == [0, 0]  # a centroid without direction
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert c_finch(opposite, 5.0).tolist() == [0] * 4


def test_approximate_search_gives_nearly_the_same_clusters() -> None:
    pytest.importorskip("faiss", reason="the approximate extra is not installed")
    x, people = blobs(0, 60, 12, size=32, noise=0.3)
    assert pairwise_f(people, c_finch(x.astype(np.float32), 0.9, search="approximate")) > 0.98


def test_labels_are_put_in_order_counted_and_dropped() -> None:
    labels = [7, 3, 7, -1, 3, 9, -5]
    assert in_order(labels).tolist() == [0, 1, 0, -1, 1, 2, -1]
    assert sizes(in_order(labels)).tolist() == [2, 2, 1]
    assert drop_small(labels, 2).tolist() == [0, 1, 0, -1, 1, -1, -1]
    assert drop_small(labels, 3).tolist() == [-1] * 7
    assert drop_small(labels, 1).tolist() == [0, 1, 0, -1, 1, 2, -1]
    assert sizes([-1, -1]).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: c_finch(np.eye(3), -0.1), "threshold of C-FINCH is a distance"),
        (lambda: c_finch(np.eye(3), float("nan")), "got nan"),
        (lambda: c_finch(np.eye(3), 0.5, metric="l2"), "unknown metric 'l2'"),
        (lambda: c_finch(np.eye(3), 0.5, merge="mutul"), "unknown merge rule 'mutul': did you mean 'mutual'"),
        (lambda: finch(np.ones(3)), "embeddings are real numbers"),
        (lambda: k_means(np.eye(3), 4, np.random.default_rng(0)), "1 to 3 clusters"),
        (lambda: dbscan(np.eye(3), 0.0), "positive radius"),
        (lambda: in_order([0.5]), "labels are integers"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedVisageError, match=message):
        call()
