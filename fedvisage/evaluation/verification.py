"""Accuracy on a list of pairs, cross-validated over folds (the LFW protocol and its variants).

The default is insightface's evaluation: embeddings at unit length, squared Euclidean distance, thresholds
0, 0.01, ..., 3.99, "same" iff the distance is below the threshold, contiguous folds, the first best threshold on the
other folds. Here each distance is placed on the threshold grid once; cumulative counts per fold then give every
(fold, threshold) accuracy, where the original compares all pairs again for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints

Rule = Literal["insightface", "exact", "cosine", "best"]

# The very floats that the published code compares with: most are not the nearest float to their decimal.
DISTANCE_GRID = np.arange(0, 4, 0.01)
COSINE_GRID = np.arange(-1.0, 1.0, 0.005)
COARSE = 0.02
"""Accuracy that a grid may lose against exact thresholds before that is said; a few hundred pairs lose half as much."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over folds: mean, population standard deviation, and each fold's threshold and accuracy."""

    mean: float
    std: float
    thresholds: tuple[float, ...]
    per_fold: tuple[float, ...]

    def __float__(self) -> float:
        return self.mean


def kfold_accuracy(
    a: ArrayLike, b: ArrayLike, same: ArrayLike, folds: int | ArrayLike = 10, *, rule: Rule = "insightface"
) -> Accuracy:
    """Verification accuracy of N pairs from the embeddings `a`, `b` (N, d) of their two sides and `same` (N,).

    Embeddings are brought to unit length in float64. Folds are contiguous blocks of pairs, the first N % folds of them
    one pair larger, as scikit-learn's KFold cuts them; with folds=1 the threshold is chosen on the same pairs. Instead
    of a number, `folds` may name the fold of each pair (N,).

    rule="insightface": squared distance < threshold, the first best of 0, 0.01, ..., 3.99. Bit for bit its result.
    rule="exact": squared distance < threshold; thresholds halfway between neighbouring distinct distances of the other
        folds, and one on either end (accept none, accept all). The lowest of equally good ones.
    rule="cosine": cosine > threshold, the last best of -1, -0.995, ..., 0.995, as in CosFace_pytorch.
    rule="best": the best accuracy of any threshold on all pairs at once, as in opensphere: not cross-validated, so
        optimistic; `folds` is not used, and thresholds and per_fold have one entry (the lowest of equally good ones).
    """
    return kfold_accuracy_from_scores(measure(a, b, rule), same, folds, rule=rule)


def kfold_accuracy_from_scores(
    scores: ArrayLike, same: ArrayLike, folds: int | ArrayLike = 10, *, rule: Rule = "insightface"
) -> Accuracy:
    """`kfold_accuracy` from what the rule compares, (N,): squared distances, or cosines for rule="cosine"."""
    _, evaluate = checks.choice("accuracy rule", rule, _RULES)
    values = checks.scores("pair scores", scores)
    genuine = checks.flags(same, values.size)
    result: Accuracy = evaluate(values, genuine, fold_of_each(folds, values.size, rule))
    return result


def fold_of_each(folds: int | ArrayLike, pairs: int, rule: Rule) -> Ints:
    """The fold of each pair (N,), 0 and up."""
    if isinstance(folds, int | np.integer) and not isinstance(folds, bool) and folds >= 1:
        if rule != "best" and folds > pairs:
            raise FedVisageError(f"{pairs} pairs cannot be cut into {folds} folds")
        return np.repeat(np.arange(folds), fold_sizes(pairs, int(folds)))
    given = np.asarray(folds)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise FedVisageError(
            f"folds must be a whole number of at least 1, or the fold of each pair, got {str(folds)[:40]!r}"
        )
    if len(given) != pairs:
        raise FedVisageError(f"folds names {len(given)} folds for {pairs} pairs")
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def measure(a: ArrayLike, b: ArrayLike, rule: Rule) -> Floats:
    """What the rule compares for the pairs of `a` and `b` (N, d): squared distances or cosines, (N,)."""
    result: Floats = checks.choice("accuracy rule", rule, _RULES)[0](a, b)
    return result


def accepted(scores: Floats, threshold: Floats, rule: Rule) -> Bools:
    """Whether the rule calls pairs with these scores (N,) the same person at these thresholds (N,)."""
    return scores > threshold if rule == "cosine" else scores < threshold


