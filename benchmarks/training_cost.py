"""Cost of training through the federation: a round against the same batches in a bare PyTorch loop."""

from __future__ import annotations

from statistics import median

import torch

from benchmarks.common import Clock, Row, Scale, federation, make_model, seconds
from fedvisage.build import Parts
from fedvisage.config import Recipe
from fedvisage.losses import cosface
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.weightings import BySamples

PARTIES, PEOPLE, IMAGES, BATCH = 4, 16, 12, 32
ROUNDS = {"smoke": 2, "normal": 5, "full": 12}


def measure(scale: Scale) -> list[Row]:
    rows = [_measure("ir-tiny", 32 if scale == "smoke" else 64, ROUNDS[scale])]
    return [*rows, _measure("ir-18", 112, 2)] if scale == "full" else rows


def _measure(backbone: str, size: int, rounds: int) -> Row:
    recipe = Recipe.model_validate(
        {
            "faces": {"identities": PARTIES * PEOPLE, "images_per_identity": IMAGES, "size": size},
            "partition": {"parties": PARTIES, "held_out": 0},
            "backbone": {"name": backbone},
            "training": {"batch_size": BATCH, "crop": 2},
            "federation": {"rounds": rounds, "workers": 1},
        }
    )
    model = make_model(recipe)
    images = torch.rand(PEOPLE * IMAGES, 3, size, size) * 2 - 1
    labels = torch.arange(PEOPLE).repeat_interleave(IMAGES)
    clock, bare = Clock(), list[float]()

    def epoch() -> None:
        for _ in range(PARTIES):
            head = torch.randn(PEOPLE, model.metadata.embedding_size, requires_grad=True)
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.SGD([*parameters, head], lr=0.01, momentum=0.9, weight_decay=5e-4)
            model.train()
            for start in range(0, len(images), BATCH):
                loss = cosface(model(images[start : start + BATCH]), head, labels[start : start + BATCH])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()

    def both(event: object) -> None:
        clock(event)  # type: ignore[arg-type]
        if event.kind == "absorbed" and event.phase == "train":  # type: ignore[attr-defined]
            bare.append(seconds(epoch))

    with federation(recipe, Parts(FedPE(training=recipe.training), BySamples(), ()), both) as run:
        run.run()
    ratio = median(a / b for a, b in zip(clock.rounds[1:], bare[1:], strict=True))
    peer = "bare PyTorch loop over ready tensors, 1 thread"
    name = f"training through the federation, {backbone} at {size}x{size}"
    return Row.of(name, median(clock.rounds[1:]), median(bare[1:]), "s/epoch", peer, "<= 1.05", ratio)
