"""Weights of the bootstrap equal a resample written out copy by copy."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import (
    all_pairs_verification,
    bootstrap_accuracy,
    bootstrap_tar,
    kfold_accuracy,
    make_pairs,
    tar_at_far,
)


def people(count, images, spread, seed=0):
    """Embeddings of `count` people around random centres, rounded so that cosines tie."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(count), images)
    embeddings = np.sign(rng.normal(size=(count, 16))[labels] + spread * rng.normal(size=(len(labels), 16)))
    return embeddings, labels


def written_out(embeddings, labels, drawn):
    """Genuine and impostor cosines of the drawn people, each copy a person of their own."""
    scores = embeddings @ embeddings.T / 16
    of = [np.flatnonzero(labels == person) for person in drawn]
    genuine = [scores[i, j] for rows in of for i, j in combinations(rows, 2)]
    impostor = [
        scores[i, j]
        for x, y in combinations(range(len(drawn)), 2)
        if drawn[x] != drawn[y]
        for i, j in product(of[x], of[y])
    ]
    return genuine, impostor


@pytest.mark.parametrize("threshold", ["re-estimated", "fixed"])
@pytest.mark.parametrize(("far", "block"), [(0.3, 7), (0.02, 1024), (1.0, 16)])
def test_tar_of_a_resample_is_that_of_its_copies(threshold, far, block):
    embeddings, labels = people(7, [3, 1, 4, 2, 2, 5, 3], 1.0)
    interval = bootstrap_tar(
        embeddings, labels, far, np.random.default_rng(4), threshold=threshold, resamples=60, level=0.8, block=block
    )
    rate = all_pairs_verification(embeddings, labels, [far]).rates[0]
    rng = np.random.default_rng(4)
    values = []
    for _ in range(60):
        genuine, impostor = written_out(embeddings, labels, rng.integers(7, size=7))
        if threshold == "fixed":
            values.append(np.mean(np.array(genuine) > rate.threshold))
        else:
            values.append(float(tar_at_far(genuine, impostor, far)))
    defined = [value for value in values if not np.isnan(value)]
    assert interval.value == rate.value
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(defined, [0.1, 0.9])), abs=1e-12)
    assert (interval.resamples, interval.undefined, interval.level) == (60, 60 - len(defined), 0.8)


def test_more_impostors_are_fetched_when_a_resample_needs_them():
    # The 1,600 most similar impostor pairs are of the first two people. Far 0.02 of 3,263 pairs asks for the largest 66
    # and 1,264 are held; a resample that misses one of the two has to look further.
    images = [40, 40, 3, 5, 4, 3, 4]
    embeddings, labels = people(7, images, 1.0)
    embeddings[labels <= 1] = 1
    interval = bootstrap_tar(embeddings, labels, 0.02, np.random.default_rng(0), resamples=30)
    rng = np.random.default_rng(0)
    draws = [rng.integers(7, size=7) for _ in range(30)]
    assert any(not {0, 1} <= set(drawn) for drawn in draws)
    values = [float(tar_at_far(*written_out(embeddings, labels, drawn), 0.02)) for drawn in draws]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.nanquantile(values, [0.025, 0.975])), abs=1e-12)


@pytest.mark.parametrize("rule", ["insightface", "cosine", "exact", "best"])
def test_accuracy_counts_a_pair_as_often_as_its_people_are_drawn(rule):
    embeddings, labels = people(12, 4, 1.1)
    left, right, same = make_pairs(labels, 32, np.random.default_rng(1), 2)
    a, b, first, second = embeddings[left], embeddings[right], labels[left], labels[right]
    interval = bootstrap_accuracy(
        a, b, first, second, np.random.default_rng(2), folds=2, rule=rule, resamples=50, level=0.9
    )
    result = kfold_accuracy(a, b, same, 2, rule=rule)
    cosine = np.sum(a * b, axis=1) / 16
    threshold = np.repeat(result.thresholds, 32 // len(result.thresholds))
    correct = (cosine > threshold if rule == "cosine" else np.sum((a - b) ** 2, 1) / 16 < threshold) == same
    assert np.mean(correct) == pytest.approx(result.mean)
    rng = np.random.default_rng(2)
    people_met = np.unique(np.concatenate([first, second]))
    values = []
    for _ in range(50):
        drawn = people_met[rng.integers(len(people_met), size=len(people_met))].tolist()
        hits = []
        for i in range(32):
            copies = drawn.count(first[i]) * (1 if same[i] else drawn.count(second[i]))
            hits += [correct[i]] * copies
        values.append(np.mean(hits))
    assert interval.value == result.mean
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(values, [0.05, 0.95])), abs=1e-12)


def test_the_interval_covers_the_value_and_narrows_with_more_people():
    few, many = (
        bootstrap_tar(*people(count, 4, 1.2, seed=9), 0.05, np.random.default_rng(0), resamples=200)
        for count in (15, 120)
    )
    assert few.low <= few.value <= few.high
    assert many.low <= many.value <= many.high
    assert many.high - many.low < few.high - few.low


def test_bad_input_is_refused():
    embeddings, labels = people(5, 2, 1.0)
    rng = np.random.default_rng(0)
    with pytest.raises(FedVisageError, match="less than one false accept"):
        bootstrap_tar(embeddings, labels, 1e-6, rng)
    with pytest.raises(FedVisageError, match="at least one resample"):
        bootstrap_tar(embeddings, labels, 0.1, rng, resamples=0)
    with pytest.raises(FedVisageError, match="level"):
        bootstrap_tar(embeddings, labels, 0.1, rng, level=1.0)
    with pytest.raises(FedVisageError, match="known: re-estimated, fixed"):
        bootstrap_tar(embeddings, labels, 0.1, rng, threshold="none")
    with pytest.raises(FedVisageError, match=r"\(10,\) and \(9,\)"):
        bootstrap_accuracy(embeddings, embeddings, labels, labels[1:], rng)
