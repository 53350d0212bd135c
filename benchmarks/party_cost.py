"""Cost per party and round besides training: everything but the local work, against copying and summing weights."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import Clock, Row, Scale, federation, make_model, seconds
from fedvisage.build import Parts
from fedvisage.config import Recipe
from fedvisage.core.method import Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.weightings import BySamples
from fedvisage.models import Backbone
from fedvisage.training import Fit


class NoWork(FedPE):
    """FedPE whose parties do nothing between receiving and answering."""

    def fit(
        self, party: Party, parcel: Parcel, model: Backbone, embeddings: Tensor, offset: int = 0
    ) -> tuple[Tensor, Fit]:
        return embeddings, Fit(0.0, 1, 0)


class NoWorkNoState(NoWork):
    """The same without class embeddings: nothing is kept at the party."""

    def join(self, party: Party, parcel: Parcel) -> Answer:
        return party.answer(samples=2.0, classes=1.0)

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        party.load(parcel)
        return party.answer(BACKBONE, BUFFERS, samples=2.0, loss=0.0)


for part in (NoWork, NoWorkNoState, NoWorkNoState.train):
    part.__module__ = FedPE.__module__  # they stand for methods of the package


class TrainsItself(NoWorkNoState):
    """A method of one's own that overrides `train`: its answer is copied."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        return super().train(party, parcel)


SIZES: dict[str, dict[str, Any]] = {
    "1M": {"backbone": {"name": "ir-tiny", "embedding_size": 384}, "size": 64, "parties": 64, "rounds": 15},
    "24M": {"backbone": {"name": "ir-18"}, "size": 112, "parties": 16, "rounds": 7},
}

LARGE: dict[str, dict[str, Any]] = {
    "44M": {"backbone": {"name": "ir-50"}, "size": 112, "parties": 16, "rounds": 7},
}


def measure(scale: Scale) -> list[Row]:
    small = {"parties": 2, "rounds": 2} if scale == "smoke" else {}
    sizes = SIZES | LARGE if scale == "full" else SIZES
    rows = [_measure(NoWorkNoState(), label, **values | small) for label, values in sizes.items()]
    rows += [_measure(TrainsItself(), label, OVERRIDING, **values | small) for label, values in sizes.items()]
    kept = _measure(NoWork(), "1M", **SIZES["1M"] | small)
    return [*rows, replace(kept, name=f"{kept.name}, private state kept on disk", limit="-")]


OVERRIDING = "a method that overrides train"


def _measure(
    method: FedPE, label: str, who: str = "", *, backbone: dict[str, object], size: int, parties: int, rounds: int
) -> Row:
    recipe = Recipe.model_validate(
        {
            "faces": {"identities": parties, "images_per_identity": 2, "size": size},
            "partition": {"parties": parties, "held_out": 0},
            "backbone": backbone,
            "federation": {"rounds": rounds, "workers": 1},
        }
    )
    clock = Clock()
    model = make_model(recipe)
    bare: list[float] = []

    def both(event: object) -> None:
        clock(event)  # type: ignore[arg-type]
        if event.kind == "absorbed" and event.phase == "train":  # type: ignore[attr-defined]
            bare.append(seconds(lambda: copy_and_sum(model, parties)))

    with federation(recipe, Parts(method, BySamples(), ()), both) as run:
        run.run()
    ours, reference = clock.rounds[1:], bare[1:]
    ratio = median(a / b for a, b in zip(ours, reference, strict=True))
    each = 1000 / parties
    name = ", ".join(filter(None, (f"cost per party besides training, {label} parameters", who)))
    limit, peer = "<= 2.1" if who else "<= 1.6", "bare copy-and-sum loop"
    return Row.of(name, median(ours) * each, median(reference) * each, "ms", peer, limit, ratio)


def copy_and_sum(model: Backbone, parties: int) -> None:
    """What cannot be avoided: weights into the model, the model's weights onto the sum, for every party."""
    live = [p.data for p in model.parameters()] + [b for b in model.buffers() if b.is_floating_point()]
    start = [tensor.clone() for tensor in live]
    total = [torch.zeros_like(tensor) for tensor in live]
    for _ in range(parties):
        for own, value in zip(live, start, strict=True):
            own.copy_(value)
        for value, own in zip(total, live, strict=True):
            value.add_(own, alpha=1 / parties)
