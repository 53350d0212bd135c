"""Federated momentum and validation: PFM's local step against plain SGD's; a search's time and memory."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch

from benchmarks.common import Row, Scale, federation, make_model, peak_above, seconds, side_by_side
from fedvisage.build import Parts
from fedvisage.config import Recipe, Training
from fedvisage.core.flat import flat_views, weighted
from fedvisage.core.method import Context
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.evaluation import make_pairs
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.federation import Event
from fedvisage.losses import cosface
from fedvisage.methods.fv import FV, FederatedValidation
from fedvisage.methods.pfm import PFM
from fedvisage.models import Backbone
from fedvisage.training import Batch, Correct, Trainer, add_constant

PEOPLE, BATCH, SIZE = 16, 32, 64
VALIDATORS = 2
EPOCHS = {"smoke": (1, 4), "normal": (5, 16), "full": (25, 16)}
"""Epochs measured, and images of a person in them."""
SEARCHES = {"smoke": (1, 12, 4, 100), "normal": (3, 40, 12, 200), "full": (5, 100, 20, 600)}
"""Searches measured; people of a validator, images of each, pairs."""

KEPT = {"smoke": (3, 1 << 18), "normal": (12, 1 << 22), "full": (12, 1 << 25)}
"""Parties of a search, and parameters of a backbone."""


def measure(scale: Scale) -> list[Row]:
    return [_room(*KEPT[scale]), _step(*EPOCHS[scale]), _search(*SEARCHES[scale])]


def _room(parties: int, numbers: int) -> Row:
    """Memory that a search's models take on the server, from the parties' backbones to the last candidate."""
    search = FederatedValidation(candidates=5)

    def work() -> None:
        shapes = {"weight": ((numbers,), torch.float32)}
        kept = {f"party-{n}": flat_views(shapes, torch.ones(numbers)) for n in range(parties)}
        weights = dict.fromkeys(kept, 1 / parties)
        server = {FV: {"weights": weights, "backbones": kept, "buffers": {}}}
        sent = {}
        for repeat in range(search.candidates):
            context = Context(Streams(1), 1, 1, {}, {}, 1, repeat)
            sent = search.plan_validate(server, ["validator"], context)  # the last parcels live until these are made
        assert sent

    models = (parties + 1) * numbers * 4 / 2**20
    peer = f"the backbones of {parties} parties and one candidate"
    return Row.of("memory, a search of federated validation", peak_above(work), models, "MB", peer, "<= 1.1")


def _step(times: int, each: int) -> Row:
    """An epoch of a few steps: the one trainer with PFM's correction and no momentum, or with plain SGD's momentum."""
    recipe = Recipe.model_validate({"faces": {"size": SIZE}, "training": {"batch_size": BATCH, "flip": False}})
    work, model = recipe.training, make_model(recipe)
    momentum = weighted((1e-6, Weights(model).backbone))
    pixels = torch.randint(0, 256, (PEOPLE * each, SIZE, SIZE, 3), dtype=torch.uint8).numpy()
    labels = torch.arange(PEOPLE).repeat_interleave(each).numpy()
    names = tuple(f"person-{n}" for n in range(PEOPLE))
    images = Faces(FaceSet(ArrayImages(pixels), labels, names), range(len(labels)))
    corrected = add_constant(momentum, work.momentum / (len(images) // BATCH))
    ours, plain, ratio = side_by_side(
        lambda: seconds(lambda: _epoch(model, images, work, 0.0, corrected)),
        lambda: seconds(lambda: _epoch(model, images, work, None, None)),
        times,
    )
    share = 1000 * BATCH / len(images)
    peer = "SGD with momentum, same trainer"
    return Row.of("PFM's local step", ours * share, plain * share, "ms", peer, "<= 1.05", ratio)


def _epoch(model: Backbone, images: Faces, work: Training, momentum: float | None, correct: Correct | None) -> None:
    head = torch.randn(PEOPLE, model.metadata.embedding_size)
    trainer = Trainer(model, {"head": head}, work, 1e-6, backbone_momentum=momentum)

    def loss(features: torch.Tensor, batch: Batch) -> torch.Tensor:
        return cosface(features, trainer.others["head"], batch.labels)

    trainer.fit(images, loss, Streams(1), correct)


def _search(rounds: int, judged: int, each: int, pairs: int) -> Row:
    """The exchanges of a search (mixing, sending, scoring, checkpoints) against embedding the same images as often."""
    search = FederatedValidation(pairs=pairs)
    recipe = Recipe.model_validate(
        {
            "faces": {"identities": 6 + VALIDATORS * judged, "images_per_identity": each, "size": SIZE},
            "partition": {
                "parties": 3,
                "identities_per_party": 2,
                "held_out": 0,
                "validators": VALIDATORS,
                "identities_per_validator": judged,
            },
            "training": {"steps": 1, "batch_size": 8},
            "federation": {"rounds": rounds, "workers": 1},
        }
    )
    model = make_model(recipe).eval()
    drawn = make_pairs(np.repeat(np.arange(judged), each), pairs, np.random.default_rng(1), search.folds)
    shown = len(np.unique((drawn.left, drawn.right)))  # within a few of a hundred what the validators drew
    pixels = torch.rand(shown, 3, SIZE, SIZE) * 2 - 1
    ours, bare = list[float](), list[float]()
    since, asked = 0.0, 0

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(VALIDATORS * search.candidates):
                for start in range(0, len(pixels), 128):
                    model(pixels[start : start + 128])

    def watch(event: Event) -> None:
        nonlocal since, asked
        if event.kind == "saved" and event.phase == "train":
            since = time.perf_counter()
        elif event.kind == "saved" and event.phase == "validate":
            asked += 1
            if asked % search.candidates == 0:
                ours.append(time.perf_counter() - since)
                bare.append(seconds(forward))

    with federation(recipe, Parts(PFM(training=recipe.training, rounds=rounds), search, ()), watch) as run:
        run.run()
    ratio = median(a / b for a, b in zip(ours, bare, strict=True))
    peer = "bare forward passes over ready tensors"
    return Row.of("a search of federated validation", median(ours), median(bare), "s", peer, "<= 1.2", ratio)
