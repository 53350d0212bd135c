"""A network's tensors by group, live and without copies, under a BatchNorm policy.

`average` (default): running statistics travel and are averaged like the backbone. `local` (FedBN): BatchNorm's affine
parameters and statistics stay at the party. `recalibrate`: statistics are re-estimated at the parties after averaging.
`num_batches_tracked` never travels, and only trainable parameters do; nothing of a network's frozen stages does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import copy, layout, pack_flat, zeros_flat
from fedvisage.core.parcel import Tensors

BatchNormPolicy = Literal["average", "local", "recalibrate"]
COUNTER = "num_batches_tracked"
_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks") and "state_dict" not in name]
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Weights:
    """Live tensors of one model: `backbone` and `buffers` travel, `local` stays with each party.

    The model's tensors are moved side by side in memory, group by group, so that a group is copied as one vector.
    """

    def __init__(self, model: nn.Module, policy: BatchNormPolicy = "average") -> None:
        self.model: Any = model
        self.policy = policy
        parameters = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
        frozen = getattr(model, "frozen", {})
        buffers = {n: b for n, b in model.named_buffers() if not n.endswith(COUNTER) and n not in frozen}
        norms = {name for name, module in model.named_modules() if isinstance(module, _BATCHNORM)}
        own = {name for name in parameters if name.rpartition(".")[0] in norms} if policy == "local" else set()
        self.backbone: Tensors = {name: p for name, p in parameters.items() if name not in own}
        self.buffers: Tensors = {} if policy == "local" else buffers
        self.local: Tensors = (
            {name: p for name, p in parameters.items() if name in own} | buffers if policy == "local" else {}
        )
        self._lay_out(pack_flat)
        self._resting = False
        self._fixed: tuple[Tensors, Tensors] | None = None
        self._twins: dict[str, tuple[nn.Module, Tensors]] = {}

    def rest(self) -> None:
        """Let go of the values and their memory; nobody looks at the model until all of them are loaded again."""
        self._lay_out(_without_memory)
        self._resting = True

    def as_new(self) -> None:
        """Undo what a party may have left on the model that loading does not overwrite: hooks, and fixed tensors."""
        if self._fixed is None:
            named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
            fixed = {name: tensor.data for name, tensor in named.items() if name not in self._everything}
            self._fixed = fixed, {name: tensor.clone() for name, tensor in fixed.items()}
            self._hooks = [getattr(module, name) for module in self.model.modules() for name in _HOOKS]
            self._parameters = list(self.model.parameters())
        copy(*self._fixed)
        hooks = self._hooks + [getattr(own, name, None) for own in self._parameters for name in _TENSOR_HOOKS]
        for left in filter(None, hooks):
            left.clear()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the model's own tensors, by name; never rebuilds them."""
        if self._resting:
            self._lay_out(zeros_flat)
            self._resting = False
        for group in (self.backbone, self.buffers, self.local):
            if layout(tensors) == layout(group):
                copy(group, tensors)
                return
        _fill(self._everything, tensors)

    def twin(self, name: str, tensors: Mapping[str, Tensor]) -> Any:
        """A second network that is never trained, with these values and otherwise the model's present ones.

        Twins are made once per name and reused; asking for one again overwrites its values.
        """
        if name not in self._twins:
            network = deepcopy(self.model).requires_grad_(False).eval()
            own = dict(network.named_parameters()) | dict(network.named_buffers())
            self._twins[name] = network, {key: own[key].data for key in self._everything}
        network, own = self._twins[name]
        copy(own, self._everything)
        _fill(own, tensors)
        return network

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self._everything.values())).device

    def all(self) -> Tensors:
        """Everything together: a model of its own."""
        return dict(self._everything)

    def _lay_out(self, made_of: Callable[[Tensors], Tensors]) -> None:
        """Give the model the tensors that are made of its own, group by group."""
        self.backbone, self.buffers, self.local = map(made_of, (self.backbone, self.buffers, self.local))
        self._everything = self.backbone | self.buffers | self.local
        for name, tensor in self._everything.items():
            module, _, own = name.rpartition(".")
            owner = self.model.get_submodule(module)
            if own in owner._parameters:
                owner._parameters[own].data = tensor
            else:
                setattr(owner, own, tensor)


def _without_memory(tensors: Tensors) -> Tensors:
    """Tensors of the same shapes that have one number for all their places."""
    return {name: tensor.new_zeros(()).expand(tensor.shape) for name, tensor in tensors.items()}


def _fill(own: Tensors, values: Mapping[str, Tensor]) -> None:
    """Copy values into tensors of the same names and shapes."""
    for name, value in values.items():
        if name not in own:
            raise FedVisageError(f"the model has no tensor '{name}'")
        if own[name].shape != value.shape:
            shapes = f"{tuple(value.shape)}, the model's is {tuple(own[name].shape)}"
            raise FedVisageError(f"tensor '{name}' has shape {shapes}")
    copy(own, values)


def snapshot(tensors: Mapping[str, Tensor]) -> Tensors:
    """A copy on the CPU that later training does not touch."""
    return pack_flat(tensors, "cpu")
