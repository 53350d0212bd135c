"""How well clusters match identities: pairwise and BCubed precision, recall and F, and NMI.

Pairwise: of all pairs of images put together, the share of one identity (precision), and of all pairs of one identity
the share put together (recall). BCubed: the same per image over its cluster and its identity, averaged over images.
What belongs to no cluster (-1) counts as a cluster of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError

Counts = NDArray[np.float64]


class ClusteringScores(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f: float


def pairwise_f(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Pairwise F of predicted clusters (N,) against identities (N,)."""
    return pairwise(truth, predicted).f


def bcubed_f(truth: ArrayLike, predicted: ArrayLike) -> float:
    """BCubed F of predicted clusters (N,) against identities (N,)."""
    return bcubed(truth, predicted).f


def pairwise(truth: ArrayLike, predicted: ArrayLike) -> ClusteringScores:
    """Pairwise precision, recall and F; precision is 1 where no two images are together, recall where none could be."""
    both, _, _, identities, clusters = contingency(truth, predicted)
    together, of_cluster, of_identity = (float((n * (n - 1)).sum()) for n in (both, clusters, identities))
    return scores(together / of_cluster if of_cluster else 1.0, together / of_identity if of_identity else 1.0)


def bcubed(truth: ArrayLike, predicted: ArrayLike) -> ClusteringScores:
    """BCubed precision, recall and F."""
    both, identity, cluster, identities, clusters = contingency(truth, predicted)
    images = both.sum()
    precision = float((both**2 / clusters[cluster]).sum() / images)
    return scores(precision, float((both**2 / identities[identity]).sum() / images))


def nmi(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Mutual information of clusters and identities over the mean of their entropies; 1 where both have none."""
    both, identity, cluster, identities, clusters = contingency(truth, predicted)
    images = both.sum()
    share = both / images
    expected = identities[identity] / images * (clusters[cluster] / images)
    mutual = float((share * np.log(share / expected)).sum())
    entropy = sum(float(-(n / images * np.log(n / images)).sum()) for n in (identities, clusters)) / 2
    return min(1.0, max(0.0, mutual / entropy)) if entropy > 0 else 1.0


def scores(precision: float, recall: float) -> ClusteringScores:
    """With their F, which is 0 where both are."""
    total = precision + recall
    return ClusteringScores(precision, recall, 2 * precision * recall / total if total else 0.0)


def contingency(
    truth: ArrayLike, predicted: ArrayLike
) -> tuple[Counts, NDArray[np.int64], NDArray[np.int64], Counts, Counts]:
    """Images per occurring (identity, cluster), their identity and cluster, and images per identity and per cluster."""
    identity, cluster = numbered("truth", truth), numbered("predicted", alone(predicted))
    if identity.shape != cluster.shape:
        raise FedVisageError(f"{len(identity)} identities for {len(cluster)} predicted labels")
    width = int(cluster.max()) + 1
    cells, both = np.unique(identity * width + cluster, return_counts=True)
    return (
        both.astype(np.float64),
        cells // width,
        cells % width,
        np.bincount(identity).astype(np.float64),
        np.bincount(cluster).astype(np.float64),
    )


def alone(predicted: ArrayLike) -> NDArray[Any]:
    """Predicted labels with each -1 replaced by a cluster of its own."""
    labels = np.array(predicted)
    if labels.dtype.kind == "i" and labels.ndim == 1:
        none = np.flatnonzero(labels == -1)
        labels[none] = labels.max(initial=0) + 1 + np.arange(len(none))
    return labels


def numbered(name: str, labels: ArrayLike) -> NDArray[np.int64]:
    """Labels (N,) of any kind as numbers 0, 1, ..."""
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array):
        raise FedVisageError(f"{name} must hold at least one label in one axis, got shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise FedVisageError(f"{name} holds NaN or infinite labels")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)
