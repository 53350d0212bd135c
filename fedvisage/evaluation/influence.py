"""How much each test person moves a score: all that a paired comparison of models over people needs of a model.

A score is a function of how often each person counts, as in `bootstrap`: a genuine pair of person i weighs w_i, an
impostor pair of i and j weighs w_i w_j. A search weighs as its probe's person does, and galleries stay as they are. The
influence of person i is the derivative of the score by w_i where everybody
counts once, so that score(w) = score + sum_i (w_i - 1) influence_i to first order (the infinitesimal jackknife). One
number per person and score; the influences of a score add up to nought.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.all_pairs import count_pairs
from fedvisage.evaluation.bootstrap import Blocks
from fedvisage.evaluation.identification import Search
from fedvisage.evaluation.rates import allowed_accepts
from fedvisage.evaluation.verification import Rule, accepted, fold_of_each, kfold_accuracy_from_scores, measure

NEARBY = 0.5
"""The slope of the ROC curve at a rate f is taken between (1 - NEARBY) f and (1 + NEARBY) f."""
MOST_PAIRS = 50_000_000
"""Up to so many pairs whose scores are held at a time."""
UNIT = 1e-6
"""Influences are written in whole multiples of this."""


def packed(influence: Floats) -> str:
    """Return influences (people,) as text: a whole number per person."""
    return " ".join(map(str, np.rint(influence / UNIT).astype(np.int64).tolist()))


def unpacked(text: str) -> Floats:
    """Return the influences (people,) that `packed` wrote."""
    return np.array(text.split(), dtype=np.float64) * UNIT


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
class Trials:
    """Scores of comparisons with whose they are: all genuine ones, and at least the highest of the impostors."""

    genuine: Floats
    person: Ints
    """Whose each genuine score is."""
    impostor: Floats
    """Descending."""
    sides: tuple[Ints, ...]
    """Whose each impostor score is: of the two faces of a pair, of the probe of a search."""
    touching: Ints
    """(people,): how many of those that false accepts are a share of show each person."""
    impostors: int
    """How many false accepts are a share of, whether their scores are held or not."""


def listed_pairs(scores: ArrayLike, first: ArrayLike, second: ArrayLike, people: int) -> Trials:
    """Pairs from a list, with scores (N,) and the two persons of each (N,)."""
    values = np.asarray(scores, np.float64)
    one, other = np.asarray(first, np.int64), np.asarray(second, np.int64)
    same = one == other
    order = np.argsort(-values[~same], kind="stable")
    left, right = one[~same][order], other[~same][order]
    touching = np.bincount(left, minlength=people) + np.bincount(right, minlength=people)
    return Trials(values[same], one[same], values[~same][order], (left, right), touching, len(left))


def every_pair(embeddings: ArrayLike, labels: ArrayLike, far: float, dtype: DTypeLike = np.float32) -> Trials:
    """All pairs of embeddings (M, d) with identities `labels` (M,), with impostors enough for rates up to `far`."""
    _, identity = checks.identities(labels)
    images = np.bincount(identity)
    _, total = count_pairs(images)
    blocks = Blocks(embeddings, labels, 1024, dtype)
    genuine, person = blocks.genuine()
    wanted = min(total, allowed_accepts(min(1.0, far * (1 + NEARBY)), total) + 1)
    impostor, left, right = blocks.impostors(wanted)
    return Trials(genuine, person, impostor, (left, right), images * (len(identity) - images), total)


def pairs_with(embeddings: ArrayLike, labels: ArrayLike, local: ArrayLike, people: int) -> Trials:
    """All unordered pairs of embeddings (M, d) of persons `labels` (M,) with at least one image that is `local` (M,).

    All scores are held: for as many local images times images as memory has room for (`MOST_PAIRS`).
    """
    person, here = np.asarray(labels, np.int64), np.flatnonzero(np.asarray(local))
    unit = _unit("embeddings", embeddings)
    scores = (unit[here] @ unit.T).astype(np.float64)
    order = np.full(len(person), len(person))
    order[here] = here
    counted = here[:, None] < order  # a pair of two local images counts once
    same = person[here][:, None] == person
    own, other = np.nonzero(counted & same)
    i, j = np.nonzero(counted & ~same)
    sides = np.concatenate([person[here][own], person[here][i]]), np.concatenate([person[other], person[j]])
    return listed_pairs(np.concatenate([scores[own, other], scores[i, j]]), *sides, people)


def pairs_among(probes: ArrayLike, labels: ArrayLike, others: ArrayLike, theirs: ArrayLike, people: int) -> Trials:
    """Genuine pairs among `probes` (P, d) of `labels` (P,); with `others` (D, d) of `theirs` (D,) all are impostors.

    All scores are held, as by `pairs_with`.
    """
    person, other = np.asarray(labels, np.int64), np.asarray(theirs, np.int64)
    unit = _unit("probes", probes)
    i, j = np.nonzero(np.triu(person[:, None] == person, 1))
    genuine = np.einsum("ij,ij->i", unit[i], unit[j]).astype(np.float64)
    impostor = (unit @ _unit("others", others).T).ravel().astype(np.float64)
    order = np.argsort(-impostor, kind="stable")
    sides = np.repeat(person, len(other))[order], np.tile(other, len(person))[order]
    touching = len(other) * np.bincount(person, minlength=people) + len(person) * np.bincount(other, minlength=people)
    return Trials(genuine, person[i], impostor[order], sides, touching, len(impostor))


def alarms(found: Search, person: ArrayLike, people: int) -> Trials:
    """Searches as NIST counts them, the probe of each one of a `person` (P,).

    A mate that does not come first is never found; of a probe without mate the best score counts. The threshold is that
    of `tar_influence`, at most one alarm below NIST's.
    """
    whose, mated = np.asarray(person, np.int64), found.mated
    genuine = np.where(found.rank == 1, found.mate, -np.inf)[mated]
    order = np.argsort(-found.other[~mated], kind="stable")
    alone = whose[~mated][order]
    touching = np.bincount(alone, minlength=people)
    return Trials(genuine, whose[mated], found.other[~mated][order], (alone,), touching, len(alone))


def searched_pairs(
    probes: tuple[ArrayLike, ArrayLike],
    gallery: tuple[ArrayLike, ArrayLike],
    person: ArrayLike,
    people: int,
    fpir: float,
) -> Trials:
    """Searches by "pair-count": embeddings with identities of the probes, each of a `person` (P,), and of a gallery.

    All non-mate scores count, and as many of the highest are kept as rates up to `fpir` need.
    """
    whose = np.asarray(person, np.int64)
    scores = _unit("probes", probes[0]) @ _unit("gallery", gallery[0]).T
    mates = np.asarray(probes[1])[:, None] == np.asarray(gallery[1])
    mated = mates.any(axis=1)
    best = np.where(mates[mated], scores[mated], -np.inf).max(axis=1)
    scores[mates] = -np.inf
    wanted = min(scores.size, allowed_accepts(min(1.0, fpir * (1 + NEARBY)), len(whose)) + 1)
    rows, columns = np.nonzero(scores >= np.partition(scores, -wanted, axis=None)[-wanted])
    order = np.argsort(-scores[rows, columns], kind="stable")
    impostor = scores[rows, columns][order].astype(np.float64)
    touching = np.bincount(whose, minlength=people)
    return Trials(best.astype(np.float64), whose[mated], impostor, (whose[rows[order]],), touching, len(whose))


def _unit(name: str, embeddings: ArrayLike) -> NDArray[np.float32]:
    return checks.unit_rows(name, checks.embeddings(name, embeddings)).astype(np.float32)


def tar_influence(trials: Trials, far: float) -> Floats:
    """Of the exact TAR at `far`, or TPIR at such an FPIR, the threshold following the impostors: by person."""
    people, impostors = len(trials.touching), trials.impostors
    allowed = allowed_accepts(far, impostors)
    if allowed < 1 or not trials.genuine.size:
        raise FedVisageError(f"{impostors:,} impostor pairs or searches cannot show a false accept rate of {far:g}")
    threshold = _quantile(trials, far)
    kept = trials.genuine > threshold
    direct = share_influence(kept, trials.person, people)
    false = trials.impostor > threshold
    touched = sum((np.bincount(side[false], minlength=people) for side in trials.sides), np.zeros(people))
    rate = np.count_nonzero(false) / impostors
    moved: Floats = direct - _slope(trials, far) * (touched - rate * trials.touching) / impostors
    return moved


def _quantile(trials: Trials, far: float) -> float:
    """The threshold above which at most the share `far` of the impostors lies."""
    return float(trials.impostor[min(allowed_accepts(far, trials.impostors), len(trials.impostor) - 1)])


def _slope(trials: Trials, far: float) -> float:
    """How the TAR grows with the false accept rate around `far`."""
    tars, fars = [], []
    for near in (far * (1 - NEARBY), min(1.0, far * (1 + NEARBY))):
        threshold = _quantile(trials, near)
        tars.append(_above(trials.genuine > threshold))
        fars.append(np.count_nonzero(trials.impostor > threshold) / trials.impostors)
    return (tars[1] - tars[0]) / (fars[1] - fars[0]) if fars[1] > fars[0] else 0.0


def _above(hits: Bools) -> float:
    return float(np.count_nonzero(hits)) / hits.size
