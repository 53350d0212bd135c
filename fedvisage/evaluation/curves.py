"""ROC and DET curves, equal error rate and area under the curve: from exact counts, ties included."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Floats, Ints


@dataclass(frozen=True)
class Roc:
    """Points (K,) of a ROC curve from (0, 0) to (1, 1); a point accepts scores >= its threshold (descending)."""

    far: Floats
    tar: Floats
    threshold: Floats


@dataclass(frozen=True)
class Det:
    """Points (K,) of a DET curve: false accepts against false rejects; a point accepts scores >= its threshold."""

    far: Floats
    frr: Floats
    threshold: Floats


def roc(genuine: ArrayLike, impostor: ArrayLike) -> Roc:
    """The ROC curve of genuine (P,) and impostor (N,) scores, higher meaning more alike.

    One point per distinct score and the point (0, 0) with threshold infinity before them: scikit-learn's roc_curve with
    drop_intermediate=False.
    """
    accepted, false, threshold = accept_counts(genuine, impostor)
    return Roc(false / false[-1], accepted / accepted[-1], threshold)


def det(genuine: ArrayLike, impostor: ArrayLike) -> Det:
    """The DET curve of genuine (P,) and impostor (N,) scores: `roc`'s points with the false-reject rate."""
    accepted, false, threshold = accept_counts(genuine, impostor)
    return Det(false / false[-1], (accepted[-1] - accepted) / accepted[-1], threshold)


def eer(genuine: ArrayLike, impostor: ArrayLike) -> float:
    """Equal error rate: where the ROC curve, its points joined by straight lines, has false accepts = false rejects."""
    accepted, false, _ = accept_counts(genuine, impostor)
    p, n = int(accepted[-1]), int(false[-1])
    rejected = p - accepted
    end = int(np.argmax(false * p >= rejected * n))
    fa0, fa1 = int(false[end - 1]), int(false[end])
    fr0, fr1 = int(rejected[end - 1]), int(rejected[end])
    along = Fraction(fr0 * n - fa0 * p, (fa1 - fa0) * p + (fr0 - fr1) * n)
    return float((fa0 + along * (fa1 - fa0)) / n)


def auc(genuine: ArrayLike, impostor: ArrayLike) -> float:
    """Area under the ROC curve: the share of (genuine, impostor) couples in the right order, ties counting half."""
    positive = checks.scores("genuine scores", genuine)
    negative = np.sort(checks.scores("impostor scores", impostor))
    below = np.searchsorted(negative, positive, side="left").sum(dtype=np.int64)
    below_or_tied = np.searchsorted(negative, positive, side="right").sum(dtype=np.int64)
    return (int(below) + int(below_or_tied)) / (2 * positive.size * negative.size)


def accept_counts(genuine: ArrayLike, impostor: ArrayLike) -> tuple[Ints, Ints, Floats]:
    """Genuine and impostor scores >= threshold, for infinity and for each distinct score, descending; each (K,)."""
    positive = checks.scores("genuine scores", genuine)
    negative = checks.scores("impostor scores", impostor)
    values = np.concatenate([positive, negative])
    order = np.argsort(-values)
    values = values[order]
    ends = np.append(np.flatnonzero(np.diff(values)), values.size - 1)
    accepted = np.cumsum(order < positive.size, dtype=np.int64)[ends]
    false = ends + 1 - accepted
    return np.append(0, accepted), np.append(0, false), np.append(np.inf, values[ends])


def corners(accepted: Ints, false: Ints, threshold: Floats) -> tuple[Ints, Ints, Floats]:
    """The points that scikit-learn's roc_curve keeps by default: those that repeat the step before them are dropped."""
    turn = (np.diff(accepted[1:], 2) != 0) | (np.diff(false[1:], 2) != 0)
    keep = np.concatenate([[True, True], turn, [True]]) if accepted.size > 3 else np.ones(accepted.size, dtype=np.bool_)
    return accepted[keep], false[keep], threshold[keep]
