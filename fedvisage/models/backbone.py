"""What every backbone is: a network from images to embeddings that knows its own input.

A backbone takes images in its own normalisation, (N, 3, H, W), and gives embeddings (N, d) that are not normalised;
`preprocess` gets there from 8-bit RGB images (N, H, W, 3) and `embed` goes all the way. Images of another size are
refused, never resized: alignment and cropping belong to the data, not to the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedvisage.core.errors import FedVisageError


@dataclass(frozen=True)
class BackboneMetadata:
    """What must travel with a backbone's weights, and what a reader wants to know of it."""

    name: str
    description: str
    source: str
    licence: str
    image_size: int
    embedding_size: int
    parameters: int
    buffer_elements: int
    channels: str = "RGB"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)


class Backbone(nn.Module):
    """Base of all backbones.

    A family says how it computes (`forward`) and how its weights start (`initialise_weight`).
    """

    metadata: BackboneMetadata
    transformation: nn.Linear | None
    """A personal last layer (d to d), in models that belong to one party."""

    def __init__(self) -> None:
        super().__init__()
        self.transformation = None

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        """Draw the weight of one convolution or linear layer; its bias is zero already."""
        raise TypeError(f"{type(self).__name__} does not say how its weights start")

    def initialise(self, generator: torch.Generator) -> None:
        """Set every parameter and buffer, in the order of the modules, from `generator` alone."""
        with torch.no_grad():
            for layer in self.modules():
                match layer:
                    case nn.Conv2d() | nn.Linear():
                        if layer.bias is not None:
                            layer.bias.zero_()
                        self.initialise_weight(layer, generator)
                    case nn.BatchNorm1d() | nn.BatchNorm2d():
                        layer.reset_parameters()
                    case nn.PReLU():
                        layer.weight.fill_(0.25)
                    case _ if any(True for _ in layer.parameters(recurse=False)):
                        raise TypeError(f"no initialisation is known for {type(layer).__name__}")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def preprocess(self, images: Tensor | NDArray[np.uint8]) -> Tensor:
        """8-bit RGB images (N, H, W, 3) as this network's input (N, 3, H, W), on its device."""
        self._check_images(images)
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images, order="C"))
        pixels = pixels.to(self.device).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        mean = pixels.new_tensor(self.metadata.mean).mul_(255).view(1, 3, 1, 1)
        std = pixels.new_tensor(self.metadata.std).mul_(255).view(1, 3, 1, 1)
        return pixels.sub_(mean).div_(std)

    def embed(
        self,
        images: Tensor | NDArray[np.uint8],
        batch_size: int = 128,
        flip: bool = True,
        normalise: bool = False,
    ) -> NDArray[np.float32]:
        """Embeddings (N, d) of 8-bit RGB images (N, H, W, 3), in evaluation mode.

        With `flip` the embedding of the mirrored image is added, as face recognition customarily does; `normalise`
        gives unit vectors. The network is left in the mode it was in.
        """
        self._check_images(images)
        if batch_size < 1:
            raise FedVisageError(f"batch_size is {batch_size}: it must be at least 1")
        embeddings = np.empty((len(images), self.metadata.embedding_size), dtype=np.float32)
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(images), batch_size):
                    batch = self.preprocess(images[start : start + batch_size])
                    features = self._embedding(batch)
                    if flip:
                        features = features + self._embedding(batch.flip(3))
                    if normalise:
                        features = functional.normalize(features, dim=1)
                    embeddings[start : start + batch_size] = features.float().cpu().numpy()
        finally:
            self.train(was_training)
        return embeddings

    def _embedding(self, batch: Tensor) -> Tensor:
        features: Tensor = self(batch)
        return features if self.transformation is None else self.transformation(features)

    def _check_images(self, images: Any) -> None:
        size = self.metadata.image_size
        wanted = f"{self.metadata.name} takes uint8 RGB images of shape (N, {size}, {size}, 3)"
        if not isinstance(images, Tensor | np.ndarray):
            raise FedVisageError(f"{wanted}; got {type(images).__name__}")
        if tuple(images.shape[1:]) != (size, size, 3) or images.dtype not in (torch.uint8, np.dtype(np.uint8)):
            raise FedVisageError(
                f"{wanted}; got {images.dtype} of shape {tuple(images.shape)}: align or resize them to {size} first"
            )
