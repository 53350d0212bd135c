"""Federated methods: one paper, one file, both halves of the algorithm. Importing this registers all of them."""

from fedvisage.methods import alone, central, fedavg, fedface, fedfr, fedgc, fedprox, feduda, separation, weightings
from fedvisage.methods.batchnorm import Recalibrate
from fedvisage.methods.evaluate import EvaluateAtParties

__all__ = [
    "EvaluateAtParties",
    "Recalibrate",
    "alone",
    "central",
    "fedavg",
    "fedface",
    "fedfr",
    "fedgc",
    "fedprox",
    "feduda",
    "separation",
    "weightings",
]
