"""The one local training loop.

A method says what the loss of a batch is and, if it wants, how gradients are corrected before the step; batches,
augmentation, the optimiser and its persistent state are the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvisage.config import Training
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Images
from fedvisage.core.randomness import Streams
from fedvisage.losses import margin_loss
from fedvisage.models import Backbone
from fedvisage.training.batches import Batch, batches
from fedvisage.training.devices import autocast
from fedvisage.training.features import features_for

Loss = Callable[[Tensor, Batch], Tensor]
Correct = Callable[[Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Fit:
    """What a stretch of training did: mean loss over its images, images seen, steps taken."""

    loss: float
    images: int
    steps: int


def learning_rate(work: Training, round: int, rounds: int) -> float:
    """The rate of a round (1 is the first)."""
    if work.schedule == "steps":
        return work.learning_rate * work.decay ** sum(round > milestone for milestone in work.milestones)
    if work.schedule == "cosine":
        return work.learning_rate * 0.5 * (1 + math.cos(math.pi * max(0, round - 1) / max(1, rounds)))
    return work.learning_rate


def loss_of(work: Training) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The margin loss that `work` names, with its scale and margin where they are given."""
    options = {name: value for name in ("scale", "margin") if (value := getattr(work, name)) is not None}
    return margin_loss(work.loss, **options)


def _own(tensor: Tensor, device: torch.device, trainable: bool) -> Tensor:
    """A copy in memory of PyTorch's own: the last bits of a matrix product depend on how its inputs lie."""
    return tensor.detach().to(device, copy=True).requires_grad_(trainable)


def keep_statistics(model: Backbone) -> None:
    """Let BatchNorm use its running statistics, and leave them as they are, while the rest trains."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


class Trainer:
    """SGD on a backbone and, beside it, other parameters such as class embeddings.

    `fixed` names others that are used but not trained. `backbone_momentum` is for methods that bring the backbone's
    momentum themselves; by default it is that of the recipe. `factors` multiply the rate of others, by name.
    """

    def __init__(
        self,
        model: Backbone,
        others: Mapping[str, Tensor],
        work: Training,
        rate: float,
        *,
        fixed: Collection[str] = (),
        backbone_momentum: float | None = None,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self.model, self.work = model, work
        self.others = {name: _own(tensor, model.device, name not in fixed) for name, tensor in others.items()}
        backbone = {name: p for name, p in model.named_parameters() if p.requires_grad}
        beside = {name: tensor for name, tensor in self.others.items() if name not in fixed}
        self.parameters: dict[str, Tensor] = {**backbone, **beside}
        momentum = work.momentum if backbone_momentum is None else backbone_momentum
        groups: list[dict[str, Any]] = [{"params": list(backbone.values()), "momentum": momentum}]
        factors = factors or {}
        plain = [tensor for name, tensor in beside.items() if name not in factors]
        if plain:
            groups.append({"params": plain})
        groups += [{"params": [beside[name]], "lr": factor * rate} for name, factor in factors.items()]
        self._optimiser = torch.optim.SGD(groups, lr=rate, momentum=work.momentum, weight_decay=work.weight_decay)

    def fit(self, images: Images, loss: Loss, streams: Streams, correct: Correct | None = None) -> Fit:
        """Train on `images`; `loss` maps a batch's features (n, d) to a scalar, `correct` may change the gradients."""
        model, seen, steps = self.model, 0, 0
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        model.train()
        if self.work.batchnorm == "fixed":
            keep_statistics(model)
        for batch in batches(images, self.work, streams, model.device, features_for(model, images)):
            with autocast(self.work.precision, model.device):
                features = model.features_of(batch.images)
            value = loss(features.float(), batch)
            self._optimiser.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            if correct is not None:
                with torch.no_grad():
                    correct(self.parameters)
            self._optimiser.step()
            total += value.detach().double() * len(batch.labels)
            seen += len(batch.labels)
            steps += 1
        mean = float(total) / seen
        if not math.isfinite(mean):
            raise FedVisageError(f"training diverged: the loss is {mean}; lower training.learning_rate")
        return Fit(mean, seen, steps)

    def values(self) -> dict[str, Tensor]:
        """The other parameters after training."""
        return {name: tensor.detach() for name, tensor in self.others.items()}

    def state(self) -> State:
        """The momentum buffers by parameter name."""
        buffers = {name: self._optimiser.state[p].get("momentum_buffer") for name, p in self.parameters.items()}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}

    def restore(self, state: State) -> None:
        """Continue with buffers from an earlier stretch."""
        for name, buffer in state.items():
            if name in self.parameters:
                self._optimiser.state[self.parameters[name]]["momentum_buffer"] = buffer.to(self.model.device).clone()
