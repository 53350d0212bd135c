"""Blocks over all pairs give what one dense score matrix gives."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import all_pairs_verification, pair_scores, tar_at_far


@st.composite
def labelled_embeddings(draw):
    """Embeddings with entries 0 and +-1 of which 1, 4 or 16 are not 0, so that cosines are exact and tie often."""
    images = draw(st.integers(4, 40))
    labels = draw(st.lists(st.integers(0, 8), min_size=images - 3, max_size=images - 3))
    labels = np.array(draw(st.permutations([100, 100, 200, *labels])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    embeddings = np.zeros((images, 16))
    for row in embeddings:
        some = rng.choice(16, size=rng.choice([1, 4, 16]), replace=False)
        row[some] = rng.choice([-1, 1], size=some.size)
    return embeddings, labels


def dense(embeddings, labels):
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = {True: [], False: []}
    for i, j in combinations(range(len(unit)), 2):
        scores[bool(labels[i] == labels[j])].append(float(np.dot(unit[i], unit[j])))
    return scores[True], scores[False]


@cases(120)
@given(labelled_embeddings(), st.integers(1, 50), st.sampled_from([np.float32, np.float64]))
def test_blocks_equal_the_dense_reference(case, block, dtype):
    embeddings, labels = case
    genuine, impostor = dense(embeddings, labels)
    fars = [1.0, 0.5, 0.1, 0.01, 1e-6]
    result = all_pairs_verification(embeddings, labels, fars, block=block, dtype=dtype)
    assert (result.genuine, result.impostor) == (len(genuine), len(impostor))
    for far, rate in zip(fars, result.rates, strict=True):
        assert repr(rate) == repr(tar_at_far(genuine, impostor, far))  # repr, so that NaN equals NaN
        assert repr(result.tar[far]) == repr(rate.value)
        assert repr(result.threshold[far]) == repr(rate.threshold)
    parts = list(pair_scores(embeddings, labels, block=block, dtype=dtype))
    assert sorted(np.concatenate([part[0] for part in parts])) == sorted(genuine)
    assert sorted(np.concatenate([part[1] for part in parts])) == sorted(impostor)


def test_only_the_largest_impostor_scores_are_needed_on_a_larger_set():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 60, 700)
    embeddings = rng.normal(size=(60, 32))[labels] + 1.5 * rng.normal(size=(700, 32))
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    left, right = np.triu_indices(700, 1)
    scores = (unit @ unit.T)[left, right]
    same = labels[left] == labels[right]
    for far in (1e-1, 1e-3, 1e-4):
        reference = tar_at_far(scores[same], scores[~same], far)
        for block in (64, 1024):
            rate = all_pairs_verification(embeddings, labels, [far, 1e-5], block=block).rates[0]
            assert rate.value == reference.value
            assert rate.threshold == pytest.approx(reference.threshold, abs=1e-14)
            assert rate.measured_far == reference.measured_far


def test_names_serve_as_labels():
    result = all_pairs_verification(np.eye(3)[[0, 0, 1]], ["ann", "ann", "bob"], [1.0, 0.5])
    assert (result.genuine, result.impostor) == (1, 2)
    assert result.tar == {1.0: 1.0, 0.5: 1.0}


def test_bad_input_is_named_with_counts():
    good = np.eye(4)
    for embeddings, labels, fars, words in [
        (good, [0, 1, 2, 3], [0.1], "0 genuine and 6 impostor pairs among 4 embeddings"),
        (good, [0, 0, 0, 0], [0.1], "6 genuine and 0 impostor"),
        (good, [0, 0, 1], [0.1], "3 labels for 4 embeddings"),
        (good * np.nan, [0, 0, 1, 1], [0.1], "4 of 4 embeddings"),
        (good * 0, [0, 0, 1, 1], [0.1], "4 of 4 embeddings in embeddings are zero"),
        (good, [0, 0, 1, np.nan], [0.1], "1 of 4 labels"),
        (good, [0, 0, 1, 1], [0.1, 0], r"\(0, 1\]"),
        (good, [0, 0, 1, 1], [], "no false-accept rate"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            all_pairs_verification(embeddings, labels, fars)
    with pytest.raises(FedVisageError, match="block"):
        all_pairs_verification(good, [0, 0, 1, 1], [1.0], block=0)
    with pytest.raises(FedVisageError, match="float16"):
        all_pairs_verification(good, [0, 0, 1, 1], [1.0], dtype=np.float16)
