"""What every backbone is: a network from images to embeddings that knows its own input.

A backbone takes images in its own normalisation, (N, 3, H, W), and gives embeddings (N, d) that are not normalised;
`preprocess` gets there from 8-bit RGB images (N, H, W, 3) and `embed` goes all the way. Images of another size are
refused, never resized: alignment and cropping belong to the data, not to the network.

A backbone is a row of stages. `train_from` freezes those before one of them: they are in evaluation mode and in full
precision whatever happens to the rest, and always see `CHUNK` images at a time, so that what they make of an image has
the same bits in any batch. Whatever takes images then takes what the frozen stages made of them as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.models.centres import NO_CENTRE, Centre, about, centre_named

CHUNK = 16
"""Images that frozen stages see at a time."""


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


class Stage(NamedTuple):
    """A part of a network that can be trained while those before it stay as they are."""

    name: str
    modules: tuple[nn.Module, ...]
    run: Callable[[Tensor], Tensor]


class Backbone(nn.Module):
    """Base of all backbones.

    A family says how it computes (`all_stages`) and how its weights start (`initialise_weight`).
    """

    metadata: BackboneMetadata
    transformation: nn.Linear | None
    """A personal last layer (d to d), in models that belong to one party."""

    def __init__(self) -> None:
        super().__init__()
        self.transformation = None
        self.centres: dict[str, Centre] = {}
        self.centre = ""
        """The centre that embeddings are about where none is named; empty for none."""
        self.cut = 0
        """Number of frozen stages."""
        self._digest = ""
        self._batchnorm = ""
        self._trainable: dict[str, nn.Parameter] | None = None

    def all_stages(self) -> tuple[Stage, ...]:
        """What it computes, in order: images (N, 3, H, W) to embeddings (N, d)."""
        raise TypeError(f"{type(self).__name__} does not say what its stages are")

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W) in this network's normalisation to embeddings (N, d)."""
        return self.from_cut(self.to_cut(x))

    def features_of(self, inputs: Tensor) -> Tensor:
        """Embeddings (n, d) for training: of 8-bit images (n, H, W, 3), or of what the frozen stages made of them."""
        return self.from_cut(
            inputs if self.cut and inputs.is_floating_point() else self.to_cut(self.preprocess(inputs))
        )

    def to_cut(self, x: Tensor) -> Tensor:
        """What the frozen stages make of images (N, 3, H, W); the images themselves where there are none."""
        if not self.cut:
            return x
        stages, parts = self.all_stages()[: self.cut], []
        with torch.no_grad(), _full_precision(x.device):
            for start in range(0, len(x), CHUNK):
                part = x[start : start + CHUNK]
                full = functional.pad(part, (0, 0, 0, 0, 0, 0, 0, CHUNK - len(part)))
                for stage in stages:
                    full = stage.run(full)
                parts.append(full[: len(part)])
            return torch.cat(parts).contiguous()

    def from_cut(self, x: Tensor) -> Tensor:
        """Embeddings (N, d) of what the frozen stages give."""
        for stage in self.all_stages()[self.cut :]:
            x = stage.run(x)
        return x

    def train_from(self, name: str) -> Self:
        """Freeze every stage before the one called `name`."""
        stages = self.all_stages()
        names = [stage.name for stage in stages]
        if name not in names:
            raise FedVisageError(
                f"{self.metadata.name} has no stage '{name}': {nearest(name, names)} (it has {', '.join(names)})"
            )
        self.cut, self._digest, self._trainable = names.index(name), "", None
        for stage in stages[: self.cut]:
            for module in stage.modules:
                module.requires_grad_(False)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        if self.cut:
            for stage in self.all_stages()[: self.cut]:
                for module in stage.modules:
                    module.eval()
        self._batchnorm = "batch" if mode else ""
        return self

    def train_by(self, batchnorm: str) -> None:
        """Training mode; BatchNorm normalises by each batch, or by its running statistics, which stay (`fixed`)."""
        if self._batchnorm == batchnorm:
            return
        self.train()
        if batchnorm == "fixed":
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        self._batchnorm = batchnorm

    @property
    def trainable(self) -> Mapping[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        if self._trainable is None:
            self._trainable = {name: p for name, p in self.named_parameters() if p.requires_grad}
        return self._trainable

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Parameters and buffers of the frozen stages, by name: they neither change nor travel."""
        names = {id(module): name for name, module in self.named_modules()}
        modules = [module for stage in self.all_stages()[: self.cut] for module in stage.modules]
        return {f"{names[id(m)]}.{name}": tensor for m in modules for name, tensor in m.state_dict().items()}

    @property
    def frozen_digest(self) -> str:
        """Names what the frozen stages compute: it differs when a weight, the cut or the kind of network does."""
        if not self._digest:
            about = f"{self.metadata.name} {self.metadata.image_size} {self.cut} {CHUNK}"
            digest = hashlib.sha256(about.encode())
            for name, tensor in self.frozen.items():
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._digest = digest.hexdigest()
        return self._digest

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
        centre: str | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings (N, d) of 8-bit RGB images (N, H, W, 3), in evaluation mode.

        With `flip` the embedding of the mirrored image is added, as face recognition customarily does; `normalise`
        gives unit vectors; `centre` names one of the model's `centres` (`none` for none, by default that of
        `use_centre`), about which embeddings turn and keep their length. The network is left in the mode it was in.
        """
        self._check_images(images)
        if batch_size < 1:
            raise FedVisageError(f"batch_size is {batch_size}: it must be at least 1")
        embeddings = np.empty((len(images), self.metadata.embedding_size), dtype=np.float32)
        with self._evaluating():
            for start in range(0, len(images), batch_size):
                batch = self.preprocess(images[start : start + batch_size])
                sides = [self.to_cut(batch), self.to_cut(batch.flip(3))] if flip else [self.to_cut(batch)]
                embeddings[start : start + batch_size] = self._embeddings(sides, normalise, centre)
        return embeddings

    def embed_features(
        self, *sides: NDArray[np.float32], normalise: bool = False, centre: str | None = None
    ) -> NDArray[np.float32]:
        """Embeddings (N, d) of what the frozen stages made of images and, if given, of their mirror images."""
        with self._evaluating():
            return self._embeddings([torch.from_numpy(side).to(self.device) for side in sides], normalise, centre)

    def use_centre(self, name: str, of: str = "this model") -> Self:
        """Give embeddings about one of the model's centres from now on, by name; about none for `none`."""
        self.centre = "" if name == NO_CENTRE else name
        if self.centre:
            centre_named(self.centres, self.centre, of)
        return self

    def about_centre(self, features: Tensor, name: str | None = None) -> Tensor:
        """Embeddings (N, d) about the centre of this name; by default that of `use_centre`."""
        chosen = self.centre if name is None else name
        if chosen in ("", NO_CENTRE):
            return features
        return about(features, centre_named(self.centres, chosen, "this model").vector)

    def _embeddings(self, sides: Sequence[Tensor], normalise: bool, centre: str | None) -> NDArray[np.float32]:
        """The sum over the sides, each (N, C, h, w) behind the frozen stages."""
        one = [self.from_cut(side) for side in sides]
        if self.transformation is not None:
            one = [self.transformation(features) for features in one]
        features = self.about_centre(one[0] if len(one) == 1 else one[0] + one[1], centre)
        if normalise:
            features = functional.normalize(features, dim=1)
        embeddings: NDArray[np.float32] = features.float().cpu().numpy()
        return embeddings

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards the mode it was in."""
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.train(was_training)

    def _check_images(self, images: Any) -> None:
        size = self.metadata.image_size
        wanted = f"{self.metadata.name} takes uint8 RGB images of shape (N, {size}, {size}, 3)"
        if not isinstance(images, Tensor | np.ndarray):
            raise FedVisageError(f"{wanted}; got {type(images).__name__}")
        if tuple(images.shape[1:]) != (size, size, 3) or images.dtype not in (torch.uint8, np.dtype(np.uint8)):
            raise FedVisageError(
                f"{wanted}; got {images.dtype} of shape {tuple(images.shape)}: align or resize them to {size} first"
            )


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    reducible = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if reducible else nullcontext()
