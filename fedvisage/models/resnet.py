"""ResNet-34 (He et al., CVPR 2016) for 112x112 faces, the literal reading of papers that say no more than its name.

What is kept: the 7x7 stem of stride 2, four stages of (3, 4, 6, 3) post-activated basic blocks with 64 to 512 channels,
ReLU, global average pooling; layers have torchvision's names. What is adapted: no max-pooling after the stem, so that
112 pixels end in the 7x7 map that 224 pixels end in originally; and the classifier is replaced by a linear layer to the
embedding followed by BatchNorm. Convolutions start He-normal over their outputs, as in the paper's own code.
Face-recognition code mostly means IR-34 (`ir-34`) when it says ResNet-34.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.creation import register_backbone

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with BatchNorm: (N, C_in, H, W) to (N, C_out, H / stride, W / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block has learnt to its (projected) input and rectify."""
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        residual: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (residual + shortcut).relu()


class ResNet(Backbone):
    """A ResNet of basic blocks, `blocks` per stage; averaging makes it indifferent to `image_size`."""

    def __init__(self, embedding_size: int, *, blocks: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(
                BasicBlock(inputs, outputs, stride), *(BasicBlock(outputs, outputs, 1) for _ in range(depth - 1))
            )
            for depth, stride, (inputs, outputs) in zip(
                blocks, (1, 2, 2, 2), pairwise((WIDTHS[0], *WIDTHS)), strict=True
            )
        )
        self.fc = nn.Linear(WIDTHS[-1], embedding_size)
        self.features = nn.BatchNorm1d(embedding_size)

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        """He-normal over the outputs for convolutions, uniform in ±1/√fan_in for the linear layer."""
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
        else:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)

    def all_stages(self) -> tuple[Stage, ...]:
        """Stem, four stages of blocks, and the layers from the last map to the embedding."""
        layers = {name: self.get_submodule(name) for name in ("layer1", "layer2", "layer3", "layer4")}
        return (
            Stage("stem", (self.conv1, self.bn1), lambda x: self.bn1(self.conv1(x)).relu()),
            *(Stage(name, (layer,), layer) for name, layer in layers.items()),
            Stage("head", (self.fc, self.features), lambda x: self.features(self.fc(x.mean(dim=(2, 3))))),
        )


@register_backbone(
    BackboneMetadata(
        name="resnet-34",
        description="ResNet-34 for 112x112 faces: 7x7 stem, no max-pooling, global average, linear layer, BatchNorm",
        source="He et al., Deep residual learning, CVPR 2016; layer names of torchvision",
        licence="code Apache-2.0",
        image_size=112,
        embedding_size=512,
        parameters=21_548_352,
        buffer_elements=18_085,
    )
)
def resnet_34(image_size: int, embedding_size: int) -> Backbone:
    """ResNet-34."""
    return ResNet(embedding_size, blocks=(3, 4, 6, 3))
