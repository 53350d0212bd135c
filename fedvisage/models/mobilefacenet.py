"""MobileFaceNet (Chen et al., CCBR 2018), table 1 of the paper: about a million parameters for 112x112 faces.

Every convolution has BatchNorm and, unless it is linear, PReLU. A 3x3 stem of stride 2 and a depthwise 3x3, inverted
residual bottlenecks, a 1x1 to 512 channels, then a linear global depthwise convolution the size of the last map (7x7)
in place of pooling, and a linear 1x1 to the embedding. The paper does not say
how weights start; here they are He-normal over their inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.creation import IMAGE_MULTIPLE, register_backbone
from fedvisage.models.prelu import PReLU

STEM_WIDTH = 64
LAST_WIDTH = 512
BOTTLENECKS = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))
"""Rows of the paper's table 1: expansion t, channels c, repeats n, stride of the first s."""


def convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int = 0, groups: int = 1, linear: bool = False
) -> nn.Sequential:
    """A convolution with BatchNorm and, unless `linear`, PReLU."""
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers) if linear else nn.Sequential(*layers, PReLU(outputs))


class Bottleneck(nn.Module):
    """Expand by 1x1, filter by depthwise 3x3, project by linear 1x1; added to the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = convolution(inputs, width)
        self.filter = convolution(width, width, 3, stride, padding=1, groups=width)
        self.project = convolution(width, outputs, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) to (N, C_out, H / stride, W / stride)."""
        projected: Tensor = self.project(self.filter(self.expand(x)))
        return x + projected if self.residual else projected


class MobileFaceNet(Backbone):
    """The network of table 1."""

    def __init__(self, image_size: int, embedding_size: int) -> None:
        super().__init__()
        self.stem = convolution(3, STEM_WIDTH, 3, 2, padding=1)
        self.depthwise = convolution(STEM_WIDTH, STEM_WIDTH, 3, padding=1, groups=STEM_WIDTH)
        bottlenecks: list[nn.Module] = []
        inputs = STEM_WIDTH
        for expansion, outputs, repeats, first_stride in BOTTLENECKS:
            for repeat in range(repeats):
                bottlenecks.append(Bottleneck(inputs, outputs, expansion, first_stride if repeat == 0 else 1))
                inputs = outputs
        self.bottlenecks = nn.Sequential(*bottlenecks)
        self.widen = convolution(inputs, LAST_WIDTH)
        self.pool = convolution(LAST_WIDTH, LAST_WIDTH, image_size // IMAGE_MULTIPLE, groups=LAST_WIDTH, linear=True)
        self.features = convolution(LAST_WIDTH, embedding_size, linear=True)

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        """He-normal over the inputs, which for a depthwise convolution are those of one channel."""
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)

    def all_stages(self) -> tuple[Stage, ...]:
        """The two layers at full width, the rows of bottlenecks, and the layers from the last map to the embedding."""
        rows, start = [], 0
        for number, (_, _, repeats, _) in enumerate(BOTTLENECKS, 1):
            row = list(self.bottlenecks)[start : start + repeats]
            rows.append(Stage(f"row{number}", tuple(row), nn.Sequential(*row)))
            start += repeats
        return (
            Stage("stem", (self.stem, self.depthwise), lambda x: self.depthwise(self.stem(x))),
            *rows,
            Stage("head", (self.widen, self.pool, self.features), self._head),
        )

    def _head(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(self.pool(self.widen(x))).flatten(1)
        return out


@register_backbone(
    BackboneMetadata(
        name="mobilefacenet",
        description="MobileFaceNet for 112x112 faces on phones and CPUs",
        source="Chen et al., MobileFaceNets, CCBR 2018, table 1",
        licence="code Apache-2.0",
        image_size=112,
        embedding_size=128,
        parameters=1_003_136,
        buffer_elements=19_634,
    )
)
def mobilefacenet(image_size: int, embedding_size: int) -> Backbone:
    """MobileFaceNet."""
    return MobileFaceNet(image_size, embedding_size)
