"""One local epoch of FedFR with all its terms against the passes it needs: three forward, one backward."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.common import Row, Scale, seconds, side_by_side
from fedvisage.config import Training
from fedvisage.core.method import Party
from fedvisage.core.parcel import BACKBONE, PUBLIC_EMBEDDINGS, Parcel
from fedvisage.core.phase import TRAINER
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.faceset import ArrayImages, FaceSet
from fedvisage.faces.partition import PartyFaces, Share
from fedvisage.methods.fedfr import LOCAL, FedFR
from fedvisage.models import create_backbone

OWN, PUBLIC, EACH, BATCH, SIZE = 20, 300, 8, 64, 64
COUNTS = {"smoke": (2, 4, 1), "normal": (OWN, 30, 3), "full": (OWN, PUBLIC, 5)}
"""People of the party, public people, and repetitions."""


def measure(scale: Scale) -> list[Row]:
    own, public, times = COUNTS[scale]
    people, count = own + public, EACH * (own + public)
    pixels = np.random.default_rng(1).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)
    faces = FaceSet(ArrayImages(pixels), np.repeat(np.arange(people), EACH), tuple(f"p{n}" for n in range(people)))
    model = create_backbone("ir-tiny", image_size=SIZE, generator=torch.Generator().manual_seed(1))
    weights = Weights(model)
    method = FedFR(training=Training(batch_size=BATCH, learning_rate=1e-3), public="all")
    border = EACH * own
    view = PartyFaces(faces, Share(TRAINER, tuple(range(border))), tuple(range(border, count)))
    party = Party("one", TRAINER, 1, view, {}, weights, Streams(1), rates=lambda round: 1e-3)
    start = snapshot(weights.backbone)
    embeddings = torch.randn(public, model.metadata.embedding_size, generator=torch.Generator().manual_seed(2))
    parcel = Parcel({BACKBONE: start, PUBLIC_EMBEDDINGS: {"all": embeddings}})
    method.join(party, parcel)
    party.state[LOCAL] = {**start, **snapshot(weights.buffers)}
    images, _ = method.images(party, model)
    ready = torch.rand(BATCH, 3, SIZE, SIZE) * 2 - 1
    batches = [ready] * (count // BATCH) + ([ready[: count % BATCH]] if count % BATCH > 1 else [])
    near, far = (weights.twin(name, {}) for name in ("near", "far"))

    def epoch() -> None:
        party.load(parcel)
        trainer = method.trainer(party, model, method._others(party, parcel))
        loss, onlookers = method.total_loss(trainer.others), method.onlookers(party)
        trainer.fit(images, loss, Streams(1, "train"), onlookers=onlookers)

    def passes() -> None:
        model.train()
        for batch in batches:
            with torch.no_grad():
                near(batch), far(batch)
            features = model(batch)
            model.zero_grad()
            features.backward(torch.ones_like(features))

    ours, reference, ratio = side_by_side(lambda: seconds(epoch), lambda: seconds(passes), times)
    name = f"a local epoch of FedFR, all terms, {count:,} images"
    return [Row.of(name, ours, reference, "s", "three forward passes and one backward", "<= 1.15", ratio)]
