"""Confidence intervals by resampling identities: pairs that share a person are not independent, people are.

A resample draws as many identities as there are, with replacement. A person drawn w times counts w times: a genuine
pair of person i has weight w_i, an impostor pair of persons i and j has weight w_i w_j, and pairs between two copies of
one person do not exist. Intervals are percentiles of the statistic over the resamples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.all_pairs import all_pairs_verification, count_pairs, score_blocks
from fedvisage.evaluation.rates import allowed_accepts
from fedvisage.evaluation.streaming import Largest
from fedvisage.evaluation.verification import Rule, accepted, fold_of_each, kfold_accuracy_from_scores, measure


@dataclass(frozen=True)
class Interval:
    """A statistic with its confidence interval; `undefined` of the resamples had no value and are left out of it."""

    value: float
    low: float
    high: float
    level: float
    resamples: int
    undefined: int


def bootstrap_accuracy(
    a: ArrayLike,
    b: ArrayLike,
    a_labels: ArrayLike,
    b_labels: ArrayLike,
    rng: np.random.Generator,
    *,
    folds: int | ArrayLike = 10,
    rule: Rule = "insightface",
    resamples: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Interval of `kfold_accuracy` on pairs with embeddings `a`, `b` (N, d) and identities `a_labels`, `b_labels` (N,).

    Each fold keeps the threshold chosen on the original pairs; the share of correct answers is taken over all pairs.
    """
    left, right = np.asarray(a_labels), np.asarray(b_labels)
    if left.ndim != 1 or left.shape != right.shape:
        raise FedVisageError(f"a_labels and b_labels must be one label per pair, got {left.shape} and {right.shape}")
    names, identity = checks.identities(np.concatenate([left, right]))
    first, second = identity[: len(left)], identity[len(left) :]
    same = first == second
    scores = measure(a, b, rule)
    result = kfold_accuracy_from_scores(scores, same, folds, rule=rule)
    fold = fold_of_each(folds, scores.size, rule) if len(result.thresholds) > 1 else np.zeros(scores.size, np.int64)
    correct = accepted(scores, np.asarray(result.thresholds)[fold], rule) == same
    values = []
    for drawn in _draws(len(names), resamples, rng):
        weight = drawn[first] * np.where(same, 1, drawn[second])
        values.append(_share(correct, weight))
    return _interval(result.mean, values, level)


def bootstrap_tar(
    embeddings: ArrayLike,
    labels: ArrayLike,
    far: float,
    rng: np.random.Generator,
    *,
    threshold: Literal["re-estimated", "fixed"] = "re-estimated",
    resamples: int = 1000,
    level: float = 0.95,
    block: int = 1024,
    dtype: DTypeLike = np.float64,
) -> Interval:
    """Interval of the exact TAR at `far` over all pairs of embeddings (M, d) with identities `labels` (M,).

    threshold="re-estimated": each resample sets its own threshold on its own impostor pairs: how much the TAR would
        vary if the whole test were repeated with other people.
    threshold="fixed": the threshold of the original set is kept: how much the TAR of a deployed threshold would vary.
    A resample without genuine pairs, or with too few impostors to show `far`, is undefined and counted as such.
    """
    checks.choice("threshold of the resamples", threshold, {"re-estimated": 0, "fixed": 0})
    names, identity = checks.identities(labels)
    rate = all_pairs_verification(embeddings, labels, [far], block=block, dtype=dtype).rates[0]
    if rate.reason is not None:
        raise FedVisageError(rate.reason)
    images = np.bincount(identity)
    draws = list(_draws(len(names), resamples, rng))
    blocks = Blocks(embeddings, labels, block, dtype)
    genuine, person = blocks.genuine()
    if threshold == "fixed":
        thresholds: Iterable[float] = [rate.threshold] * resamples
    else:
        thresholds = _thresholds(blocks, draws, images, far)
    values = [
        float("nan") if np.isnan(t) else _share(genuine > t, drawn[person])
        for t, drawn in zip(thresholds, draws, strict=True)
    ]
    return _interval(rate.value, values, level)


