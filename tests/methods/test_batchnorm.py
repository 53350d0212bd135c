"""BatchNorm policies: what stays stays, what is recalibrated equals a slow pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import WORK, close, faces_of, federate, get, mean, network, put, random_head, work_locally
from torch import nn

from fedvisage.core.parcel import BACKBONE, BUFFERS, Tensors
from fedvisage.methods import Recalibrate, batchnorm
from fedvisage.methods.fedavg import FedPE
from fedvisage.privacy import read_ledger


def test_local_statistics_never_travel_and_each_party_goes_on_with_its_own(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedPE(training=WORK, rounds=2), policy="local")
    norms = [name for name, layer in network().named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) > 3
    travelled = {
        name for row in read_ledger(tmp_path / "ledger.jsonl") if "layout" in row for name, *_ in row["tensors"]
    }
    assert travelled
    assert not [name for name in travelled if name.rpartition(".")[0] in norms or "running" in name]

    backbone, model = ran.start[BACKBONE], network()
    own = dict.fromkeys(("ann", "bob"), ran.start["batchnorm"])
    heads = {"ann": random_head("ann", 2), "bob": random_head("bob", 3)}
    for round in (1, 2):
        answers = []
        for name in own:
            put(model, backbone)
            put(model, own[name])
            heads[name] = work_locally(model, heads[name], faces_of(name), name, round)
            answers.append(get(model, list(backbone)))
            own[name] = get(model, list(own[name]))
        backbone = mean(answers, [5, 12])
    assert close(ran.server[BACKBONE], backbone, 1e-5)
    for name, statistics in own.items():
        assert close(ran.party(name)["batchnorm"], statistics, 1e-5)
    assert not close(own["ann"], own["bob"], 1e-3)


def test_averaged_statistics_do_travel(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedPE(training=WORK), rounds=1)
    names = {name for row in read_ledger(tmp_path / "ledger.jsonl") if "layout" in row for name, *_ in row["tensors"]}
    assert any(name.endswith("running_mean") for name in names)
    assert not any(name.endswith("num_batches_tracked") for name in names)
    assert "batchnorm" not in ran.party("ann")


def slow_statistics(backbone: Tensors, name: str, batch: int) -> Tensors:
    """Each layer's input, batch by batch through the global model; plain means of each batch's mean and variance."""
    model = network()
    put(model, backbone)
    model.train()
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def hook(layer: str) -> object:
        def remember(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
            flat = inputs[0].double().transpose(0, 1).flatten(1)
            seen.setdefault(layer, []).append((flat.mean(dim=1), flat.var(dim=1, unbiased=True)))

        return remember

    for layer, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(hook(layer))  # type: ignore[arg-type]
    pixels = faces_of(name).all()
    starts = list(range(0, len(pixels), batch))
    if len(pixels) - starts[-1] == 1:
        starts.pop()
    with torch.no_grad():
        for start, end in zip(starts, [*starts[1:], len(pixels)], strict=True):
            model(model.preprocess(pixels[start:end]))
    out: Tensors = {}
    for layer, pairs in seen.items():
        out[f"{layer}.running_mean"] = torch.stack([mean for mean, _ in pairs]).mean(dim=0).float()
        out[f"{layer}.running_var"] = torch.stack([var for _, var in pairs]).mean(dim=0).float()
    return out


@pytest.mark.parametrize("batch", [4, 64])
def test_recalibrated_statistics_equal_a_slow_pass_at_the_parties(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchnorm, "BATCH", batch)
    ran = federate(tmp_path, FedPE(training=WORK), rounds=1, policy="recalibrate", others=[Recalibrate()])
    slow = mean([slow_statistics(ran.server[BACKBONE], name, batch) for name in ("ann", "bob")], [5, 12])
    assert close(dict(ran.server[BUFFERS]), {name: slow[name] for name in ran.server[BUFFERS]}, 1e-4)


def test_recalibration_leaves_the_layers_as_it_found_them(tmp_path: Path) -> None:
    """Two rounds by hand would differ if the layers' momentum stayed changed: the second round trains as usual."""
    two = federate(tmp_path / "a", FedPE(training=WORK, rounds=2), policy="recalibrate", others=[Recalibrate()])
    again = federate(tmp_path / "b", FedPE(training=WORK, rounds=2), policy="recalibrate", others=[Recalibrate()])
    assert all(torch.equal(two.server[BUFFERS][name], value) for name, value in again.server[BUFFERS].items())
    one = federate(
        tmp_path / "c", FedPE(training=WORK, rounds=2), rounds=1, policy="recalibrate", others=[Recalibrate()]
    )
    model, answers = network(), []
    for name, classes in (("ann", 2), ("bob", 3)):
        put(model, one.server[BACKBONE])
        put(model, one.server[BUFFERS])
        head = one.party(name)["class_embeddings"]
        assert head.shape[0] == classes
        work_locally(model, head, faces_of(name), name, 2)
        answers.append(get(model, list(one.server[BACKBONE])))
    assert close(two.server[BACKBONE], mean(answers, [5, 12]), 1e-5)
