"""Clustering of embeddings (N, d) without knowing how many people there are, and scores of the result.

Nothing here takes identities but the scores and the choice of a distance: a clustering cannot use them by mistake.
"""

from fedvisage.clustering.baselines import dbscan, k_means
from fedvisage.clustering.choice import Chosen, Tried, choose_distance, largest_pure_distance
from fedvisage.clustering.finch import c_finch, c_finch_partitions, finch
from fedvisage.clustering.labels import drop_small, in_order, sizes
from fedvisage.clustering.neighbours import Neighbours, first_neighbours, neighbour_recall
from fedvisage.clustering.scores import ClusteringScores, bcubed, bcubed_f, nmi, pairwise, pairwise_f

__all__ = [
    "Chosen",
    "ClusteringScores",
    "Neighbours",
    "Tried",
    "bcubed",
    "bcubed_f",
    "c_finch",
    "c_finch_partitions",
    "choose_distance",
    "dbscan",
    "drop_small",
    "finch",
    "first_neighbours",
    "in_order",
    "k_means",
    "largest_pure_distance",
    "neighbour_recall",
    "nmi",
    "pairwise",
    "pairwise_f",
    "sizes",
]
