"""Two worker processes on two cores against one process, one thread each: the same job, the same bits."""

from __future__ import annotations

from benchmarks.common import Clock, Row, Scale, federation, side_by_side
from fedvisage.build import Parts
from fedvisage.config import Recipe
from fedvisage.core.parcel import BACKBONE, Tensors
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.weightings import BySamples

ROUNDS = 2
"""Of which the first warms up."""
PAIRS = {"smoke": 1, "normal": 3, "full": 7}
IMAGES = {"smoke": 3, "normal": 30, "full": 30}


def measure(scale: Scale) -> list[Row]:
    models: list[Tensors] = []

    def job(workers: int) -> float:
        recipe = Recipe.model_validate(
            {
                "faces": {"identities": 64, "images_per_identity": IMAGES[scale], "size": 48},
                "partition": {"parties": 8, "held_out": 0},
                "federation": {"rounds": ROUNDS, "workers": workers},
            }
        )
        clock = Clock()
        with federation(recipe, Parts(FedPE(training=recipe.training), BySamples(), ()), clock) as run:
            models.append(run.run()[0][BACKBONE])
        return clock.rounds[-1]

    two, one, share = side_by_side(lambda: job(2), lambda: job(1), PAIRS[scale], warm=False)
    if not all(bool((model[name] == tensor).all()) for model in models for name, tensor in models[0].items()):
        raise AssertionError("one and two workers gave different models")
    peer = "one process, same threads per party; models bit-identical"
    return [Row.of("two workers on two cores", two, one, "s/round", peer, ">= 1.7", 1 / share)]
