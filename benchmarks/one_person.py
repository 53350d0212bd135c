"""Parties of one person each: a FedFace round against its bare passes."""

from __future__ import annotations

from statistics import median

import numpy as np
import torch

from benchmarks.common import Clock, Row, Scale, federation, make_model, seconds
from fedvisage.build import build_parts
from fedvisage.config import Recipe
from fedvisage.losses import positive_hinge

IMAGES = 5
PARTIES = {"smoke": (4, 1), "normal": (1_000, 1), "full": (1_000, 7)}
"""Parties, and rounds that count."""


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
        for _ in range(parties):
            model.zero_grad()
            positive_hinge(model(ready), direction.expand(IMAGES, -1), 0.9).backward()  # type: ignore[no-untyped-call]

    clock, passes = Clock(), list[float]()

    def both(event: object) -> None:
        clock(event)  # type: ignore[arg-type]
        if event.kind == "absorbed" and event.phase == "train" and event.round > 1:  # type: ignore[attr-defined]
            passes.append(seconds(bare))

    with federation(recipe, build_parts(recipe), both) as run:
        run.run()
    ours, reference = clock.rounds[1:], passes  # the first round warms up
    ratio = median(a / b for a, b in zip(ours, reference, strict=True))
    name = f"a FedFace round of {parties:,} parties x {IMAGES} images"
    peer = "bare forward and backward passes, 5 ready images each"
    return Row.of(name, median(ours), median(reference), "s", peer, "<= 1.3", ratio)
