"""IR networks: the improved residual network of ArcFace (Deng et al., CVPR 2019), pre-activated and without pooling.

Layers carry the names of insightface's `arcface_torch`, so its state dicts load as they are. A block is BN, 3x3
convolution, BN, PReLU, 3x3 convolution with the stride, BN, added to the (possibly projected) input; four stages halve
the image each; the last map goes flat through BN, dropout (off, as published) and a linear layer to a BatchNorm
whose weight stays 1.

Convolutions start He-normal over their outputs, as in the IR code of face.evoLVe and TFace. `arcface_torch` draws from
N(0, 0.1²) instead, with which a fresh IR-100 overflows in evaluation mode, before BatchNorm has seen any statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.creation import IMAGE_MULTIPLE, register_backbone
from fedvisage.models.prelu import PReLU


class Block(nn.Module):
    """One residual block: (N, C_in, H, W) to (N, C_out, H / stride, W / stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block has learnt to its (projected) input."""
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        residual: Tensor = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return residual + shortcut


class IResNet(Backbone):
    """An IR network with `blocks` and `widths` (channels) per stage; the stem is as wide as the first stage.

    The published networks keep the image's size in the stem and halve it in the first stage; `stem_stride=2` halves it
    in the stem instead. `memory_format` is how activations lie in memory; weights are always contiguous.
    """

    def __init__(
        self,
        image_size: int,
        embedding_size: int,
        *,
        blocks: Sequence[int],
        widths: Sequence[int] = (64, 128, 256, 512),
        stem_stride: int = 1,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.memory_format = memory_format
        self.conv1 = nn.Conv2d(3, widths[0], 3, stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.prelu = PReLU(widths[0])
        strides = (2 // stem_stride, 2, 2, 2)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(Block(inputs, outputs, stride), *(Block(outputs, outputs, 1) for _ in range(depth - 1)))
            for depth, stride, (inputs, outputs) in zip(blocks, strides, pairwise((widths[0], *widths)), strict=True)
        )
        self.bn2 = nn.BatchNorm2d(widths[-1])
        self.dropout = nn.Dropout(p=0.0)
        self.fc = nn.Linear(widths[-1] * (image_size // IMAGE_MULTIPLE) ** 2, embedding_size)
        self.features = nn.BatchNorm1d(embedding_size)
        self.features.weight.requires_grad_(False)

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
            Stage("stem", (self.conv1, self.bn1, self.prelu), self._stem),
            *(Stage(name, (layer,), partial(self._layer, layer)) for name, layer in layers.items()),
            Stage("head", (self.bn2, self.dropout, self.fc, self.features), self._head),
        )

    def _stem(self, x: Tensor) -> Tensor:
        out: Tensor = self.prelu(self.bn1(self.conv1(x.contiguous(memory_format=self.memory_format))))
        return out

    def _layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = layer(x.contiguous(memory_format=self.memory_format))
        return out

    def _head(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(self.fc(self.dropout(self.bn2(x).flatten(1))))
        return out


def published(name: str, depth: int, parameters: int, buffer_elements: int) -> BackboneMetadata:
    """Metadata of an IR network that `arcface_torch` has too."""
    return BackboneMetadata(
        name=name,
        description=f"IR-{depth} for 112x112 faces; arcface_torch's iresnet{depth}",
        source="Deng et al., ArcFace, CVPR 2019; layer names of deepinsight/insightface arcface_torch",
        licence="code Apache-2.0; weights trained elsewhere keep their own terms",
        image_size=112,
        embedding_size=512,
        parameters=parameters,
        buffer_elements=buffer_elements,
    )


@register_backbone(published("ir-18", 18, 24_025_600, 14_751))
def ir_18(image_size: int, embedding_size: int) -> Backbone:
    """IR-18."""
    return IResNet(image_size, embedding_size, blocks=(2, 2, 2, 2))


@register_backbone(published("ir-34", 34, 34_139_328, 25_911))
def ir_34(image_size: int, embedding_size: int) -> Backbone:
    """IR-34."""
    return IResNet(image_size, embedding_size, blocks=(3, 4, 6, 3))


@register_backbone(published("ir-50", 50, 43_590_848, 38_223))
def ir_50(image_size: int, embedding_size: int) -> Backbone:
    """IR-50."""
    return IResNet(image_size, embedding_size, blocks=(3, 4, 14, 3))


@register_backbone(published("ir-100", 100, 65_156_160, 69_786))
def ir_100(image_size: int, embedding_size: int) -> Backbone:
    """IR-100."""
    return IResNet(image_size, embedding_size, blocks=(3, 13, 30, 3))


@register_backbone(
    BackboneMetadata(
        name="ir-tiny",
        description="a small IR network that trains on a CPU, at 32 to 64 pixels",
        source="this project; the family of Deng et al., ArcFace, CVPR 2019",
        licence="code Apache-2.0",
        image_size=32,
        embedding_size=128,
        parameters=374_224,
        buffer_elements=2_226,
    )
)
def ir_tiny(image_size: int, embedding_size: int) -> Backbone:
    """One block per stage, a quarter of the width, and the first halving moved into the stem.

    That move makes a training step at 32 to 64 pixels 1.7 to 2.1 times as fast, and channels-last activations add
    another 20 per cent (one thread of an AVX2 CPU, batch 64).
    """
    return IResNet(
        image_size,
        embedding_size,
        blocks=(1, 1, 1, 1),
        widths=(16, 32, 64, 128),
        stem_stride=2,
        memory_format=torch.channels_last,
    )
