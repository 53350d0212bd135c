"""Losses and regularisers: pure functions of features, class embeddings and labels, computed in float32 or better.

A loss takes features (N, d); a regulariser takes all parties' class embeddings (C, d), and its `_gradient` gives value
and gradient by closed form in bounded memory, for a server with many classes.
"""

from fedvisage.losses._cosines import unit
from fedvisage.losses._regularisers import ValueAndGradient, average_shared
from fedvisage.losses.adaface import adaface
from fedvisage.losses.adversarial import domain_adversarial, domain_classifier, reversal_strength
from fedvisage.losses.arcface import arcface
from fedvisage.losses.binary import binary_margin, binary_margin_bias
from fedvisage.losses.centred import Centred
from fedvisage.losses.choice import LOSSES, loss_options, margin_loss
from fedvisage.losses.contrastive import model_contrastive
from fedvisage.losses.correction import cosine_regulariser, gradient_correction
from fedvisage.losses.correction_blocks import cosine_regulariser_gradient, gradient_correction_gradient
from fedvisage.losses.cosface import cosface
from fedvisage.losses.diagnostics import effective_rank, mean_cosine, party_cosines
from fedvisage.losses.discrepancy import multi_kernel_mmd
from fedvisage.losses.positive import positive_hinge
from fedvisage.losses.softmax import normalised_softmax, softmax
from fedvisage.losses.spreadout import mined_spreadout_gradient, spreadout, spreadout_gradient

__all__ = [
    "LOSSES",
    "Centred",
    "ValueAndGradient",
    "adaface",
    "arcface",
    "average_shared",
    "binary_margin",
    "binary_margin_bias",
    "cosface",
    "cosine_regulariser",
    "cosine_regulariser_gradient",
    "domain_adversarial",
    "domain_classifier",
    "effective_rank",
    "gradient_correction",
    "gradient_correction_gradient",
    "loss_options",
    "margin_loss",
    "mean_cosine",
    "mined_spreadout_gradient",
    "model_contrastive",
    "multi_kernel_mmd",
    "normalised_softmax",
    "party_cosines",
    "positive_hinge",
    "reversal_strength",
    "softmax",
    "spreadout",
    "spreadout_gradient",
    "unit",
]
