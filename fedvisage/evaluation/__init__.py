"""How well embeddings tell people apart: verification over pair lists and over all pairs, exact with ties."""

from __future__ import annotations

from fedvisage.evaluation.all_pairs import AllPairs, all_pairs_verification, pair_scores
from fedvisage.evaluation.bootstrap import Interval, bootstrap_accuracy, bootstrap_tar
from fedvisage.evaluation.curves import Det, Roc, auc, det, eer, roc
from fedvisage.evaluation.identification import Cmc, Search, Tpir, cmc, search, tpir_at_fpir, two_galleries
from fedvisage.evaluation.pairs import Pairs, make_pairs
from fedvisage.evaluation.rates import Rate, tar_at_far
from fedvisage.evaluation.verification import Accuracy, kfold_accuracy, kfold_accuracy_from_scores

__all__ = [
    "Accuracy",
    "AllPairs",
    "Cmc",
    "Det",
    "Interval",
    "Pairs",
    "Rate",
    "Roc",
    "Search",
    "Tpir",
    "all_pairs_verification",
    "auc",
    "bootstrap_accuracy",
    "bootstrap_tar",
    "cmc",
    "det",
    "eer",
    "kfold_accuracy",
    "kfold_accuracy_from_scores",
    "make_pairs",
    "pair_scores",
    "roc",
    "search",
    "tar_at_far",
    "tpir_at_fpir",
    "two_galleries",
]
