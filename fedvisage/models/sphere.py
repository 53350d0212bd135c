"""Sphere networks: the plain residual networks of SphereFace (Liu et al., CVPR 2017) as CosFace and FedFR use them.

Four stages of 64, 128, 256 and 512 channels; a stage is a 3x3 convolution of stride 2 with bias and PReLU, then blocks
x + PReLU(conv(PReLU(conv(x)))) of 3x3 convolutions without bias. The last map goes flat through one linear layer.
There is no BatchNorm and no dropout, so nothing but weights travels. Weights start as in the public CosFace code:
layers with a bias Xavier-uniform with zero bias, the others from N(0, 0.01²).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.creation import IMAGE_MULTIPLE, register_backbone
from fedvisage.models.prelu import PReLU

WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """x + PReLU(conv(PReLU(conv(x)))), (N, C, H, W) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.prelu1 = PReLU(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.prelu2 = PReLU(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block has learnt to its input."""
        residual: Tensor = self.prelu2(self.conv2(self.prelu1(self.conv1(x))))
        return x + residual


class Sphere(Backbone):
    """A sphere network with `blocks` per stage."""

    def __init__(self, image_size: int, embedding_size: int, *, blocks: Sequence[int]) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        inputs = 3
        for width, depth in zip(WIDTHS, blocks, strict=True):
            stages.append(
                nn.Sequential(
                    nn.Conv2d(inputs, width, 3, 2, padding=1), PReLU(width), *(Block(width) for _ in range(depth))
                )
            )
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(WIDTHS[-1] * (image_size // IMAGE_MULTIPLE) ** 2, embedding_size)

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        """Xavier-uniform for a layer with bias, N(0, 0.01²) for one without."""
        if layer.bias is None:
            layer.weight.normal_(0.0, 0.01, generator=generator)
        else:
            nn.init.xavier_uniform_(layer.weight, generator=generator)

    def all_stages(self) -> tuple[Stage, ...]:
        """Four stages of blocks and the linear layer."""
        return (
            *(Stage(f"stage{number}", (layer,), layer) for number, layer in enumerate(self.stages, 1)),
            Stage("head", (self.fc,), lambda x: self.fc(x.flatten(1))),
        )


def published(depth: int, parameters: int) -> BackboneMetadata:
    """Metadata of the sphere network with `depth` layers."""
    return BackboneMetadata(
        name=f"sphere-{depth}",
        description=f"sphere network of {depth} layers for 112x112 faces, without BatchNorm",
        source="Liu et al., SphereFace, CVPR 2017; sizes and initialisation of the public CosFace code",
        licence="code Apache-2.0",
        image_size=112,
        embedding_size=512,
        parameters=parameters,
        buffer_elements=0,
    )


@register_backbone(published(20, 24_501_952))
def sphere_20(image_size: int, embedding_size: int) -> Backbone:
    """Sphere-20."""
    return Sphere(image_size, embedding_size, blocks=(1, 2, 4, 1))


@register_backbone(published(64, 49_726_656))
def sphere_64(image_size: int, embedding_size: int) -> Backbone:
    """Sphere-64."""
    return Sphere(image_size, embedding_size, blocks=(3, 7, 16, 3))
