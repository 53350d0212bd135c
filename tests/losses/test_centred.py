"""Losses about a centre: their gradients by finite differences, and the mean that they run after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedvisage as fv
from fedvisage.core.errors import FedVisageError
from fedvisage.losses import LOSSES, Centred, margin_loss
from fedvisage.losses.centred import KEEP, about

COSINES = sorted(set(LOSSES) - {"softmax"})
SMOOTH = [name for name in COSINES if name != "adaface"]
"""AdaFace takes the quality of an image for a constant, which finite differences do not."""


def in_a_cone(seed: int, rows: int = 6, classes: int = 4, size: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features, embeddings = (2.0 + torch.randn(n, size, generator=draw, dtype=torch.float64) for n in (rows, classes))
    return features, embeddings, torch.arange(rows) % classes


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_about_a_fixed_centre_are_finite_differences(name: str) -> None:
    features, embeddings, labels = in_a_cone(1)
    loss = Centred(margin_loss(name, scale=4.0), torch.nn.functional.normalize(features, dim=1).mean(dim=0))
    inputs = (features.requires_grad_(), embeddings.requires_grad_())
    assert torch.autograd.gradcheck(lambda f, w: loss(f, w, labels), inputs)


@pytest.mark.parametrize("name", COSINES)
def test_a_running_centre_is_a_constant_in_every_batch(name: str) -> None:
    running, centre = Centred(margin_loss(name)), None
    for seed in range(3):
        features, embeddings, labels = in_a_cone(seed)
        mean = (features / features.norm(dim=1, keepdim=True)).mean(dim=0)
        centre = mean if centre is None else KEEP * centre + (1 - KEEP) * mean
        gradients = []
        for loss in (running, Centred(margin_loss(name), centre)):
            inputs = features.clone().requires_grad_(), embeddings.clone().requires_grad_()
            gradients.append(torch.autograd.grad(loss(*inputs, labels), inputs))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)
        with torch.no_grad():
            running(-features, embeddings, labels)
        torch.testing.assert_close(running.centre, centre, msg="it does not move where no gradients are wanted")


def test_a_loss_about_a_centre_is_the_loss_of_what_the_definition_gives() -> None:
    features, embeddings, labels = in_a_cone(2)
    centre = torch.full((5,), 0.3, dtype=torch.float64)
    moved = [v / v.norm(dim=1, keepdim=True) - centre for v in (features, embeddings)]
    plain = margin_loss("cosface", scale=8.0)
    torch.testing.assert_close(Centred(plain, centre)(features, embeddings, labels), plain(*moved, labels))
    torch.testing.assert_close(about(features, centre).norm(dim=1), features.norm(dim=1))
    with pytest.raises(FedVisageError, match="must compare cosines"):
        Centred(margin_loss("softmax"))


def test_a_recipe_asks_for_it(tmp_path: Path) -> None:
    small = {
        "compare": [],
        "federation.rounds": 1,
        "federation.workers": 1,
        "pretrain.epochs": 0,
        "evaluation.pairs": 0,
    }
    models = []
    for centre in ("none", "running"):
        done = fv.run(fv.load_recipe("smoke", small | {"training.centre": centre}), out=tmp_path / centre)
        models.append(fv.load_model(done.model_path).state_dict())
    assert any(not torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    changes = small | {"training.centre": "running", "training.loss": "softmax", "training.scale": None}
    with pytest.raises(FedVisageError, match=r"no form of gradient correction goes with .* centre = 'running'"):
        fv.run(fv.load_recipe("smoke", small | {"training.centre": "running", "method.name": "fedgc"}))
    with pytest.raises(FedVisageError, match="must compare cosines"):
        fv.run(fv.load_recipe("smoke", changes), out=tmp_path / "softmax")
