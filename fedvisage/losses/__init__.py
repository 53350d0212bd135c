"""Losses: pure functions of features (N, d), class embeddings (C, d) and labels (N,), computed in float32 or better."""

from fedvisage.losses.arcface import arcface
from fedvisage.losses.choice import LOSSES, loss_options, margin_loss
from fedvisage.losses.cosface import cosface
from fedvisage.losses.softmax import normalised_softmax, softmax

__all__ = ["LOSSES", "arcface", "cosface", "loss_options", "margin_loss", "normalised_softmax", "softmax"]
