"""IR and sphere networks against slow references written from their descriptions, and arcface_torch's state dicts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.models import create_backbone, load_arcface_torch

Shapes = dict[str, tuple[int, ...]]

BLOCKS = {"ir-18": (2, 2, 2, 2), "ir-34": (3, 4, 6, 3), "ir-50": (3, 4, 14, 3), "ir-100": (3, 13, 30, 3)}


def batch_norm(name: str, width: int) -> Shapes:
    vectors = {f"{name}.{field}": (width,) for field in ("weight", "bias", "running_mean", "running_var")}
    return vectors | {f"{name}.num_batches_tracked": ()}


def arcface_torch_shapes(blocks: Sequence[int]) -> Shapes:
    """Names and shapes in a state dict of insightface's arcface_torch iresnet."""
    shapes: Shapes = {
        "conv1.weight": (64, 3, 3, 3),
        "prelu.weight": (64,),
        "fc.weight": (512, 25_088),
        "fc.bias": (512,),
        **batch_norm("bn1", 64),
        **batch_norm("bn2", 512),
        **batch_norm("features", 512),
    }
    inputs = 64
    for stage, (width, depth) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), start=1):
        for index in range(depth):
            block = f"layer{stage}.{index}"
            shapes |= batch_norm(f"{block}.bn1", inputs)
            shapes[f"{block}.conv1.weight"] = (width, inputs, 3, 3)
            shapes |= batch_norm(f"{block}.bn2", width)
            shapes[f"{block}.prelu.weight"] = (width,)
            shapes[f"{block}.conv2.weight"] = (width, width, 3, 3)
            shapes |= batch_norm(f"{block}.bn3", width)
            if index == 0:
                shapes[f"{block}.downsample.0.weight"] = (width, inputs, 1, 1)
                shapes |= batch_norm(f"{block}.downsample.1", width)
            inputs = width
    return shapes


def constant_state(shapes: Shapes) -> dict[str, Tensor]:
    """A state dict in which the n-th tensor is full of n; expanded, so that its file stays small."""
    return {
        name: torch.tensor(n, dtype=torch.int64 if name.endswith("tracked") else torch.float32).expand(shape)
        for n, (name, shape) in enumerate(shapes.items())
    }


@pytest.mark.parametrize("name", BLOCKS)
def test_ir_networks_have_arcface_torchs_names_and_shapes(name: str) -> None:
    state = create_backbone(name, device="meta").state_dict()
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == arcface_torch_shapes(BLOCKS[name])


def test_an_arcface_torch_state_dict_loads(tmp_path: Path) -> None:
    state = constant_state(arcface_torch_shapes(BLOCKS["ir-18"]))
    torch.save(state, tmp_path / "backbone.pt")
    backbone = load_arcface_torch("ir-18", tmp_path / "backbone.pt")
    loaded = backbone.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in state.items())
    assert not backbone.training
    assert not backbone.get_parameter("features.weight").requires_grad


def test_an_arcface_torch_state_dict_in_half_precision_loads(tmp_path: Path) -> None:
    state = constant_state(arcface_torch_shapes(BLOCKS["ir-18"]))
    torch.save({key: t.half() if t.is_floating_point() else t for key, t in state.items()}, tmp_path / "backbone.pt")
    backbone = load_arcface_torch("ir-18", tmp_path / "backbone.pt")
    assert all(p.dtype == torch.float32 for p in backbone.parameters())


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name != key}


def test_a_state_dict_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "backbone.pt"
    state = constant_state(arcface_torch_shapes(BLOCKS["ir-18"]))
    for broken, message in [
        (without(state, "layer2.0.prelu.weight"), "lacks 1 of ir-18's 187 tensors, first 'layer2.0.prelu.weight'"),
        (state | {"head.weight": torch.ones(2)}, "has 1 tensors that ir-18 does not know, first 'head.weight'"),
        (state | {"fc.bias": torch.ones(3)}, r"'fc.bias' is torch.float32 \(3,\) where ir-18 has"),
        (constant_state(arcface_torch_shapes(BLOCKS["ir-34"])), "tensors that ir-18 does not know"),
        ([1, 2], "is not a state dict"),
        ({"conv1.weight": 3}, "is not a state dict"),
    ]:
        torch.save(broken, path)
        with pytest.raises(FedVisageError, match=message) as refusal:
            load_arcface_torch("ir-18", path)
        assert str(path) in str(refusal.value)


