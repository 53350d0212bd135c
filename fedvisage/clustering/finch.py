"""FINCH (Sarfraz et al., CVPR 2019) and C-FINCH, FINCH with a distance threshold (Zhuang et al., ICME 2022).

FINCH links two clusters when one is the other's first neighbour, or both have the same one; the connected components
are the clusters of the next level, each stood for by the mean of its members, until there is one cluster. C-FINCH keeps
a link only if the two are closer than d, and so comes to an end by itself.

Only links to first neighbours need to be looked at: they connect all that FINCH connects, and where the link of i to
its first neighbour fails the threshold every other link at i is longer and fails, too.

One wrong link joins two people for good, and chains of links do it often. `merge="mutual"` is safer and not in the
paper: two clusters are merged only if each is the other's first neighbour and their members (not their centroids, which
lie closer and closer the larger the clusters) are within d of each other, as the root of the mean squared distance.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedvisage.clustering.labels import Ints, in_order
from fedvisage.clustering.neighbours import Metric, Search, neighbours, positions, unit_, vectors
from fedvisage.core.errors import FedVisageError, nearest

Merge = Literal["first-neighbours", "mutual"]


def finch(
    x: ArrayLike, *, metric: Metric = "cosine", normalise: bool = False, search: Search = "exact"
) -> tuple[Ints, ...]:
    """All partitions of embeddings (N, d) that FINCH finds, the finest first and one cluster last; labels (N,) each.

    As published: cosine distance, and means of the embeddings as they are unless `normalise`.
    """
    return _levels(x, math.inf, metric, normalise, normalise, search) or (np.zeros(1, np.int64),)


def c_finch(
    x: ArrayLike,
    threshold: float,
    *,
    metric: Metric = "euclidean",
    normalise: bool = True,
    normalise_centroids: bool = True,
    search: Search = "exact",
    merge: Merge = "first-neighbours",
) -> Ints:
    """Labels (N,) of embeddings (N, d): C-FINCH to its fixed point, where no two centroids are within `threshold`.

    The paper's d = 0.9 is read as the Euclidean distance of unit vectors, cosine 0.595; its centroids are means of unit
    vectors, brought to unit length again.
    """
    return c_finch_partitions(
        x,
        threshold,
        metric=metric,
        normalise=normalise,
        normalise_centroids=normalise_centroids,
        search=search,
        merge=merge,
    )[-1]


def c_finch_partitions(
    x: ArrayLike,
    threshold: float,
    *,
    metric: Metric = "euclidean",
    normalise: bool = True,
    normalise_centroids: bool = True,
    search: Search = "exact",
    merge: Merge = "first-neighbours",
) -> tuple[Ints, ...]:
    """The partitions that `c_finch` goes through, from everybody alone to its result; labels (N,) each."""
    if not 0 <= threshold < math.inf:
        raise FedVisageError(f"the threshold of C-FINCH is a distance, 0 or more; got {threshold}")
    if merge not in get_args(Merge):
        raise FedVisageError(f"unknown merge rule '{merge}': {nearest(merge, get_args(Merge))}")
    found = _levels(x, threshold, metric, normalise, normalise_centroids, search, merge)
    return (np.arange(len(np.asarray(x)), dtype=np.int64), *found)


def _levels(
    x: ArrayLike,
    threshold: float,
    metric: Metric,
    normalise: bool,
    normalise_centroids: bool,
    search: Search,
    merge: Merge = "first-neighbours",
) -> tuple[Ints, ...]:
    centroids = vectors(x, metric, normalise)
    count = torch.ones(len(centroids), dtype=torch.int64)
    sums = centroids
    if metric == "cosine" and not normalise and merge != "mutual":  # means are of the embeddings as they are
        sums = vectors(x, "euclidean", False)
    squares = centroids.double().square().sum(dim=1) if merge == "mutual" else count
    labels, levels = np.arange(len(centroids), dtype=np.int64), list[Ints]()
    while len(centroids) > 1:
        if threshold == math.inf:
            index = positions(centroids, metric, search).numpy()
            linked = np.ones(len(index), np.bool_)
        else:
            index, distance = neighbours(centroids, metric, search)
            linked = distance < threshold
            if merge == "mutual":
                apart = member_distances(sums, squares, count, index, metric)
                linked = (apart < threshold) & (index[index] == np.arange(len(index)))
        merged = components(index, linked)
        if merged.max() == len(centroids) - 1:
            break
        labels = merged[labels]
        levels.append(labels)
        place = torch.from_numpy(merged)
        clusters = int(place.max()) + 1
        sums = sums.new_zeros(clusters, sums.shape[1]).index_add_(0, place, sums)
        count = count.new_zeros(clusters).index_add_(0, place, count)
        if merge == "mutual":
            squares = squares.new_zeros(clusters).index_add_(0, place, squares)
        centroids = mean_rows(sums, count, normalise_centroids or metric == "cosine")
    return tuple(levels)


def mean_rows(sums: Tensor, count: Tensor, normalise: bool) -> Tensor:
    """Means (K, d) of clusters from the sums (K, d) and numbers (K,) of their members, at unit length if wanted."""
    means = sums / count[:, None]
    return unit_(means) if normalise else means


def member_distances(
    sums: Tensor, squares: Tensor, count: Tensor, index: Ints, metric: Metric
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Distance (K,) of the members of each cluster to those of the one at `index`: the (root of the) mean over pairs.

    From the sums (K, d) of the members, the sums (K,) of their squared lengths and their numbers (K,): the mean of
    |x - y|² over pairs is the mean of |x|² plus that of |y|² less twice the product of the means.
    """
    other = torch.from_numpy(index)
    means, lengths = sums.double() / count[:, None], squares.double() / count
    product = torch.linalg.vecdot(means, means[other])
    if metric == "cosine":
        return np.asarray((1 - product).numpy())
    square = np.asarray((lengths + lengths[other] - 2 * product).clamp_min(0).numpy())
    return np.sqrt(square) if metric == "euclidean" else square


def components(index: Ints, linked: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """Connected components (N,) of the graph that links i to index[i] wherever linked[i], by first appearance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    start = np.flatnonzero(linked)
    graph = coo_array((np.ones(len(start), np.int8), (start, index[start])), shape=(len(index), len(index)))
    return in_order(connected_components(graph, directed=False)[1])
