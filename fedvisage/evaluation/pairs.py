"""Seeded lists of pairs in the manner of LFW: balanced, in folds that share no identity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Ints


class Pairs(NamedTuple):
    """N pairs: positions of the left and right image, and whether they show one person; each (N,)."""

    left: Ints
    right: Ints
    same: Bools


def make_pairs(labels: ArrayLike, count: int, rng: np.random.Generator, folds: int = 10) -> Pairs:
    """`count` pairs of the images with identities `labels` (M,), half of them genuine, drawn with `rng`.

    Identities are dealt to the folds, each fold gets count / folds pairs among its own identities, genuine ones first,
    and folds follow one another: `kfold_accuracy` with as many folds never meets a person on both sides of a cut.
    Within a fold the pairs of each kind are distinct and drawn uniformly from all there are.
    """
    if folds < 1 or count < 1:
        raise FedVisageError(f"at least one pair and one fold are needed, got {count} pairs in {folds} folds")
    if count % (2 * folds):
        raise FedVisageError(
            f"{count} pairs do not divide into {folds} folds, half genuine and half impostor: "
            f"take a multiple of {2 * folds}"
        )
    names, identity = checks.identities(labels)
    if len(names) < 2 * folds:
        raise FedVisageError(
            f"{folds} folds need at least {2 * folds} identities, two each, but the labels name {len(names)}"
        )
    each = count // (2 * folds)
    fold = _deal(np.bincount(identity), each, folds, rng)
    parts = [
        _draw(np.flatnonzero(fold[identity] == k), identity, each, f"fold {k + 1} of {folds}", rng)
        for k in range(folds)
    ]
    left, right = np.concatenate([np.stack(part) for part in parts], axis=1)
    same = np.tile(np.repeat([True, False], each), folds)
    return Pairs(left, right, same)


def _deal(images: Ints, each: int, folds: int, rng: np.random.Generator) -> Ints:
    """A fold for each identity, given its number of images (C,): equal numbers, genuine pairs spread evenly.

    Round by round every fold receives one identity; the richest goes to the fold that is poorest so far.
    """
    genuine = np.minimum(images * (images - 1) // 2, each)
    shuffled = rng.permutation(len(images))
    order = shuffled[np.argsort(-genuine[shuffled], kind="stable")]
    fold = np.empty(len(images), dtype=np.int64)
    wealth = np.zeros(folds, dtype=np.int64)
    for start in range(0, len(order), folds):
        dealt = order[start : start + folds]
        poorest = np.argsort(wealth, kind="stable")[: len(dealt)]
        fold[dealt] = poorest
        wealth[poorest] += genuine[dealt]
    return fold


def _draw(members: Ints, identity: Ints, each: int, where: str, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """`each` genuine and then `each` impostor pairs among the images `members` (m,)."""
    members = members[np.argsort(identity[members], kind="stable")]
    place = np.arange(len(members))
    after = np.searchsorted(identity[members], identity[members], side="right")  # where the next identity starts
    left, right = [], []
    # The partners of the image in place i are i + 1 ... after[i] - 1 (genuine) or after[i] ... m - 1 (impostor).
    for kind, first, partners in (
        ("genuine", place + 1, after - place - 1),
        ("impostor", after, len(members) - after),
    ):
        end = np.cumsum(partners)
        if end[-1] < each:
            raise FedVisageError(
                f"{where} has {end[-1]} {kind} pairs ({len(members)} images of {len(np.unique(identity[members]))} "
                f"identities) but {each} are asked for: ask for fewer pairs or folds, or bring more images"
            )
        number = rng.choice(end[-1], size=each, replace=False)
        i = np.searchsorted(end, number, side="right")
        left.append(members[i])
        right.append(members[first[i] + number - (end - partners)[i]])
    return np.concatenate(left), np.concatenate(right)