def test_only_networks_of_arcface_torch_load_its_files(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="arcface_torch has no 'ir-tiny'"):
        load_arcface_torch("ir-tiny", tmp_path / "backbone.pt")


class Bomb:
    """Runs a command when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "backbone.pt"
    torch.save({"conv1.weight": Bomb(tmp_path / "exploded")}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(FedVisageError, match=r"backbone\.pt is not a state dict of plain tensors"):
        load_arcface_torch("ir-18", path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_state_dict_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "backbone.pt"
    path.write_bytes(content)
    with pytest.raises(FedVisageError, match=r"backbone\.pt"):
        load_arcface_torch("ir-18", path)
    with pytest.raises(FedVisageError, match="No such file"):
        load_arcface_torch("ir-18", tmp_path / "absent.pt")


def slow_ir(state: Mapping[str, Tensor], x: Tensor, depths: Sequence[int], strides: Sequence[int]) -> Tensor:
    """An IR network in evaluation mode from its state dict, layer by layer."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (state[f"{name}.{f}"] for f in ("running_mean", "running_var", "weight", "bias"))
        shape = (1, -1, 1, 1)[: x.ndim]
        return (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt() * weight.view(shape) + bias.view(shape)

    def prelu(x: Tensor, name: str) -> Tensor:
        return torch.where(x > 0, x, state[f"{name}.weight"].view(1, -1, 1, 1) * x)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    x = prelu(norm(conv(x, "conv1", strides[0]), "bn1"), "prelu")
    for stage, (depth, stage_stride) in enumerate(zip(depths, strides[1:], strict=True), start=1):
        for index in range(depth):
            block, stride = f"layer{stage}.{index}", stage_stride if index == 0 else 1
            out = prelu(norm(conv(norm(x, f"{block}.bn1"), f"{block}.conv1"), f"{block}.bn2"), f"{block}.prelu")
            out = norm(conv(out, f"{block}.conv2", stride), f"{block}.bn3")
            if f"{block}.downsample.0.weight" in state:
                x = norm(conv(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
            x = x + out
    x = norm(x, "bn2").flatten(1) @ state["fc.weight"].T + state["fc.bias"]
    return norm(x, "features")


@pytest.mark.parametrize(
    ("name", "depths", "strides"),
    [("ir-18", (2, 2, 2, 2), (1, 2, 2, 2, 2)), ("ir-tiny", (1, 1, 1, 1), (2, 1, 2, 2, 2))],
)
def test_ir_networks_compute_what_their_description_says(
    name: str, depths: Sequence[int], strides: Sequence[int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    backbone = create_backbone(name, image_size=32, generator=generator).eval().double()
    with torch.no_grad():
        for tensor in backbone.state_dict().values():  # statistics and slopes that are not the neutral ones
            if tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5, generator=generator)
        images = torch.randn(2, 3, 32, 32, generator=generator, dtype=torch.float64)
        expected = slow_ir(backbone.state_dict(), images, depths, strides)
        torch.testing.assert_close(backbone(images), expected)


def test_sphere_networks_compute_what_their_description_says() -> None:
    backbone = create_backbone("sphere-20", image_size=32).eval()
    tensors = iter(backbone.state_dict().values())

    def layer(x: Tensor, stride: int, bias: bool) -> Tensor:
        x = functional.conv2d(x, next(tensors), next(tensors) if bias else None, stride, padding=1)
        return functional.prelu(x, next(tensors))

    images = x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for depth in (1, 2, 4, 1):
        x = layer(x, 2, bias=True)
        for _ in range(depth):
            x = x + layer(layer(x, 1, bias=False), 1, bias=False)
    x = functional.linear(x.flatten(1), next(tensors), next(tensors))
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), x)
    assert next(tensors, None) is None


def test_sphere_networks_start_as_the_public_cosface_code() -> None:
    for key, weight in create_backbone("sphere-20", image_size=32).named_parameters():
        if key.endswith("bias"):
            assert not weight.any()
        elif weight.ndim == 4 and ".conv" in key:
            assert weight.std().item() == pytest.approx(0.01, rel=0.02)
        elif weight.ndim >= 2:  # Xavier-uniform: ±√(6 / (fan_in + fan_out))
            field = weight[0, 0].numel()
            bound = (6 / (field * (weight.shape[0] + weight.shape[1]))) ** 0.5
            assert 0.98 * bound < weight.abs().max().item() <= bound
        else:
            assert (weight == 0.25).all()
