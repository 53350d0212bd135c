"""Two worker processes on two cores against one process, one thread each: the same job, the same bits."""

from __future__ import annotations

from statistics import median

from benchmarks.common import Clock, Row, Scale, federation
from fedvisage.build import Parts
from fedvisage.config import Recipe
from fedvisage.core.parcel import BACKBONE
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.weightings import BySamples

ROUNDS = {"smoke": 2, "normal": 5, "full": 12}
IMAGES = {"smoke": 3, "normal": 30, "full": 30}


def measure(scale: Scale) -> list[Row]:
    times, models = {}, {}
    for workers in (1, 2):
        recipe = Recipe.model_validate(
            {
                "faces": {"identities": 64, "images_per_identity": IMAGES[scale], "size": 48},
                "partition": {"parties": 8, "held_out": 0},
                "federation": {"rounds": ROUNDS[scale], "workers": workers},
            }
        )
        clock = Clock()
        with federation(recipe, Parts(FedPE(training=recipe.training), BySamples(), ()), clock) as run:
            models[workers] = run.run()[0][BACKBONE]
        times[workers] = median(clock.rounds[1:])
    same = all(bool((models[1][name] == models[2][name]).all()) for name in models[1])
    if not same:
        raise AssertionError("one and two workers gave different models")
    speedup = times[1] / times[2]
    peer = "one process, same threads per party; models bit-identical"
    return [Row.of("two workers on two cores", times[2], times[1], "s/round", peer, ">= 1.7", speedup)]
