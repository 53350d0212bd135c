"""Scores of clusterings: the reference vector, all pairs written out, and scikit-learn."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from fedvisage.clustering import bcubed, bcubed_f, nmi, pairwise, pairwise_f
from fedvisage.core.errors import FedVisageError

labelings = st.integers(1, 25).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 6), min_size=n, max_size=n) for _ in range(2)])
)


def test_the_reference_vector() -> None:
    # spec C8
    truth, predicted = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2]
    assert pairwise(truth, predicted) == pytest.approx((0.5, 0.5, 0.5))
    assert bcubed(truth, predicted) == pytest.approx((7 / 9, 7 / 9, 7 / 9))
    assert pairwise_f(truth, predicted) == pytest.approx(0.5)
    assert bcubed_f(truth, predicted) == pytest.approx(0.7778, abs=5e-5)


@given(labelings)
def test_scores_equal_their_definitions(labels: tuple[list[int], list[int]]) -> None:
    truth, predicted = labels
    pairs = list(combinations(range(len(truth)), 2))
    same = {(i, j) for i, j in pairs if truth[i] == truth[j]}
    together = {(i, j) for i, j in pairs if predicted[i] == predicted[j]}
    found = pairwise(truth, predicted)
    assert found.precision == pytest.approx(len(same & together) / len(together) if together else 1)
    assert found.recall == pytest.approx(len(same & together) / len(same) if same else 1)
    precision = recall = 0.0
    for i in range(len(truth)):
        cluster = {j for j in range(len(truth)) if predicted[j] == predicted[i]}
        identity = {j for j in range(len(truth)) if truth[j] == truth[i]}
        precision += len(cluster & identity) / len(cluster) / len(truth)
        recall += len(cluster & identity) / len(identity) / len(truth)
    expected = (precision, recall, 2 * precision * recall / (precision + recall))
    assert bcubed(truth, predicted) == pytest.approx(expected)
    assert nmi(truth, predicted) == pytest.approx(normalized_mutual_info_score(truth, predicted), abs=1e-9)


@given(labelings)
def test_scores_know_no_names_and_swap_precision_with_recall(labels: tuple[list[int], list[int]]) -> None:
    truth, predicted = labels
    renamed = [f"person {7 - label}" for label in truth]
    for score in (pairwise, bcubed):
        precision, recall, f = score(truth, predicted)
        assert score(renamed, predicted) == pytest.approx((precision, recall, f))
        assert score(predicted, truth) == pytest.approx((recall, precision, f))
        assert score(truth, truth).f == 1.0
    assert nmi(renamed, predicted) == pytest.approx(nmi(predicted, truth))
    assert nmi(truth, truth) == pytest.approx(1.0)


def test_what_belongs_to_no_cluster_is_alone() -> None:
    assert pairwise([0, 0, 1, 1], [0, 0, -1, -1]) == pairwise([0, 0, 1, 1], [0, 0, 1, 2])
    assert bcubed([0, 0, 1], [-1, -1, -1]) == bcubed([0, 0, 1], [0, 1, 2])


@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([0, 1], [0], "2 identities for 1 predicted labels"),
        ([], [], "at least one label"),
        ([[0]], [0], "one axis"),
        ([np.nan], [0], "NaN"),
    ],
)
def test_wrong_labels_are_refused(truth: list, predicted: list, message: str) -> None:
    for score in (pairwise_f, bcubed_f, nmi):
        with pytest.raises(FedVisageError, match=message):
            score(truth, predicted)
