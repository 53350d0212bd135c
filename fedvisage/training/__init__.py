"""Local training: batches, augmentation, optimiser, devices and the one training loop."""

from fedvisage.training.batches import Batch, augment, batches, count_steps
from fedvisage.training.corrections import add_constant
from fedvisage.training.devices import autocast, choose_device, threads
from fedvisage.training.embedding import embed_images, fit_centre, sum_of_people
from fedvisage.training.features import FeatureFile, features_for, with_features
from fedvisage.training.hard_negatives import hard_negatives, hardest_negatives
from fedvisage.training.loop import Correct, Fit, Loss, Trainer, learning_rate, loss_of

__all__ = [
    "Batch",
    "Correct",
    "FeatureFile",
    "Fit",
    "Loss",
    "Trainer",
    "add_constant",
    "augment",
    "autocast",
    "batches",
    "choose_device",
    "count_steps",
    "embed_images",
    "features_for",
    "fit_centre",
    "hard_negatives",
    "hardest_negatives",
    "learning_rate",
    "loss_of",
    "sum_of_people",
    "threads",
    "with_features",
]
