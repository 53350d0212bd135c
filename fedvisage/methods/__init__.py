"""Federated methods: one paper, one file, both halves of the algorithm. Importing this registers all of them."""

from fedvisage.core.method import METHODS
from fedvisage.methods import (
    alone,
    central,
    dan,
    dann,
    fedavg,
    fedavgm,
    fedface,
    fedfr,
    fedgc,
    fedprox,
    feduda,
    fv,
    mimelite,
    pfm,
    pfm_fedfr,
    rules,
    scaffold,
    separation,
    slowmo,
    weightings,
)
from fedvisage.methods.batchnorm import Recalibrate
from fedvisage.methods.centre import FitCentres
from fedvisage.methods.evaluate import EvaluateAtParties

__all__ = [
    "METHODS",
    "EvaluateAtParties",
    "FitCentres",
    "Recalibrate",
    "alone",
    "central",
    "dan",
    "dann",
    "fedavg",
    "fedavgm",
    "fedface",
    "fedfr",
    "fedgc",
    "fedprox",
    "feduda",
    "fv",
    "mimelite",
    "pfm",
    "pfm_fedfr",
    "rules",
    "scaffold",
    "separation",
    "slowmo",
    "weightings",
]
