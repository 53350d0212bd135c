"""MimeLite: the server's momentum applied at every local step (Karimireddy et al., arXiv 2008.03606).

A party steps with theta <- theta - eta * (g + beta * m), m fixed during the round; the server then updates m with the
full gradient of each party at the global model, m <- beta * m + sum_i w_i * grad f_i(Theta), for which a party passes
over its images a second time. Momentum is in PyTorch's form, without the paper's factor (1 - beta): with one party that
takes one step on all its images this is SGD with momentum. PFM does without the second pass.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedvisage.core.assembly import with_groups
from fedvisage.core.codec import State
from fedvisage.core.flat import weighted
from fedvisage.core.method import METHODS, Context, Party
from fedvisage.core.parcel import BACKBONE, OPTIMISER, Parcel, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg
from fedvisage.models import Backbone
from fedvisage.training import Correct, add_constant, autocast, batches, features_for


@METHODS.register("mimelite")
class MimeLite(FedAvg):
    """Global momentum at the parties, from full gradients at the global model."""

    summary: ClassVar[str] = "global momentum at every local step, from a second pass over each party's images"
    needs_mean: ClassVar[bool] = True
    backbone_momentum: ClassVar[float | None] = 0.0

    classifier: Literal["private"] = "private"

    def phases(self) -> tuple[Phase, ...]:
        """As FedAvg; the momentum goes down, and what it would be by one party's gradient comes up."""
        join, train = super().phases()
        return join, with_groups(train, down={OPTIMISER: "all"}, up={OPTIMISER: "weighted_sum"})

    def start(self, context: Context) -> State:
        """m = 0."""
        server = super().start(context)
        return server | {OPTIMISER: weighted((0.0, server[BACKBONE]))}

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """The full gradient at the global model, then local work from the same model."""
        gradient = self.full_gradient(party, parcel, party.load(parcel), party.state[EMBEDDINGS])
        momentum = weighted((self.training.momentum, parcel[OPTIMISER]), (1.0, gradient))
        return super().train(party, parcel).more({OPTIMISER: momentum})

    def correction(self, party: Party, parcel: Parcel) -> Correct:
        """beta * m on top of every gradient."""
        return add_constant(parcel[OPTIMISER], self.training.momentum)

    def full_gradient(self, party: Party, parcel: Parcel, model: Backbone, embeddings: Tensor) -> Tensors:
        """Gradient of the mean loss over all the party's images, without augmentation, weight decay included."""
        images, work = self.training_images(party), self.training
        once = work.model_copy(update={"epochs": 1, "steps": None, "flip": False, "crop": 0})
        loss = self.objective(party, embeddings.to(model.device), 0)
        own = dict(model.named_parameters())
        parameters = [own[name] for name in parcel[BACKBONE]]
        total = [work.weight_decay * p.detach() for p in parameters]
        model.train()
        streams, ready = party.streams.child("full gradient"), features_for(model, images)
        for batch in batches(images, once, streams, model.device, ready):
            with autocast(work.precision, model.device):
                features = model.features_of(batch.images)
            share = len(batch.labels) / len(images)
            gradients = torch.autograd.grad(share * loss(features.float(), batch), parameters)
            torch._foreach_add_(total, list(gradients))
        return {name: value.cpu() for name, value in zip(parcel[BACKBONE], total, strict=True)}
