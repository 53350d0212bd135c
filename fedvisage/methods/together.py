"""One local step of many parties, computed at once.

Parties that take a single step of SGD from the same model need not be computed one by one: the weighted mean of their
models is one step down the weighted mean of their losses. So their batches go through the network as one, each party's
loss is taken on its own rows, and one backward pass gives the mean; a class embedding's gradient is its party's alone,
up to the weight. All parties of a group then answer with the group's mean model, which has the same weighted sum as
their own models would, and each with its own class embeddings, loss and counts. Who answers, what it sends and the
ledger's rows do not change; the guard sees the group's mean where it would have seen each update.

This holds where nothing but the loss connects the images of a batch and nothing but the step changes the model:
`FedAvg.why_not_together` says what stands against it. A party whose batch cannot be made, or whose loss on it is not
finite, is left out of the step and fails alone; one that is refused later has been counted in its group's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvisage.core.errors import Diverged, FedVisageError
from fedvisage.core.method import Party
from fedvisage.core.parcel import Parcel
from fedvisage.models import Backbone
from fedvisage.training import Batch, Fit, batches, features_for
from fedvisage.training.optimisers import SGD, Group

if TYPE_CHECKING:
    from fedvisage.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Stepped:
    """What a joint step gave one party: its class embeddings (C, d), and its loss."""

    embeddings: Tensor
    fit: Fit


Outcome = Stepped | FedVisageError


def step_together(
    method: FedAvg, parties: Sequence[Party], parcels: Sequence[Parcel], weights: Sequence[float]
) -> list[Outcome]:
    """Load the model, which is the same for all, and take the step; afterwards it holds the group's weighted mean."""
    model: Backbone = parties[0].load(parcels[0])
    model.train_by(method.training.batchnorm)
    drawn = [_first_batch(method, party, model) for party in parties]
    starts = [method.tidy(method.embeddings_at_start(*pair)) for pair in zip(parties, parcels, strict=True)]
    heads = [start.detach().to(model.device, copy=True).requires_grad_() for start in starts]
    good = [place for place, batch in enumerate(drawn) if isinstance(batch, Batch)]
    losses = _losses(method, model, parties, heads, drawn, good)
    total = sum(weights[place] for place in losses)
    rate, decay = parties[0].rate, method.training.weight_decay
    moved = heads if method.embeddings == "trained" else []
    optimiser = SGD([Group(model.trainable, rate, 0.0)], decay)
    optimiser.zero_grad()
    if losses:
        shares = [weights[place] / total * loss for place, loss in losses.items()]
        torch.stack(shares).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    for place in losses if moved else ():
        gradient = heads[place].grad
        if gradient is not None:
            gradient.mul_(total / weights[place])
        SGD([Group({"class_embeddings": heads[place]}, rate * method.training.heads_rate, 0.0)], decay).step()
    found: list[Outcome] = []
    for place, batch in enumerate(drawn):
        if not isinstance(batch, Batch):
            found.append(batch)
        elif place not in losses:
            found.append(Diverged("training diverged: its loss is not finite; lower training.learning_rate"))
        else:
            fit = Fit(float(losses[place].detach()), len(batch.labels), 1)
            found.append(Stepped(method.tidy(heads[place].detach()), fit))
    return found


def _first_batch(method: FedAvg, party: Party, model: Backbone) -> Batch | FedVisageError:
    images = method.training_images(party)
    try:
        streams = party.streams.child("train")
        return next(iter(batches(images, method.training, streams, model.device, features_for(model, images))))
    except FedVisageError as error:
        return error


def _losses(
    method: FedAvg,
    model: Backbone,
    parties: Sequence[Party],
    heads: Sequence[Tensor],
    drawn: Sequence[Batch | FedVisageError],
    good: Sequence[int],
) -> dict[int, Tensor]:
    """By place: the finite losses, each on its party's own rows of one forward pass."""
    own = [batch for batch in drawn if isinstance(batch, Batch)]
    if not own:
        return {}
    features = model.features_of(torch.cat([batch.images for batch in own])).float()
    rows = torch.split(features, [len(batch.labels) for batch in own])
    losses = {}
    for place, batch, part in zip(good, own, rows, strict=True):
        loss = method.objective(parties[place], heads[place], 0)(part, batch)
        if bool(loss.isfinite()):
            losses[place] = loss
    return losses
