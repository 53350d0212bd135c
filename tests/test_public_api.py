"""The names that scripts and notebooks rely on."""

from __future__ import annotations

import numpy as np

import fedvisage as fv


def test_every_public_name_is_there() -> None:
    assert sorted(fv.__all__) == sorted(set(fv.__all__))
    for name in fv.__all__:
        assert hasattr(fv, name), name


def test_the_registries_are_listed() -> None:
    assert {"fedavg", "fedpe", "fedprox", "alone", "central"} <= set(fv.list_methods())
    assert {
        "ir-tiny",
        "ir-18",
        "ir-34",
        "ir-50",
        "ir-100",
        "sphere-20",
        "sphere-64",
        "resnet-34",
        "mobilefacenet",
    } <= set(fv.list_backbones())
    assert {"softmax", "normalised-softmax", "cosface", "arcface"} <= set(fv.list_losses())


def test_a_recipe_runs_and_its_model_embeds(tmp_path) -> None:  # type: ignore[no-untyped-def]
    changes = {"compare": [], "federation.rounds": 1, "federation.workers": 1, "pretrain.epochs": 1}
    recipe = fv.load_recipe("smoke", changes)
    result = fv.run(recipe, out=tmp_path / "run")
    assert set(result.scores) == {"start", "fedavg"}
    assert "fedavg" in str(result)
    model = fv.load_model(tmp_path / "run" / "model.safetensors")
    embeddings = model.embed(np.zeros((3, 32, 32, 3), np.uint8))
    assert embeddings.shape == (3, 128)
    assert embeddings.dtype == np.float32
