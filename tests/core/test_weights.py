"""Which of a network's tensors travel under each BatchNorm policy, and how values get in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedvisage.core.errors import FedVisageError
from fedvisage.core.weights import BatchNormPolicy, Weights, snapshot
from fedvisage.models import BACKBONES, create_backbone

BACKBONE = {"0.weight", "0.bias", "2.weight"}
AFFINE = {"1.weight", "1.bias"}
STATISTICS = {"1.running_mean", "1.running_var"}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_statistics_travel_when_they_are_averaged_or_recalibrated(policy: BatchNormPolicy) -> None:
    weights = Weights(network(), policy)
    assert set(weights.backbone) == BACKBONE | AFFINE
    assert set(weights.buffers) == STATISTICS
    assert weights.local == {}


def test_with_local_batchnorm_neither_affine_parameters_nor_statistics_travel() -> None:
    weights = Weights(network(), "local")
    assert set(weights.backbone) == BACKBONE
    assert weights.buffers == {}
    assert set(weights.local) == AFFINE | STATISTICS


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_is_cut_into_groups_without_rest_or_overlap(name: str, policy: BatchNormPolicy) -> None:
    model = create_backbone(name, device="meta")
    weights = Weights(model, policy)
    groups = [set(weights.backbone), set(weights.buffers), set(weights.local)]
    everything = {n for n, p in model.named_parameters() if p.requires_grad} | {n for n, _ in model.named_buffers()}
    counters = {n for n in everything if n.endswith("num_batches_tracked")}
    assert set.union(*groups) == everything - counters
    assert sum(map(len, groups)) == len(everything - counters)


def test_frozen_parameters_do_not_travel() -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    assert "0.bias" not in Weights(model).backbone


def test_a_network_without_batchnorm_has_no_buffers() -> None:
    weights = Weights(nn.Linear(2, 2), "local")
    assert (weights.buffers, weights.local) == ({}, {})


def test_loading_copies_values_into_the_live_model() -> None:
    model = network()
    weights = Weights(model)
    addresses = {name: p.data_ptr() for name, p in model.named_parameters()}
    source = {"0.weight": torch.full((3, 2), 7.0), "1.running_mean": torch.full((3,), 5.0)}
    weights.load(source)
    assert torch.equal(model[0].weight, source["0.weight"])
    assert torch.equal(model[1].running_mean, source["1.running_mean"])
    source["0.weight"].zero_()
    assert float(model[0].weight.detach().sum()) == 42.0
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == addresses


def test_a_model_at_rest_takes_no_memory_and_is_the_same_when_it_was_loaded_again() -> None:
    model, images = network(), torch.randn(4, 2)
    weights = Weights(model)
    kept, before = {**snapshot(weights.backbone), **snapshot(weights.buffers)}, model.eval()(images)
    for _ in range(2):
        weights.rest()
        weights.rest()
        assert {tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *weights.all().values())} == {4}
        weights.load({name: kept[name] for name in weights.backbone})
        weights.load({name: kept[name] for name in weights.buffers})
        assert torch.equal(model(images), before)


def test_the_groups_are_live_and_a_snapshot_is_not() -> None:
    model = network()
    weights = Weights(model)
    before = snapshot(weights.backbone)
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(weights.backbone["0.weight"], model[0].weight)
    assert torch.equal(before["0.weight"] + 1, model[0].weight)


def test_a_snapshot_carries_no_gradient_history() -> None:
    assert not snapshot({"p": nn.Parameter(torch.ones(2))})["p"].requires_grad


def test_a_tensor_the_model_does_not_have_is_named() -> None:
    with pytest.raises(FedVisageError, match=r"no tensor '9\.weight'"):
        Weights(network()).load({"9.weight": torch.zeros(1)})


@pytest.mark.parametrize("name", ["1.num_batches_tracked"])
def test_the_batch_counter_cannot_be_loaded(name: str) -> None:
    with pytest.raises(FedVisageError, match="no tensor"):
        Weights(network()).load({name: torch.tensor(3)})


def test_a_wrong_shape_is_refused_before_anything_is_copied() -> None:
    model = network()
    before = snapshot(Weights(model).backbone)
    with pytest.raises(FedVisageError, match=r"'2\.weight' has shape \(1,\), the model's is \(2, 3\)"):
        Weights(model).load({"0.weight": torch.zeros(3, 2), "2.weight": torch.zeros(1)})
    assert all(torch.equal(before[name], tensor) for name, tensor in Weights(model).backbone.items())


def test_a_twin_has_the_given_values_and_is_never_trained() -> None:
    model = create_backbone("ir-tiny", image_size=32)
    weights = Weights(model)
    images = torch.zeros(2, 3, 32, 32)
    other = {name: tensor + 1 for name, tensor in weights.backbone.items()}
    twin = weights.twin("global", other)
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert all(torch.equal(dict(twin.named_parameters())[name], value) for name, value in other.items())
    before = twin(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(3)
    assert torch.equal(twin(images), before)


def test_asking_for_a_twin_again_overwrites_it_and_twins_of_other_names_stay() -> None:
    weights = Weights(network())
    one = weights.twin("one", {"0.bias": torch.ones(3)})
    two = weights.twin("two", {})
    assert weights.twin("one", {"0.bias": torch.full((3,), 2.0)}) is one
    assert one is not two
    assert one[0].bias.tolist() == [2, 2, 2]
    assert torch.equal(two[0].bias, weights.backbone["0.bias"])


def test_a_twin_refuses_what_the_model_does_not_have() -> None:
    with pytest.raises(FedVisageError, match=r"no tensor '7\.bias'"):
        Weights(network()).twin("one", {"7.bias": torch.ones(3)})
