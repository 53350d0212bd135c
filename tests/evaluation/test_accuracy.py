"""Accuracy over folds equals a plain restatement of each published loop, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve
from sklearn.model_selection import KFold
from sklearn.preprocessing import normalize

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import kfold_accuracy, kfold_accuracy_from_scores
from fedvisage.evaluation.verification import fold_sizes


def splits(n, folds):
    everything = np.arange(n)
    return list(KFold(folds).split(everything)) if folds > 1 else [(everything, everything)]


def insightface_loop(distance, same, folds):
    """insightface's procedure: every threshold tried on the other folds, the first best one used on the fold."""
    thresholds = np.arange(0, 4, 0.01)
    chosen, accuracies = [], []
    for train, test in splits(len(same), folds):
        tried = [np.mean((distance[train] < t) == same[train]) for t in thresholds]
        chosen.append(thresholds[int(np.argmax(tried))])
        accuracies.append(float(np.sum((distance[test] < chosen[-1]) == same[test])) / len(test))
    return chosen, accuracies


def cosface_loop(cosine, same, folds):
    chosen, accuracies = [], []
    for train, test in splits(len(same), folds):
        best, best_accuracy = 0.0, 0.0
        for t in np.arange(-1.0, 1.0, 0.005):
            accuracy = np.count_nonzero((cosine[train] > t) == same[train]) / len(train)
            if accuracy >= best_accuracy:
                best, best_accuracy = t, accuracy
        chosen.append(best)
        accuracies.append(np.count_nonzero((cosine[test] > best) == same[test]) / len(test))
    return chosen, accuracies


def assert_same(result, chosen, accuracies):
    assert result.thresholds == tuple(chosen)
    assert result.per_fold == tuple(accuracies)
    assert result.mean == np.mean(accuracies)
    assert result.std == np.std(accuracies)


@st.composite
def pair_flags(draw, minimum=4, maximum=40):
    n = draw(st.integers(minimum, maximum))
    flags = draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))
    return np.array(draw(st.permutations([True, False, *flags])))


# Distances that lie on, just below and just above the thresholds, and repeat.
grid_values = st.builds(
    lambda step, side: float(np.nextafter(np.arange(0, 4, 0.01)[step], side)) if side else step / 100,
    st.integers(0, 399),
    st.sampled_from([None, -np.inf, np.inf]),
)
tied_values = st.one_of(grid_values, st.sampled_from([0.0, 0.29, 0.57, 1.15, 2.0, 4.0]), st.floats(0, 4))


@st.composite
def tied_embeddings(draw):
    """Small whole-number embeddings (many exact ties) or continuous ones, never zero."""
    same = draw(pair_flags())
    d = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a, b = rng.integers(-1, 2, (2, len(same), d)).astype(float)
    if draw(st.booleans()):
        a, b = rng.normal(size=(2, len(same), d))
    a[~a.any(axis=1)] = 1
    b[~b.any(axis=1)] = 1
    return a, b, same


@cases(80)
@given(tied_embeddings(), st.integers(1, 4))
def test_default_rule_is_insightface_to_the_last_bit(case, folds):
    a, b, same = case
    distance = np.sum(np.square(normalize(a) - normalize(b)), 1)
    assert_same(kfold_accuracy(a, b, same, folds), *insightface_loop(distance, same, folds))


@cases(80)
@given(st.data(), st.integers(1, 4))
def test_distances_on_and_beside_the_thresholds_are_compared_exactly(data, folds):
    same = data.draw(pair_flags())
    distance = np.array(data.draw(st.lists(tied_values, min_size=len(same), max_size=len(same))))
    assert_same(kfold_accuracy_from_scores(distance, same, folds), *insightface_loop(distance, same, folds))


def test_embeddings_as_large_as_real_ones_in_both_precisions():
    rng = np.random.default_rng(0)
    same = rng.random(1003) < 0.5
    a = rng.normal(size=(1003, 512)).astype(np.float32)
    b = np.where(same[:, None], a + 1.3 * rng.normal(size=a.shape), rng.normal(size=a.shape)).astype(np.float32)
    distance = np.sum(np.square(normalize(a.astype(float)) - normalize(b.astype(float))), 1)
    reference = insightface_loop(distance, same, 10)
    assert_same(kfold_accuracy(a, b, same), *reference)
    assert_same(kfold_accuracy(np.asfortranarray(a.astype(float)), b.astype(float), same), *reference)


