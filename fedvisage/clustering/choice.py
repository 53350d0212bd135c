"""The distance of C-FINCH or DBSCAN, chosen on people whose identities are known.

A person in several clusters costs little, two people in one are pulled together: so the largest distance that puts no
two people together. Distances are tried upwards in steps of 0.01, and the first that is impure ends the search. C-FINCH
is not monotone (centroids move as clusters grow), and a distance beyond an impure one that happens to be pure again
is not safe for other people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedvisage.clustering.labels import Ints
from fedvisage.clustering.neighbours import Metric
from fedvisage.clustering.scores import ClusteringScores, bcubed, pairwise
from fedvisage.core.errors import FedVisageError

STEPS = 100
"""Distances tried per unit."""
LARGEST: dict[Metric, float] = {"euclidean": 2.0, "squared-euclidean": 4.0, "cosine": 2.0}
"""How far apart unit vectors can be."""


class Tried(NamedTuple):
    """A distance, and how well the clusters it leads to match the identities."""

    distance: float
    clusters: int
    pairwise: ClusteringScores
    bcubed: ClusteringScores

    @property
    def pure(self) -> bool:
        """Whether no two people are together."""
        return self.pairwise.precision == 1.0


class Chosen(NamedTuple):
    """The largest pure distance, or None where the smallest is impure, and the first with the best pairwise F."""

    pure: Tried | None
    best: Tried


def largest_pure_distance(cluster: Callable[[float], Ints], truth: ArrayLike, largest: float = 2.0) -> float | None:
    """The last of 0.01, 0.02, ... before one under which `cluster` puts two people of `truth` (N,) together.

    None where 0.01 does. `cluster` gives labels (N,) for a distance, -1 for none.
    """
    found = None
    for tried in try_distances(cluster, truth, largest):
        if not tried.pure:
            break
        found = tried.distance
    return found


def choose_distance(cluster: Callable[[float], Ints], truth: ArrayLike, largest: float = 2.0) -> Chosen:
    """The largest pure distance and that with the best pairwise F, of all up to one that puts everybody together."""
    everything = list(try_distances(cluster, truth, largest))
    impure = next((place for place, tried in enumerate(everything) if not tried.pure), len(everything))
    best = max(everything, key=lambda tried: tried.pairwise.f)
    return Chosen(everything[impure - 1] if impure else None, best)


def try_distances(cluster: Callable[[float], Ints], truth: ArrayLike, largest: float = 2.0) -> Iterator[Tried]:
    """Every distance from 0.01 to `largest`, as far as it does not put everybody together, and the first that does."""
    if len(np.unique(np.asarray(truth))) < 2:
        raise FedVisageError("a distance that keeps people apart cannot be chosen on fewer than two people")
    for step in range(1, round(largest * STEPS) + 1):
        labels = cluster(step / STEPS)
        clusters = len(np.unique(labels[labels >= 0])) + int(np.count_nonzero(labels < 0))
        yield Tried(step / STEPS, clusters, pairwise(truth, labels), bcubed(truth, labels))
        if clusters == 1:
            return
