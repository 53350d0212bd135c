"""Parties of one person each: a FedFace round against its bare passes."""

from __future__ import annotations

from statistics import median

import numpy as np
import torch

from benchmarks.common import Clock, Row, Scale, federation, make_model, seconds
from fedvisage.build import build_parts
from fedvisage.config import Recipe
from fedvisage.federation import Event
from fedvisage.losses import positive_hinge

IMAGES = 5
PARTIES = {"smoke": (4, 1), "normal": (1_000, 1), "full": (1_000, 7)}
"""Parties, and rounds that count."""
STRETCH = 4
"""Parties whose bare passes follow at once."""


def measure(scale: Scale) -> list[Row]:
    return [_round(*PARTIES[scale])]


def recipe_for(parties: int, rounds: int, size: int = 32) -> Recipe:
    """FedFace with one step per round over all images of each party."""
    return Recipe.model_validate(
        {
            "faces": {"identities": parties, "images_per_identity": IMAGES, "size": size},
            "partition": {"parties": parties, "identities_per_party": 1, "held_out": 0},
            "training": {"batch_size": IMAGES, "steps": 1, "batchnorm": "fixed", "weight_decay": 0.0},
            "method": {"name": "fedface"},
            "federation": {"rounds": rounds, "workers": 1},
        }
    )


def _round(parties: int, rounds: int) -> Row:
    recipe = recipe_for(parties, rounds + 1)
    model = make_model(recipe)
    pixels = np.random.default_rng(1).integers(0, 256, (IMAGES, *2 * (recipe.faces.size,), 3), dtype=np.uint8)
    ready = model.preprocess(pixels)
    direction = torch.nn.functional.normalize(torch.randn(1, model.metadata.embedding_size), dim=1)

    def bare() -> None:
        model.eval()
        for _ in range(STRETCH):
            model.zero_grad()
            positive_hinge(model(ready), direction.expand(IMAGES, -1), 0.9).backward()  # type: ignore[no-untyped-call]

    clock, passes = Clock(), [0.0]

    def both(event: Event) -> None:
        """Bare passes after every few parties, so that both are measured while the machine is as fast."""
        clock(event)
        if event.phase != "train":
            return
        if event.kind == "answer" and event.done % STRETCH == 0 and event.round > 1:  # the first round warms up
            passes[-1] += seconds(bare)
        elif event.kind == "absorbed":
            passes.append(0.0)

    with federation(recipe, build_parts(recipe), both) as run:
        run.run()
    reference = passes[1:-1]
    ours = [whole - bare for whole, bare in zip(clock.rounds[1:], reference, strict=True)]
    ratio = median(a / b for a, b in zip(ours, reference, strict=True))
    name = f"a FedFace round of {parties:,} parties x {IMAGES} images"
    peer = "bare forward and backward passes, 5 ready images each"
    return Row.of(name, median(ours), median(reference), "s", peer, "<= 1.3", ratio)
