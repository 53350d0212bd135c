"""Pair lists are balanced, distinct, seeded, and their folds share nobody."""

from __future__ import annotations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import make_pairs


@cases(100)
@given(
    images=st.lists(st.integers(2, 6), min_size=6, max_size=40),
    folds=st.integers(1, 3),
    each=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_folds_are_balanced_distinct_and_share_nobody(images, folds, each, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(images)), images))
    left, right, same = make_pairs(labels, 2 * folds * each, np.random.default_rng(seed), folds)
    assert np.array_equal(same, labels[left] == labels[right])
    assert len({frozenset(pair) for pair in zip(left.tolist(), right.tolist(), strict=True)}) == len(same)
    assert (left != right).all()
    people = []
    for fold in range(folds):
        rows = slice(fold * 2 * each, (fold + 1) * 2 * each)
        assert same[rows].tolist() == [True] * each + [False] * each
        people.append(set(labels[left[rows]]) | set(labels[right[rows]]))
    assert sum(map(len, people)) == len(set().union(*people))


def test_every_pair_is_drawn_when_all_are_asked_for():
    # Two folds of two people with two images each: per fold 2 genuine and 4 impostor pairs.
    labels = np.repeat([7, 8, 9, 10], 2)
    left, right, same = make_pairs(labels, 8, np.random.default_rng(0), 2)
    assert same.sum() == 4
    assert sorted(labels[left[same]]) == [7, 8, 9, 10]
    assert len(set(zip(left, right, strict=True))) == 8


def test_pairs_of_a_kind_are_equally_likely():
    # One fold of three people with two images: 3 genuine and 12 impostor pairs, one of each drawn 3,000 times. Counts
    # have means 1,000 and 250; the bounds are 5 standard deviations.
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], 2)
    drawn = np.array([np.stack(make_pairs(labels, 2, rng, 1)[:2], axis=1) for _ in range(3000)])
    for kind, pairs, spread in ((0, 3, 130), (1, 12, 77)):
        counts = np.unique(drawn[:, kind] @ [6, 1], return_counts=True)[1]
        assert len(counts) == pairs
        assert abs(counts - 3000 / pairs).max() < spread


def test_the_same_seed_gives_the_same_pairs_and_names_serve_as_labels():
    labels = np.repeat([f"person {i}" for i in range(40)], 5)
    first = make_pairs(labels, 200, np.random.default_rng(5))
    again = make_pairs(labels, 200, np.random.default_rng(5))
    other = make_pairs(labels, 200, np.random.default_rng(6))
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert not np.array_equal(first.left, other.left)


def test_people_with_many_images_do_not_starve_other_folds():
    labels = np.concatenate([np.repeat(np.arange(10), 30), np.repeat(np.arange(10, 20), 2), np.arange(20, 40)])
    _, _, same = make_pairs(labels, 10 * 2 * 30, np.random.default_rng(0))
    assert same.sum() == 300


def test_too_few_identities_or_images_is_said_with_the_counts():
    rng = np.random.default_rng(0)
    for labels, count, folds, words in [
        (
            np.repeat(np.arange(19), 4),
            200,
            10,
            "10 folds need at least 20 identities, two each, but the labels name 19",
        ),
        (np.arange(40), 20, 10, "has 0 genuine pairs .4 images of 4 identities. but 1 are asked for"),
        (np.repeat(np.arange(2), 10), 202, 1, "has 90 genuine pairs .20 images of 2 identities. but 101"),
        (np.repeat(np.arange(2), [30, 1]), 62, 1, "has 30 impostor pairs"),
        (np.repeat(np.arange(40), 4), 30, 10, "multiple of 20"),
        (np.repeat(np.arange(40), 4), 0, 10, "at least one pair"),
        ([], 20, 1, "the labels name 0"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            make_pairs(labels, count, rng, folds)
