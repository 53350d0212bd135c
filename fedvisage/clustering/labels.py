"""Cluster labels (N,): numbered by first appearance, -1 for what belongs to no cluster."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError

Ints = NDArray[np.int64]

NONE = -1


def check_labels(labels: ArrayLike) -> Ints:
    """`labels` as an (N,) int64 array."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise FedVisageError(f"cluster labels are integers (N,), at least one; got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def in_order(labels: ArrayLike) -> Ints:
    """The same clusters, numbered 0, 1, ... in the order in which they first appear; negative labels become -1."""
    array = check_labels(labels)
    result = np.full(len(array), NONE, np.int64)
    inside = np.flatnonzero(array >= 0)
    if len(inside):
        _, first, index = np.unique(array[inside], return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        result[inside] = rank[index]
    return result


def sizes(labels: ArrayLike) -> Ints:
    """Number of members of each cluster 0, 1, ...; what belongs to none is not counted."""
    array = check_labels(labels)
    return np.bincount(array[array >= 0]).astype(np.int64)


def drop_small(labels: ArrayLike, smallest: int) -> Ints:
    """Labels in which clusters of fewer than `smallest` members became -1 and the others are numbered anew."""
    array = in_order(labels)
    counts = np.append(sizes(array), 0)  # label -1 looks up the last
    return in_order(np.where(counts[array] >= smallest, array, NONE))
