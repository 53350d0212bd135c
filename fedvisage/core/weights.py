"""A network's tensors by group, live and without copies, under a BatchNorm policy.

`average` (default): running statistics travel and are averaged like the backbone. `local` (FedBN): BatchNorm's affine
parameters and statistics stay at the party. `recalibrate`: statistics are re-estimated at the parties after averaging.
`num_batches_tracked` never travels, and only trainable parameters do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Tensors

BatchNormPolicy = Literal["average", "local", "recalibrate"]
_BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Weights:
    """Live tensors of one model: `backbone` and `buffers` travel, `local` stays with each party."""

    def __init__(self, model: nn.Module, policy: BatchNormPolicy = "average") -> None:
        self.model: Any = model
        self.policy = policy
        parameters = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
        buffers = {name: b for name, b in model.named_buffers() if not name.endswith("num_batches_tracked")}
        norms = tuple(name for name, module in model.named_modules() if isinstance(module, _BATCHNORM))
        own = {name for name in parameters if name.rpartition(".")[0] in norms} if policy == "local" else set()
        self.backbone: Tensors = {name: tensor for name, tensor in parameters.items() if name not in own}
        self.buffers: Tensors = {} if policy == "local" else buffers
        self.local: Tensors = {name: parameters[name] for name in parameters if name in own}
        if policy == "local":
            self.local |= buffers
        self.has_batchnorm = bool(norms)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the model's own tensors, by name; never rebuilds them."""
        everything = self.backbone | self.buffers | self.local
        unknown = [name for name in tensors if name not in everything]
        if unknown:
            raise FedVisageError(f"the model has no tensor '{unknown[0]}'")
        wrong = [name for name, value in tensors.items() if everything[name].shape != value.shape]
        if wrong:
            shapes = f"{tuple(tensors[wrong[0]].shape)}, the model's is {tuple(everything[wrong[0]].shape)}"
            raise FedVisageError(f"tensor '{wrong[0]}' has shape {shapes}")
        with torch.no_grad():
            torch._foreach_copy_([everything[name] for name in tensors], list(tensors.values()))


def snapshot(tensors: Mapping[str, Tensor]) -> Tensors:
    """A copy on the CPU that later training does not touch."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
