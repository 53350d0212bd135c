"""K-means and DBSCAN from scikit-learn, on unit vectors, to compare with; labels (N,) by first appearance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedvisage.clustering.labels import Ints, in_order
from fedvisage.clustering.neighbours import vectors
from fedvisage.core.errors import FedVisageError


def k_means(x: ArrayLike, clusters: int, rng: np.random.Generator) -> Ints:
    """K-means of the unit embeddings (N, d); it has to be told the number of clusters."""
    from sklearn.cluster import KMeans

    rows = vectors(x).numpy()
    if not 1 <= clusters <= len(rows):
        raise FedVisageError(f"k-means wants 1 to {len(rows)} clusters for {len(rows)} embeddings, got {clusters}")
    seed = int(rng.integers(2**31))
    return in_order(KMeans(clusters, n_init=3, random_state=seed).fit_predict(rows))


def dbscan(x: ArrayLike, radius: float, smallest: int = 2) -> Ints:
    """DBSCAN of the unit embeddings (N, d) by Euclidean distance; what it calls noise has label -1."""
    from sklearn.cluster import DBSCAN

    if not radius > 0 or smallest < 1:
        raise FedVisageError(f"DBSCAN wants a positive radius and at least 1 neighbour, got {radius} and {smallest}")
    return in_order(DBSCAN(eps=radius, min_samples=smallest).fit_predict(vectors(x).numpy()))
