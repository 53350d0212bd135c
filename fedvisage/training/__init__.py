"""Local training: batches, augmentation, optimiser, devices and the one training loop."""

from fedvisage.training.batches import Batch, augment, batches, count_steps
from fedvisage.training.corrections import add_constant
from fedvisage.training.devices import autocast, choose_device, threads
from fedvisage.training.embedding import embed_images, fit_centre, sum_of_people
from fedvisage.training.features import FeatureFile, features_for, with_features
from fedvisage.training.hard_negatives import hard_negatives, hardest_negatives
from fedvisage.training.loop import Correct, Fit, Loss, Trainer, loss_of
from fedvisage.training.optimisers import OPTIMISERS, Group, TorchOptimiser, make_optimiser
from fedvisage.training.schedules import SCHEDULES, rates_of

__all__ = [
    "OPTIMISERS",
    "SCHEDULES",
    "Batch",
    "Correct",
    "FeatureFile",
    "Fit",
    "Group",
    "Loss",
    "TorchOptimiser",
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
    "loss_of",
    "make_optimiser",
    "rates_of",
    "sum_of_people",
    "threads",
    "with_features",
]
