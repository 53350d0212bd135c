"""How well embeddings tell people apart: verification over pair lists and over all pairs, exact with ties."""

from __future__ import annotations

from fedvisage.evaluation.all_pairs import AllPairs, all_pairs_verification, pair_scores
from fedvisage.evaluation.bootstrap import Interval, bootstrap_accuracy, bootstrap_tar
from fedvisage.evaluation.curves import Det, Roc, auc, det, eer, roc
from fedvisage.evaluation.distractors import AmongDistractors, among_distractors, replace_noisy_probes
from fedvisage.evaluation.identification import Cmc, Search, Tpir, cmc, search, tpir_at_fpir, two_galleries
from fedvisage.evaluation.pairs import Pairs, make_pairs
from fedvisage.evaluation.personal import PairCounts, Personal, macro_average, personal_protocol
from fedvisage.evaluation.rates import Rate, tar_at_far, tars_at_fars
from fedvisage.evaluation.templates import Templates, enrolled, pool_templates, template_scores
from fedvisage.evaluation.verification import Accuracy, kfold_accuracy, kfold_accuracy_from_scores

__all__ = [
    "Accuracy",
    "AllPairs",
    "AmongDistractors",
    "Cmc",
    "Det",
    "Interval",
    "PairCounts",
    "Pairs",
    "Personal",
    "Rate",
    "Roc",
    "Search",
    "Templates",
    "Tpir",
    "all_pairs_verification",
    "among_distractors",
    "auc",
    "bootstrap_accuracy",
    "bootstrap_tar",
    "cmc",
    "det",
    "eer",
    "enrolled",
    "kfold_accuracy",
    "kfold_accuracy_from_scores",
    "macro_average",
    "make_pairs",
    "pair_scores",
    "personal_protocol",
    "pool_templates",
    "replace_noisy_probes",
    "roc",
    "search",
    "tar_at_far",
    "tars_at_fars",
    "template_scores",
    "tpir_at_fpir",
    "two_galleries",
]
