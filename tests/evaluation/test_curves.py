"""Curves and areas equal scikit-learn's on scores with many ties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import interp1d
from scipy.optimize import brentq
from sklearn.metrics import det_curve, roc_auc_score, roc_curve

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import auc, det, eer, roc

some_scores = st.lists(st.one_of(st.integers(-5, 5).map(float), st.floats(-5, 5)), min_size=1, max_size=50)


def labelled(genuine, impostor):
    return np.repeat([1, 0], [len(genuine), len(impostor)]), np.concatenate([genuine, impostor])


@cases(150)
@given(some_scores, some_scores)
def test_roc_has_every_point_of_scikit_learn(genuine, impostor):
    far, tar, threshold = roc_curve(*labelled(genuine, impostor), drop_intermediate=False)
    curve = roc(genuine, impostor)
    assert np.array_equal(curve.far, far)
    assert np.array_equal(curve.tar, tar)
    assert np.array_equal(curve.threshold, threshold)


@cases(100)
@given(some_scores, some_scores)
def test_every_point_counts_the_scores_that_reach_its_threshold(genuine, impostor):
    curve = det(genuine, impostor)
    for far, frr, threshold in zip(curve.far, curve.frr, curve.threshold, strict=True):
        assert far == sum(s >= threshold for s in impostor) / len(impostor)
        assert frr == sum(s < threshold for s in genuine) / len(genuine)


@cases(60)
@given(some_scores, some_scores)
def test_det_contains_scikit_learns_points(genuine, impostor):
    curve = det(genuine, impostor)
    points = {(far, frr) for far, frr in zip(curve.far, curve.frr, strict=True)}
    far, frr, _ = det_curve(*labelled(genuine, impostor))
    assert set(zip(far, frr, strict=True)) <= points


@cases(150)
@given(some_scores, some_scores)
def test_area_is_the_share_of_couples_in_order_with_ties_half(genuine, impostor):
    couples = sum(Fraction(1 + (g > i) - (g < i), 2) for g in genuine for i in impostor)
    assert auc(genuine, impostor) == float(couples / (len(genuine) * len(impostor)))
    assert auc(genuine, impostor) == pytest.approx(roc_auc_score(*labelled(genuine, impostor)), abs=1e-12)


@cases(150)
@given(some_scores, some_scores)
def test_equal_error_rate_is_where_the_roc_crosses_the_diagonal(genuine, impostor):
    far, tar, _ = roc_curve(*labelled(genuine, impostor))
    line = interp1d(far, tar)
    crossing = brentq(lambda x: 1 - x - line(x), 0, 1, xtol=1e-13)
    assert eer(genuine, impostor) == pytest.approx(crossing, abs=1e-11)


def test_equal_error_rate_by_hand():
    assert eer([2, 3], [0, 1]) == 0
    assert eer([0, 1], [2, 3]) == 1
    assert eer([1], [1]) == 0.5
    assert eer([0, 2, 3, 4], [-1, 0, 1, 3]) == 0.25  # at threshold 2: one impostor of 4 above, one genuine of 4 below


def test_empty_or_broken_scores_are_refused():
    for metric in (roc, det, eer, auc):
        with pytest.raises(FedVisageError, match="no genuine scores"):
            metric([], [1])
        with pytest.raises(FedVisageError, match="no impostor scores"):
            metric([1], [])
        with pytest.raises(FedVisageError, match="1 of 2 impostor scores"):
            metric([1], [1, np.nan])