def fold_sizes(pairs: int, folds: int) -> Ints:
    """Sizes of the contiguous blocks into which scikit-learn's KFold cuts `pairs` pairs."""
    sizes = np.full(folds, pairs // folds, dtype=np.int64)
    sizes[: pairs % folds] += 1
    return sizes


def squared_distances(a: ArrayLike, b: ArrayLike) -> Floats:
    """Squared Euclidean distance (N,) between the rows of `a` and `b` (N, d) at unit length."""
    return _pairwise(a, b, lambda left, right: np.sum(np.square(np.subtract(left, right, out=left), out=left), axis=1))


def cosines(a: ArrayLike, b: ArrayLike) -> Floats:
    """Cosine (N,) between the rows of `a` and `b` (N, d)."""
    return _pairwise(a, b, lambda left, right: np.sum(np.multiply(left, right, out=left), axis=1))


def _pairwise(a: ArrayLike, b: ArrayLike, compare: Callable[[Floats, Floats], Floats]) -> Floats:
    left, right = checks.embeddings("a", a), checks.embeddings("b", b)
    if left.shape != right.shape:
        raise FedVisageError(f"the two sides of the pairs differ in shape: a is {left.shape}, b is {right.shape}")
    result, a_length, b_length = np.empty((3, len(left)))
    with np.errstate(invalid="ignore"):
        for start in range(0, len(left), checks.ROWS):
            rows = slice(start, start + checks.ROWS)
            left_unit, a_length[rows] = checks.unit_block(left[rows])
            right_unit, b_length[rows] = checks.unit_block(right[rows])
            result[rows] = compare(left_unit, right_unit)
    checks.check_lengths("a", a_length)
    checks.check_lengths("b", b_length)
    return result


def _accuracy(thresholds: NDArray[Any], correct: Ints, sizes: Ints) -> Accuracy:
    per_fold = correct / sizes
    return Accuracy(
        float(np.mean(per_fold)), float(np.std(per_fold)), tuple(thresholds.tolist()), tuple(per_fold.tolist())
    )


def _on_grid(grid: Floats) -> Callable[[Floats, Bools, Ints], Accuracy]:
    """Distance < threshold, the first best threshold of an ascending grid (T,)."""

    def evaluate(distance: Floats, same: Bools, fold: Ints) -> Accuracy:
        sizes = np.bincount(fold)
        folds = sizes.size
        # A pair is accepted from the first threshold above its distance on; there it adds 1 to the number of correct
        # answers if it is genuine and takes 1 away if it is not.
        first = np.searchsorted(grid, distance, side="right")
        width = grid.size + 1
        gain = np.bincount(fold * width + first, weights=np.where(same, 1.0, -1.0), minlength=folds * width)
        accepted = np.cumsum(gain.reshape(folds, width)[:, :-1], axis=1).astype(np.int64)
        correct = np.bincount(fold[~same], minlength=folds)[:, None] + accepted
        elsewhere = correct.sum(axis=0) - correct if folds > 1 else correct
        best = np.argmax(elsewhere, axis=1)
        return _accuracy(grid[best], correct[np.arange(folds), best], sizes)

    return evaluate


def _on_cosines(cosine: Floats, same: Bools, fold: Ints) -> Accuracy:
    # cos > t is -cos < -t, and the last best t is the first best -t.
    result = _on_grid(-COSINE_GRID[::-1])(-cosine, same, fold)
    return Accuracy(result.mean, result.std, tuple(-t for t in result.thresholds), result.per_fold)


def _between(distance: Floats, same: Bools, fold: Ints) -> Accuracy:
    sizes = np.bincount(fold)
    folds = sizes.size
    order = np.argsort(distance)
    thresholds = np.empty(folds)
    correct = np.empty(folds, dtype=np.int64)
    for k in range(folds):
        train = order[fold[order] != k] if folds > 1 else order
        thresholds[k] = _best_between(distance[train], same[train])
        test = fold == k
        correct[k] = np.count_nonzero((distance[test] < thresholds[k]) == same[test])
    return _accuracy(thresholds, correct, sizes)


def _best_between(distance: Floats, same: Bools) -> float:
    """The lowest best threshold for ascending distances (n,): accept none, or all up to one of the distinct values."""
    ends = np.append(np.flatnonzero(np.diff(distance)), distance.size - 1)
    gain = np.append(0, np.cumsum(np.where(same, 1, -1))[ends])
    best = int(np.argmax(gain))
    if best == 0:
        return float(distance[0])
    lower = distance[ends[best - 1]]
    if best == ends.size:
        return float(np.nextafter(lower, np.inf))
    upper = distance[ends[best - 1] + 1]
    middle = lower + (upper - lower) / 2
    return float(middle if middle > lower else upper)


def _whole(distance: Floats, same: Bools, fold: Ints) -> Accuracy:
    return _between(distance, same, np.zeros_like(fold))


_RULES: dict[str, tuple[Callable[[ArrayLike, ArrayLike], Floats], Callable[[Floats, Bools, Ints], Accuracy]]] = {
    "insightface": (squared_distances, _on_grid(DISTANCE_GRID)),
    "exact": (squared_distances, _between),
    "cosine": (cosines, _on_cosines),
    "best": (squared_distances, _whole),
}
