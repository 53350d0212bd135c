"""Everything a training step touches follows the model to its device.

There is no GPU here; `meta` stands for a second device. On it every operation runs but no value can be read, so a whole
stretch of training gets as far as its last line, where the loss is read, and no further. A tensor left behind on the
CPU would end it earlier.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedvisage.config import Training
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.faces import Faces, FaceSet
from fedvisage.faces.faceset import ArrayImages
from fedvisage.losses import arcface, cosface, normalised_softmax, softmax
from fedvisage.methods.fedprox import proximal
from fedvisage.models import create_backbone
from fedvisage.training import Batch, Trainer, batches

META = torch.device("meta")


@pytest.fixture
def images() -> Faces:
    pixels = np.zeros((8, 32, 32, 3), np.uint8)
    labels = np.repeat(np.arange(2), 4)
    return Faces(FaceSet(ArrayImages(pixels), labels, ("ann", "ben")), np.arange(8))


def test_batches_come_on_the_device(images: Faces) -> None:
    for batch in batches(images, Training(batch_size=4, crop=1), Streams(1), META):
        assert batch.images.device == META
        assert batch.labels.device == META


@pytest.mark.parametrize("loss", [softmax, normalised_softmax, cosface, arcface])
def test_a_whole_stretch_of_training_stays_on_the_device(images: Faces, loss) -> None:  # type: ignore[no-untyped-def]
    model = create_backbone("ir-tiny", image_size=32, device=META)
    anchor = {name: torch.zeros_like(p, device="cpu") for name, p in model.named_parameters() if p.requires_grad}
    trainer = Trainer(model, {"class_embeddings": torch.zeros(2, 128)}, Training(batch_size=4, epochs=2), 0.1)
    head = trainer.others["class_embeddings"]
    devices = []

    def objective(features: torch.Tensor, batch: Batch) -> torch.Tensor:
        devices.append({features.device, head.device, batch.labels.device})
        return loss(features, head, batch.labels)

    with pytest.raises(RuntimeError, match="meta"):
        trainer.fit(images, objective, Streams(1), proximal(anchor, 0.1))
    assert devices == [{META}] * 4, "two epochs of two batches"
    assert {tensor.device for tensor in trainer.state().values()} == {META}


def test_values_from_the_cpu_are_copied_into_a_model_elsewhere() -> None:
    weights = Weights(create_backbone("ir-tiny", image_size=32, device=META))
    assert weights.device == META
    weights.load({name: torch.zeros(tensor.shape) for name, tensor in weights.backbone.items()})
    assert all(p.device == META for p in weights.model.parameters())
