"""How much each test person moves a score: all that a paired comparison of models over people needs of a model.

A score is a function of how often each person counts, as in `bootstrap`: a genuine pair of person i weighs w_i, an
impostor pair of i and j weighs w_i w_j. The influence of person i is the derivative of the score by w_i where everybody
counts once, so that score(w) = score + sum_i (w_i - 1) influence_i to first order (the infinitesimal jackknife). One
number per person and score; the influences of a score add up to nought.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.all_pairs import count_pairs
from fedvisage.evaluation.bootstrap import Blocks
from fedvisage.evaluation.rates import allowed_accepts
from fedvisage.evaluation.verification import Rule, accepted, fold_of_each, kfold_accuracy_from_scores, measure

NEARBY = 0.5
"""The slope of the ROC curve at a rate f is taken between (1 - NEARBY) f and (1 + NEARBY) f."""


def share_influence(right: ArrayLike, person: ArrayLike, people: int) -> Floats:
    """Of the share of trials that are `right` (N,), each of one `person` (N,): the influence of each of `people`."""
    hit, whose = np.asarray(right, np.float64), np.asarray(person, np.int64)
    total = np.bincount(whose, minlength=people)
    found = np.bincount(whose, hit, minlength=people)
    influence: Floats = (found - hit.mean() * total) / len(hit)
    return influence


def accuracy_influence(
    a: ArrayLike,
    b: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    people: int,
    folds: int | ArrayLike = 10,
    rule: Rule = "insightface",
) -> Floats:
    """Of `kfold_accuracy` on pairs (N, d) of the persons `first` and `second` (N,), each fold's threshold kept."""
    one, other = np.asarray(first, np.int64), np.asarray(second, np.int64)
    same = one == other
    scores = measure(a, b, rule)
    found = kfold_accuracy_from_scores(scores, same, folds, rule=rule)
    fold = fold_of_each(folds, scores.size, rule) if len(found.thresholds) > 1 else np.zeros(scores.size, np.int64)
    right = accepted(scores, np.asarray(found.thresholds)[fold], rule) == same
    touched = np.concatenate([one, other[~same]])
    hit = np.concatenate([right, right[~same]])
    total = np.bincount(touched, minlength=people)
    influence: Floats = (np.bincount(touched, hit, minlength=people) - right.mean() * total) / len(right)
    return influence


@dataclass(frozen=True)
class ScoredPairs:
    """The scores of pairs with whose they are: all genuine ones, and at least the highest of the impostors."""

    genuine: Floats
    person: Ints
    """Whose each genuine score is."""
    impostor: Floats
    """Descending."""
    left: Ints
    right: Ints
    """Whose two faces each impostor score compares."""
    touching: Ints
    """(people,): how many of all impostor pairs show each person."""

    @property
    def impostors(self) -> int:
        """How many impostor pairs there are, whether their scores are held or not."""
        return int(self.touching.sum()) // 2


def listed_pairs(scores: ArrayLike, first: ArrayLike, second: ArrayLike, people: int) -> ScoredPairs:
    """Pairs from a list, with scores (N,) and the two persons of each (N,)."""
    values = np.asarray(scores, np.float64)
    one, other = np.asarray(first, np.int64), np.asarray(second, np.int64)
    same = one == other
    order = np.argsort(-values[~same], kind="stable")
    left, right = one[~same][order], other[~same][order]
    touching = np.bincount(left, minlength=people) + np.bincount(right, minlength=people)
    return ScoredPairs(values[same], one[same], values[~same][order], left, right, touching)


def every_pair(embeddings: ArrayLike, labels: ArrayLike, far: float, dtype: DTypeLike = np.float32) -> ScoredPairs:
    """All pairs of embeddings (M, d) with identities `labels` (M,), with impostors enough for rates up to `far`."""
    _, identity = checks.identities(labels)
    images = np.bincount(identity)
    _, total = count_pairs(images)
    blocks = Blocks(embeddings, labels, 1024, dtype)
    genuine, person = blocks.genuine()
    wanted = min(total, allowed_accepts(min(1.0, far * (1 + NEARBY)), total) + 1)
    impostor, left, right = blocks.impostors(wanted)
    return ScoredPairs(genuine, person, impostor, left, right, images * (len(identity) - images))


def pairs_with(embeddings: ArrayLike, labels: ArrayLike, local: ArrayLike, people: int) -> ScoredPairs:
    """All unordered pairs of embeddings (M, d) of persons `labels` (M,) with at least one image that is `local` (M,).

    All scores are held: for as many local images times images as memory has room for.
    """
    person, here = np.asarray(labels, np.int64), np.flatnonzero(np.asarray(local))
    unit = checks.unit_rows("embeddings", checks.embeddings("embeddings", embeddings)).astype(np.float32)
    scores = (unit[here] @ unit.T).astype(np.float64)
    order = np.full(len(person), len(person))
    order[here] = here
    counted = here[:, None] < order  # a pair of two local images counts once
    same = person[here][:, None] == person
    own, other = np.nonzero(counted & same)
    i, j = np.nonzero(counted & ~same)
    sides = np.concatenate([person[here][own], person[here][i]]), np.concatenate([person[other], person[j]])
    return listed_pairs(np.concatenate([scores[own, other], scores[i, j]]), *sides, people)


def tar_influence(pairs: ScoredPairs, far: float) -> Floats:
    """Of the exact TAR at `far`, the threshold following the impostors: the influence of each person."""
    people, impostors = len(pairs.touching), pairs.impostors
    allowed = allowed_accepts(far, impostors)
    if allowed < 1 or not pairs.genuine.size:
        raise FedVisageError(f"{impostors:,} impostor pairs cannot show a false accept rate of {far:g}")
    threshold = _quantile(pairs, far)
    kept = pairs.genuine > threshold
    direct = share_influence(kept, pairs.person, people)
    false = pairs.impostor > threshold
    touched = np.bincount(pairs.left[false], minlength=people) + np.bincount(pairs.right[false], minlength=people)
    rate = np.count_nonzero(false) / impostors
    moved: Floats = direct - _slope(pairs, far) * (touched - rate * pairs.touching) / impostors
    return moved


def _quantile(pairs: ScoredPairs, far: float) -> float:
    """The threshold above which at most the share `far` of the impostors lies."""
    return float(pairs.impostor[min(allowed_accepts(far, pairs.impostors), len(pairs.impostor) - 1)])


def _slope(pairs: ScoredPairs, far: float) -> float:
    """How the TAR grows with the false accept rate around `far`."""
    tars, fars = [], []
    for near in (far * (1 - NEARBY), min(1.0, far * (1 + NEARBY))):
        threshold = _quantile(pairs, near)
        tars.append(_above(pairs.genuine > threshold))
        fars.append(np.count_nonzero(pairs.impostor > threshold) / pairs.impostors)
    return (tars[1] - tars[0]) / (fars[1] - fars[0]) if fars[1] > fars[0] else 0.0


def _above(hits: Bools) -> float:
    return float(np.count_nonzero(hits)) / hits.size
