"""Backbones by name: the registry, and how one is built with weights that depend on a generator alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedvisage.core.errors import FedVisageError
from fedvisage.core.registry import Registry
from fedvisage.models.backbone import Backbone, BackboneMetadata

Build = Callable[[int, int], Backbone]


@dataclass(frozen=True)
class Architecture:
    """A registered backbone: how to build it for (image_size, embedding_size), and its metadata at its usual size."""

    metadata: BackboneMetadata
    build: Build


BACKBONES: Registry[Architecture] = Registry("backbone")

IMAGE_MULTIPLE = 16
"""Every family halves the image four times."""
LARGEST_IMAGE = 1024
LARGEST_EMBEDDING = 16_384


def register_backbone(metadata: BackboneMetadata) -> Callable[[Build], Build]:
    """Decorator that files a function of (image_size, embedding_size) under its metadata's name."""

    def add(build: Build) -> Build:
        BACKBONES.register(metadata.name, build.__module__)(Architecture(metadata, build))
        return build

    return add


def create_backbone(
    name: str,
    *,
    embedding_size: int | None = None,
    image_size: int | None = None,
    generator: torch.Generator | None = None,
    device: str | torch.device = "cpu",
) -> Backbone:
    """A new backbone; its weights come from `generator` (None: seed 0) and never from the global random state.

    Weights are drawn on the CPU, so a seed means the same on every device. On `device="meta"` there are shapes only.
    """
    backbone = build_on_meta(name, embedding_size=embedding_size, image_size=image_size)
    device = torch.device(device)
    if device.type == "meta":
        return backbone
    allocate(backbone)
    backbone.initialise(torch.Generator().manual_seed(0) if generator is None else generator)
    return backbone.to(device)


def build_on_meta(name: str, *, embedding_size: int | None = None, image_size: int | None = None) -> Backbone:
    """The backbone `name` with shapes but no weights, and its metadata with the counts of this very network."""
    architecture = BACKBONES[name]
    usual = architecture.metadata
    embedding_size = usual.embedding_size if embedding_size is None else embedding_size
    image_size = usual.image_size if image_size is None else image_size
    if not 1 <= embedding_size <= LARGEST_EMBEDDING:
        raise FedVisageError(f"embedding_size is {embedding_size}: it must be from 1 to {LARGEST_EMBEDDING}")
    if image_size not in range(IMAGE_MULTIPLE, LARGEST_IMAGE + 1, IMAGE_MULTIPLE):
        raise FedVisageError(
            f"image_size is {image_size}: {name} takes multiples of {IMAGE_MULTIPLE} up to {LARGEST_IMAGE}"
        )
    with torch.device("meta"):
        backbone = architecture.build(image_size, embedding_size)
    backbone.metadata = replace(
        usual,
        image_size=image_size,
        embedding_size=embedding_size,
        parameters=count(backbone)[0],
        buffer_elements=count(backbone)[1],
    )
    return backbone


def allocate(network: nn.Module) -> None:
    """Give a network that was built on "meta" memory on the CPU, with any values in it.

    As `to_empty` does, which for that imports PyTorch's whole compiler: 0.7 s and 35 MB in every process.
    """
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.empty(parameter.shape, dtype=parameter.dtype)
            setattr(module, name, nn.Parameter(values, parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


def count(network: nn.Module) -> tuple[int, int]:
    """Numbers of parameters (trained or not) and of buffer elements (BatchNorm's statistics and step counts)."""
    return sum(p.numel() for p in network.parameters()), sum(b.numel() for b in network.buffers())
