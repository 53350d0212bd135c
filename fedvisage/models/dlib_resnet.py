"""The face network of dlib (Davis King, 2017): a ResNet of 29 convolutions from 150x150 chips to 128 numbers.

A 7x7 convolution with stride 2 and no padding, a 3x3 max-pool, then residual blocks of two 3x3 convolutions. A block
that goes down has stride 2 and no padding; its shortcut is a 2x2 average pool, and where the two sides differ in size
or channels the smaller one is filled up with zeros. Every convolution has a bias; the affine scale that the published
weights carry after each one is folded into it. The mean over the last map goes through a matrix without bias.

Images are aligned to the five-point template like those of every other backbone here; the first thing the network does
is to cut dlib's chip out of them (`CHIP`). Two faces are compared by the distance of their embeddings.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage
from fedvisage.models.creation import register_backbone

CHIP_SIZE = 150
MEANS = (122.782, 117.001, 104.298)
SCALE = 256.0
STEM_WIDTH = 32
STAGES = ((32, 3), (64, 4), (128, 3), (256, 3), (256, 1))
"""Channels and blocks; the first block of every stage but the first goes down."""


class Chip(NamedTuple):
    """Where a pixel x of the aligned 112x112 image lies in the chip: (x - 55.5) * scale + 74.5 + shift."""

    scale: float
    right: float
    down: float


CHIP = Chip(1.6, 0.0, -24.0)
"""Chosen among 17 scales and shifts by the area under the ROC curve on folds 2 and 3 of LFW (aligned as published)."""


class Block(nn.Module):
    """relu(shortcut(x) + conv(relu(conv(x)))), (N, C_in, H, W) to (N, C, H', W')."""

    def __init__(self, inputs: int, outputs: int, down: bool) -> None:
        super().__init__()
        stride, padding = (2, 0) if down else (1, 1)
        self.down = down
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block has learnt to its input (halved where it goes down) and rectify."""
        residual: Tensor = self.conv2(self.conv1(x).relu())
        if not self.down:
            return (x + residual).relu()
        shortcut = functional.avg_pool2d(x, 2)
        return (_filled(shortcut, residual) + _filled(residual, shortcut)).relu()


def _filled(x: Tensor, other: Tensor) -> Tensor:
    """`x` with zeros after its last channel, row and column where the other tensor has more of them."""
    missing = [max(0, other.shape[axis] - x.shape[axis]) for axis in (3, 2, 1)]
    if not any(missing):
        return x
    return functional.pad(x, [pad for count in missing for pad in (0, count)])


class DlibResNet(Backbone):
    """dlib's face network for aligned images, which it turns into chips itself."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM_WIDTH, 7, 2)
        self.stage1, self.stage2, self.stage3, self.stage4, self.stage5 = (
            nn.Sequential(Block(inputs, width, number > 1), *(Block(width, width, False) for _ in range(depth - 1)))
            for number, ((inputs, _), (width, depth)) in enumerate(pairwise(((STEM_WIDTH, 0), *STAGES)), 1)
        )
        self.fc = nn.Linear(STAGES[-1][0], embedding_size, bias=False)

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        """He-normal over the inputs."""
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)

    def all_stages(self) -> tuple[Stage, ...]:
        """Chip and stem, five stages of blocks, and the matrix."""
        layers = {f"stage{number}": self.get_submodule(f"stage{number}") for number in range(1, len(STAGES) + 1)}
        return (
            Stage("stem", (self.stem,), lambda x: self._stem(cut_chips(x))),
            *(Stage(name, (layer,), layer) for name, layer in layers.items()),
            Stage("head", (self.fc,), lambda x: self.fc(x.mean(dim=(2, 3)))),
        )

    def _stem(self, chips: Tensor) -> Tensor:
        return functional.max_pool2d(self.stem(chips).relu(), 3, 2)

    def descriptors(self, chips: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embeddings (N, d) of dlib's own 8-bit RGB chips (N, 150, 150, 3): what dlib itself would give."""
        if chips.shape[1:] != (CHIP_SIZE, CHIP_SIZE, 3) or chips.dtype != np.uint8:
            raise FedVisageError(f"chips are uint8 of shape (N, 150, 150, 3); got {chips.dtype} of shape {chips.shape}")
        with torch.inference_mode():
            pixels = torch.from_numpy(np.array(chips)).to(self.device).permute(0, 3, 1, 2).float()
            x = self._stem((pixels - pixels.new_tensor(MEANS).view(1, 3, 1, 1)) / SCALE)
            for stage in self.all_stages()[1:]:
                x = stage.run(x)
            embeddings: NDArray[np.float32] = x.cpu().numpy()
            return embeddings


def cut_chips(images: Tensor, chip: Chip = CHIP) -> Tensor:
    """Chips (N, 3, 150, 150) from aligned images (N, 3, H, W), sampled bilinearly; the images' border repeats."""
    rows = torch.as_tensor(sampling(images.shape[2], chip.scale, chip.down), device=images.device)
    columns = torch.as_tensor(sampling(images.shape[3], chip.scale, chip.right), device=images.device)
    return rows @ images @ columns.T


@cache
def sampling(size: int, scale: float, shift: float) -> NDArray[np.float32]:
    """The matrix (150, size) that samples an axis of an aligned image of this size."""
    place = (np.arange(CHIP_SIZE) - (CHIP_SIZE - 1) / 2 - shift) / scale + 55.5
    place = ((place + 0.5) * (size / 112) - 0.5).clip(0, size - 1)
    low = np.floor(place).clip(max=size - 2).astype(int)
    matrix, every = np.zeros((CHIP_SIZE, size), np.float32), np.arange(CHIP_SIZE)
    matrix[every, low], matrix[every, low + 1] = 1 - (place - low), place - low
    return matrix


@register_backbone(
    BackboneMetadata(
        name="dlib-resnet",
        description="dlib's face network, which cuts its 150x150 chips from aligned 112x112 faces; no BatchNorm",
        source="Davis King, dlib's dnn_face_recognition example, 2017; He et al., CVPR 2016",
        licence="code Apache-2.0; dlib's weights are CC0",
        image_size=112,
        embedding_size=128,
        parameters=5_607_488,
        buffer_elements=0,
        mean=(MEANS[0] / 255, MEANS[1] / 255, MEANS[2] / 255),
        std=(SCALE / 255, SCALE / 255, SCALE / 255),
    )
)
def dlib_resnet(image_size: int, embedding_size: int) -> Backbone:
    """dlib's face network."""
    return DlibResNet(embedding_size)
