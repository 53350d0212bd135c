"""Training the last stage from features computed once: against a bare loop, and how much of the possible it gains."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Row, Scale, seconds, side_by_side
from fedvisage.config import Training
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.losses import cosface
from fedvisage.models import Backbone, create_backbone
from fedvisage.training import Batch, Trainer, with_features

BATCH, PEOPLE, STAGE = 32, 16, "stage4"
SIZES = {"smoke": (32, 1), "normal": (96, 5), "full": (320, 9)}


def measure(scale: Scale) -> list[Row]:
    count, times = SIZES[scale]
    pixels = np.random.default_rng(1).integers(0, 256, (count, 112, 112, 3), dtype=np.uint8)
    faces = FaceSet(ArrayImages(pixels), np.arange(count) % PEOPLE, tuple(f"p{n}" for n in range(PEOPLE)))
    model = create_backbone("dlib-resnet").train_from(STAGE)
    head = torch.randn(PEOPLE, model.metadata.embedding_size, generator=torch.Generator().manual_seed(1))
    everybody = np.arange(count)
    with TemporaryDirectory() as folder:
        kept = Faces(with_features(model, faces, everybody, Path(folder)), everybody)
        assert kept.features is not None
        plain = Faces(faces, everybody)
        ready = torch.from_numpy(kept.features.read(everybody, np.zeros(count, bool)))
        labels = torch.from_numpy(faces.labels)

        def bare() -> float:
            return seconds(lambda: bare_epoch(model, head, ready, labels))

        def frozen() -> float:
            return seconds(
                lambda: [model.to_cut(model.preprocess(pixels[n : n + BATCH])) for n in range(0, count, BATCH)]
            )

        ours, reference, ratio = side_by_side(lambda: seconds(lambda: epoch(model, head, kept)), bare, times)
        uncached, cached, gain = side_by_side(
            lambda: seconds(lambda: epoch(model, head, plain)), lambda: seconds(lambda: epoch(model, head, kept)), times
        )
        whole, stage, possible = side_by_side(lambda: frozen() + bare(), bare, times)
    return [
        Row.of("the last stage, cached", ours, reference, "s/epoch", "bare PyTorch loop, 1 thread", "<= 1.05", ratio),
        Row.of(
            "gain of computing frozen stages once",
            uncached / cached,
            whole / stage,
            "times",
            "(frozen forward + stage step) / stage step",
            ">= 0.9",
            gain / possible,
        ),
    ]


def epoch(model: Backbone, head: Tensor, images: Faces) -> None:
    """One epoch through the product's training loop."""
    trainer = Trainer(model, {"head": head}, Training(batch_size=BATCH), 1e-4)

    def loss(features: Tensor, batch: Batch) -> Tensor:
        return cosface(features, trainer.others["head"], batch.labels)

    trainer.fit(images, loss, Streams(1))


def bare_epoch(model: Backbone, head: Tensor, features: Tensor, labels: Tensor) -> None:
    """The same by hand, on tensors that lie ready."""
    own = head.clone().requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD([*parameters, own], lr=1e-4, momentum=0.9, weight_decay=5e-4)
    model.train()
    for start in range(0, len(labels), BATCH):
        loss = cosface(model.from_cut(features[start : start + BATCH]), own, labels[start : start + BATCH])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
