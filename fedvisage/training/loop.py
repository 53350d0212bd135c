"""The one local training loop.

A method says what the loss of a batch is and, if it wants, how gradients are corrected before the step; batches,
augmentation, the optimiser and its persistent state are the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.codec import State
from fedvisage.core.errors import Diverged, FedVisageError
from fedvisage.core.method import Images
from fedvisage.core.randomness import Streams
from fedvisage.losses import Centred, margin_loss
from fedvisage.models import Backbone
from fedvisage.training.batches import Batch, batches
from fedvisage.training.devices import autocast
from fedvisage.training.features import features_for
from fedvisage.training.optimisers import Group, make_optimiser, owner

Loss = Callable[[Tensor, Batch], Tensor]
Correct = Callable[[Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Fit:
    """What a stretch of training did: mean loss over its images, images seen, steps taken."""

    loss: float
    images: int
    steps: int


def loss_of(work: Training) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The margin loss that `work` names, with its scale and margin where they are given, and its other options."""
    options = {name: value for name in ("scale", "margin") if (value := getattr(work, name)) is not None}
    if twice := sorted({"scale", "margin"} & work.loss_options.keys()):
        raise FedVisageError(f"training.loss_options.{twice[0]} belongs in [training]: {twice[0]} = ...")
    if "reduction" in work.loss_options:
        raise FedVisageError("training.loss_options.reduction is not possible: training takes the mean over a batch")
    loss = margin_loss(work.loss, **options, **work.loss_options)
    return Centred(loss) if work.centre == "running" else loss


def _own(tensor: Tensor, device: torch.device, trainable: bool) -> Tensor:
    """A copy in memory of PyTorch's own: the last bits of a matrix product depend on how its inputs lie."""
    return tensor.detach().to(device, copy=True).requires_grad_(trainable)


class Trainer:
    """Steps on a backbone and, beside it, other parameters such as class embeddings.

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
        backbone, factors = model.trainable, factors or {}
        beside = {name: tensor for name, tensor in self.others.items() if name not in fixed}
        self.parameters: dict[str, Tensor] = {**backbone, **beside}
        groups = [Group(backbone, rate, work.momentum if backbone_momentum is None else backbone_momentum)]
        rate *= work.heads_rate
        groups.append(Group({name: beside[name] for name in beside if name not in factors}, rate, work.momentum))
        groups += [Group({name: beside[name]}, factor * rate, work.momentum) for name, factor in factors.items()]
        self._optimiser = make_optimiser(work, groups)

    def fit(
        self,
        images: Images,
        loss: Loss,
        streams: Streams,
        correct: Correct | None = None,
        onlookers: Sequence[Backbone] = (),
    ) -> Fit:
        """Train on `images`; `loss` maps a batch's features (n, d) to a scalar, `correct` may change the gradients.

        `onlookers` are networks that do not train; the loss finds their features in `batch.looked_on`. They come first,
        while no activations are held for the backward pass, which spares a tenth of the time.
        """
        model, seen, steps = self.model, 0, 0
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        model.train_by(self.work.batchnorm)
        for batch in batches(images, self.work, streams, model.device, features_for(model, images)):
            if onlookers:
                with torch.no_grad():
                    looked_on = tuple(network.features_of(batch.images) for network in onlookers)
                batch = batch._replace(looked_on=looked_on)
            with autocast(self.work.precision, model.device):
                features = model.features_of(batch.images)
            value = loss(features.float(), batch)
            self._optimiser.zero_grad()
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
            raise Diverged(f"training diverged: the loss is {mean}; lower training.learning_rate")
        return Fit(mean, seen, steps)

    def values(self) -> dict[str, Tensor]:
        """The other parameters after training."""
        return {name: tensor.detach() for name, tensor in self.others.items()}

    def state(self) -> State:
        """What the optimiser keeps, by parameter name."""
        return self._optimiser.state()

    def restore(self, state: State) -> None:
        """Go on with what an optimiser kept in an earlier stretch."""
        own = {name: buffer for name, buffer in state.items() if owner(name) in self.parameters}
        places = {name: self.model.device if buffer.ndim else "cpu" for name, buffer in own.items()}
        self._optimiser.restore({name: buffer.to(places[name], copy=True) for name, buffer in own.items()})