@cases(60)
@given(tied_embeddings(), st.integers(1, 4))
def test_cosine_rule_takes_the_last_best_threshold(case, folds):
    a, b, same = case
    cosine = np.sum(normalize(a) * normalize(b), axis=1)
    assert_same(kfold_accuracy(a, b, same, folds, rule="cosine"), *cosface_loop(cosine, same, folds))


@cases(150)
@given(st.data(), st.integers(1, 4))
def test_exact_rule_is_best_on_the_other_folds_and_lowest_among_equals(data, folds):
    same = data.draw(pair_flags())
    distance = np.array(data.draw(st.lists(tied_values, min_size=len(same), max_size=len(same))))
    result = kfold_accuracy_from_scores(distance, same, folds, rule="exact")
    for (train, test), threshold, accuracy in zip(
        splits(len(same), folds), result.thresholds, result.per_fold, strict=True
    ):
        seen = np.unique(distance[train])
        tried = [np.sum((distance[train] < t) == same[train]) for t in [*seen, np.inf]]  # below each value, above all
        cut = int(np.argmax(tried))
        assert np.array_equal(distance[train] < threshold, distance[train] < [*seen, np.inf][cut])
        if 0 < cut < len(seen):
            assert threshold == pytest.approx((seen[cut - 1] + seen[cut]) / 2, rel=1e-15, abs=5e-324)
        assert accuracy == np.mean((distance[test] < threshold) == same[test])


@cases(100)
@given(st.data())
def test_best_rule_is_the_maximum_over_the_whole_roc(data):
    same = data.draw(pair_flags())
    distance = np.array(data.draw(st.lists(tied_values, min_size=len(same), max_size=len(same))))
    far, tar, _ = roc_curve(same, -distance)
    result = kfold_accuracy_from_scores(distance, same, rule="best")
    assert result.mean == pytest.approx(max(tar * same.sum() + (1 - far) * (~same).sum()) / len(same))
    assert result.mean == np.mean((distance < result.thresholds[0]) == same)


@given(st.integers(2, 200), st.integers(2, 30))
def test_folds_are_cut_as_scikit_learn_cuts_them(pairs, folds):
    if folds <= pairs:
        assert fold_sizes(pairs, folds).tolist() == [len(test) for _, test in splits(pairs, folds)]


@cases(80)
@given(st.data())
def test_folds_can_be_named_pair_by_pair(data):
    same = data.draw(pair_flags())
    fold = np.array(data.draw(st.lists(st.sampled_from([3, 7, 8]), min_size=len(same), max_size=len(same))))
    distance = np.array(data.draw(st.lists(tied_values, min_size=len(same), max_size=len(same))))
    result = kfold_accuracy_from_scores(distance, same, fold)
    thresholds = np.arange(0, 4, 0.01)
    accuracies = []
    for one in np.unique(fold):
        train = fold != one if len(np.unique(fold)) > 1 else fold == one
        best = int(np.argmax([np.mean((distance[train] < t) == same[train]) for t in thresholds]))
        accuracies.append(np.mean((distance[fold == one] < thresholds[best]) == same[fold == one]))
    assert result.per_fold == pytest.approx(tuple(accuracies), abs=0)


def test_bad_input_is_named_with_counts():
    good = np.eye(4)
    same = [1, 0, 1, 0]
    broken = good.copy()
    broken[1:3, 0] = np.nan, np.inf
    zero = good.copy()
    zero[2] = 0
    for a, b, flags, folds, words in [
        (broken, good, same, 2, "2 of 4 embeddings in a hold NaN"),
        (good, zero, same, 2, "1 of 4 embeddings in b are zero vectors"),
        (good, good[:3], same, 2, r"a is \(4, 4\), b is \(3, 4\)"),
        (good, good, same[:3], 2, "3 entries for 4 pairs"),
        (good, good, [1, 1, 1, 1], 2, "4 genuine and 0 impostor"),
        (good, good, [0, 0, 0, 0], 2, "0 genuine and 4 impostor"),
        (good, good, [0, 1, 2, 0], 2, "only 0 and 1"),
        (good, good, same, 5, "4 pairs cannot be cut into 5 folds"),
        (good, good, same, 0, "at least 1"),
        (good, good, same, [0, 1, 1], "folds names 3 folds for 4 pairs"),
        (good[0], good[0], same, 2, "2 axes"),
        (good[:0], good[:0], [], 2, "at least one embedding"),
        (good.astype(str), good, same, 2, "real numbers"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            kfold_accuracy(a, b, flags, folds)
    with pytest.raises(FedVisageError, match="unknown accuracy rule 'lfw'; known: insightface, exact, cosine, best"):
        kfold_accuracy(good, good, same, 2, rule="lfw")
