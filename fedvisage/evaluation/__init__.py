"""How well embeddings tell people apart: verification over pair lists and over all pairs, exact with ties."""

from __future__ import annotations

from fedvisage.evaluation.all_pairs import AllPairs, all_pairs_verification, pair_scores
from fedvisage.evaluation.bootstrap import Interval, bootstrap_accuracy, bootstrap_tar
from fedvisage.evaluation.curves import Det, Roc, auc, det, eer, roc
from fedvisage.evaluation.pairs import Pairs, make_pairs
from fedvisage.evaluation.rates import Rate, tar_at_far
from fedvisage.evaluation.verification import Accuracy, kfold_accuracy, kfold_accuracy_from_scores

__all__ = [
    "Accuracy",
    "AllPairs",
    "Det",
    "Interval",
    "Pairs",
    "Rate",
    "Roc",
    "all_pairs_verification",
    "auc",
    "bootstrap_accuracy",
    "bootstrap_tar",
    "det",
    "eer",
    "kfold_accuracy",
    "kfold_accuracy_from_scores",
    "make_pairs",
    "pair_scores",
    "roc",
    "tar_at_far",
]
