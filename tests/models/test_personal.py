"""A party's own model with a personal last layer: the same in memory, on disk and after it has been taken off again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedvisage.core.weights import Weights, snapshot
from fedvisage.models import create_backbone, load_model, personalised, save_model

SIZE = 128


@pytest.fixture
def weights() -> Weights:
    return Weights(create_backbone("ir-tiny", image_size=32, generator=torch.Generator().manual_seed(1)))


def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


def layer() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "transformation.weight": torch.randn(SIZE, SIZE, generator=generator),
        "transformation.bias": torch.randn(SIZE, generator=generator),
    }


def test_the_last_layer_is_applied_to_every_embedding(weights: Weights) -> None:
    own = layer()
    plain = weights.model.embed(images(), flip=False)
    with personalised(weights, snapshot(weights.all()) | own) as model:
        embeddings = model.embed(images(), flip=False)
    expected = plain @ own["transformation.weight"].numpy().T + own["transformation.bias"].numpy()
    np.testing.assert_allclose(embeddings, expected, rtol=1e-4, atol=1e-4)


def test_with_the_mirrored_image_both_go_through_the_layer(weights: Weights) -> None:
    with personalised(weights, layer()) as model:
        both = model.embed(images(), flip=True)
        sides = model.embed(images(), flip=False) + model.embed(images()[:, :, ::-1], flip=False)
    np.testing.assert_allclose(both, sides, rtol=1e-5, atol=1e-5)


def test_afterwards_the_layer_is_gone(weights: Weights) -> None:
    before = weights.model.embed(images())
    with personalised(weights, layer()):
        pass
    np.testing.assert_array_equal(weights.model.embed(images()), before)
    assert not any(name.startswith("transformation") for name in weights.model.state_dict())


def test_a_personal_model_is_saved_and_loaded_with_its_layer(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with personalised(weights, layer()) as model:
        save_model(path, model)
        expected = model.embed(images())
    np.testing.assert_array_equal(load_model(path).embed(images()), expected)
