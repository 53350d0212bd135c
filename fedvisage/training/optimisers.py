"""Optimisers by name: SGD, AdamW, and any other that is registered.

An optimiser is a registered function (or class) of groups of parameters and a weight decay, with its options as
keyword-only parameters. `TorchOptimiser` makes one of an optimiser of PyTorch.

SGD is written out, with the bits of `torch.optim.SGD`: a party with five images takes one step and is done, and setting
up PyTorch's optimiser costs as much as a third of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.registry import Registry


class Group(NamedTuple):
    """Parameters by name with a rate and a momentum of their own."""

    parameters: Mapping[str, Tensor]
    rate: float
    momentum: float


class Optimiser(Protocol):
    """Takes steps down the gradients of some groups of parameters."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> None:
        """One step for every parameter that has a gradient."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What it keeps between steps, under the name of the parameter or that with `:` and a word behind it."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on with what another one kept; the tensors are its own from then on."""
        ...


OPTIMISERS: Registry[Callable[..., Optimiser]] = Registry("optimiser")


def make_optimiser(work: Training, groups: Sequence[Group]) -> Optimiser:
    """The optimiser that `work` names, with its weight decay and options."""
    make, options = OPTIMISERS.with_options(work.optimiser, work.optimiser_options), work.optimiser_options
    try:
        made: Optimiser = make(groups, work.weight_decay)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
        raise FedVisageError(f"optimiser '{work.optimiser}' cannot use {given or 'this'}: {error}") from None
    return made


def owner(name: str) -> str:
    """The parameter to which a tensor of an optimiser's state belongs."""
    return name.partition(":")[0]


@OPTIMISERS.register("sgd")
class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, groups: Sequence[Group], weight_decay: float) -> None:
        self.groups, self.weight_decay = groups, weight_decay
        self.buffers: dict[str, Tensor] = {}
        """Momentum by parameter, from the first step on."""

    def state(self) -> dict[str, Tensor]:
        """The momentum."""
        return dict(self.buffers)

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on with this momentum."""
        self.buffers = state

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.groups:
            for parameter in group.parameters.values():
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step for every parameter that has a gradient."""
        for group in self.groups:
            self._step(group)

    def _step(self, group: Group) -> None:
        having = {name: value for name, value in group.parameters.items() if value.grad is not None}
        if not having:
            return
        values = list(having.values())
        gradients = [gradient for value in values if (gradient := value.grad) is not None]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self.weight_decay))
        if group.momentum:
            for place, name in enumerate(having):
                known, new = self.buffers.get(name), gradients[place]
                # a first gradient is nobody else's: its memory becomes the buffer
                self.buffers[name] = new if known is None else known.mul_(group.momentum).add_(new)
                gradients[place] = self.buffers[name]
        torch._foreach_add_(values, gradients, alpha=-group.rate)


class TorchOptimiser:
    """An optimiser of PyTorch, with its state by parameter name.

    `make` is such a class; it gets a list of groups, each with `params`, `lr` and what `each` says of the group, and
    `options`.
    """

    def __init__(
        self,
        make: Callable[..., torch.optim.Optimizer],
        groups: Sequence[Group],
        each: Callable[[Group], dict[str, Any]] = lambda group: {},
        **options: Any,
    ) -> None:
        self.parameters = {name: value for group in groups for name, value in group.parameters.items()}
        made = [{"params": [*g.parameters.values()], "lr": g.rate, **each(g)} for g in groups if g.parameters]
        self.inner = make(made, **options)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.inner.zero_grad()

    def step(self) -> None:
        """One step for every parameter that has a gradient."""
        self.inner.step()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that PyTorch keeps."""
        kept = {name: self.inner.state.get(value, {}) for name, value in self.parameters.items()}
        every = ((f"{name}:{key}", part) for name, own in kept.items() for key, part in own.items())
        return {place: part for place, part in every if isinstance(part, Tensor)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put them back."""
        for place, tensor in state.items():
            self.inner.state[self.parameters[owner(place)]][place.rpartition(":")[2]] = tensor


@OPTIMISERS.register("adamw")
def adamw(groups: Sequence[Group], weight_decay: float, *, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimiser:
    """AdamW (Loshchilov & Hutter, ICLR 2019); a group's momentum is its beta1."""
    if not 0 <= beta2 < 1:
        raise ValueError("beta2 goes from 0 to below 1")

    def betas(group: Group) -> dict[str, Any]:
        return {"betas": (group.momentum, beta2)}

    return TorchOptimiser(torch.optim.AdamW, groups, betas, eps=epsilon, weight_decay=weight_decay)