def _draws(people: int, resamples: int, rng: np.random.Generator) -> Iterable[Ints]:
    """How often each of the people is drawn, (C,), for each resample."""
    if resamples < 1:
        raise FedVisageError(f"at least one resample is needed, got {resamples}")
    for _ in range(resamples):
        yield np.bincount(rng.integers(people, size=people), minlength=people)


def _share(hit: Bools, weight: Ints) -> float:
    total = int(weight.sum())
    return int(weight[hit].sum()) / total if total else float("nan")


def _interval(value: float, values: list[float], level: float) -> Interval:
    if not 0 < level < 1:
        raise FedVisageError(f"level must lie between 0 and 1, got {level}")
    defined = [v for v in values if not np.isnan(v)]
    if not defined:
        raise FedVisageError(f"none of {len(values)} resamples had a value: there are too few identities")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level, len(values), len(values) - len(defined))


def _thresholds(blocks: Blocks, draws: list[Ints], images: Ints, far: Any) -> list[float]:
    """Each resample's exact threshold; NaN where its impostors cannot show `far`.

    Only the largest impostor scores are held, more of them if a resample turns out to need them.
    """
    _, total = count_pairs(images)
    size = 4 * (allowed_accepts(far, total) + 1) + 1000
    while True:
        size = min(size, total)
        scores, left, right = blocks.impostors(size)
        found = [_threshold(scores, drawn[left] * drawn[right], drawn * images, far) for drawn in draws]
        if scores.size == total or -np.inf not in found:
            return found
        size *= 4


def _threshold(scores: Floats, weight: Ints, drawn_images: Ints, far: Any) -> float:
    """The first of the descending scores (n,) at which the weight exceeds what is allowed; -inf if there is none."""
    impostors = (int(drawn_images.sum()) ** 2 - int((drawn_images**2).sum())) // 2
    allowed = allowed_accepts(far, impostors)
    if allowed < 1:
        return float("nan")
    place = int(np.searchsorted(np.cumsum(weight), allowed, side="right"))
    return float(scores[place]) if place < scores.size else -np.inf


class Blocks:
    """The scores of all pairs together with whose they are; computed again at each call rather than held."""

    def __init__(self, embeddings: ArrayLike, labels: ArrayLike, block: int, dtype: DTypeLike) -> None:
        self.arguments = (embeddings, labels)
        self.options: dict[str, Any] = {"block": block, "dtype": dtype}

    def genuine(self) -> tuple[Floats, Ints]:
        """All genuine scores (P,) and whose they are (P,)."""
        scores, people = [], []
        for values, row, column in score_blocks(*self.arguments, **self.options):
            if row[-1] < column[0]:
                continue
            i, j = np.nonzero(_pairs(row, column) & (row[:, None] == column))
            scores.append(values[i, j].astype(np.float64))
            people.append(row[i])
        return np.concatenate(scores), np.concatenate(people)

    def impostors(self, size: int) -> tuple[Floats, Ints, Ints]:
        """The `size` or more largest impostor scores, descending, and the two identities of each; each (n,)."""
        largest = Largest(size)
        for values, row, column in score_blocks(*self.arguments, **self.options):
            largest.add(values[_pairs(row, column) & (row[:, None] != column)])
        least = largest.descending()[-1]
        parts = []
        for values, row, column in score_blocks(*self.arguments, **self.options):
            i, j = np.nonzero(_pairs(row, column) & (row[:, None] != column) & (values >= least))
            parts.append((values[i, j].astype(np.float64), row[i], column[j]))
        scores, left, right = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(-scores, kind="stable")
        return scores[order], left[order], right[order]


def _pairs(row: Ints, column: Ints) -> Bools:
    """Which scores of a block are pairs: all, or those above the diagonal."""
    everywhere = np.ones((len(row), len(column)), dtype=np.bool_)
    return np.triu(everywhere, 1) if row is column else everywhere
