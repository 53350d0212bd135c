"""Everything in one place: all parties' images pooled, the upper bound that federated learning may not have.

`of` pools only those of the source, or of the targets, with their true labels: the source-only and the supervised
target-only model of papers on domain adaptation. With `of = "source"` nobody's images but the source's are needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.method import METHODS, Images, Party
from fedvisage.core.parcel import Parcel
from fedvisage.core.phase import LEARNERS, Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg, mean_embeddings
from fedvisage.training import Batch, Loss
from fedvisage.training.views import Mixture, Part

LOSSES = "losses"


@METHODS.register("central")
class Central(FedAvg):
    """One party that holds all images; a round is its local work."""

    pools: ClassVar[bool] = True
    summary: ClassVar[str] = "pools all parties' images: an upper bound that breaks the constraint"

    roles: ClassVar[frozenset[str]] = LEARNERS

    classifier: Literal["private"] = "private"
    of: Literal["trainer", "source", "target"] | None = None
    """Only these parties' images; without it everybody's."""
    public: Literal["none", "all"] = "none"
    """Whether the public people are pooled with the parties' people, too."""
    losses_of: tuple[str, ...] = ()
    """Sets or domains that were joined, as people's names begin with them, whose training losses are told apart."""

    @property
    def pooled_roles(self) -> frozenset[str]:
        """Whose images, by role."""
        return LEARNERS if self.of is None else frozenset({self.of})

    def phases(self) -> tuple[Phase, ...]:
        """Training reports the loss of each domain that is asked for."""
        *others, train = super().phases()
        return *others, replace(train, may_report=train.may_report + tuple(map(loss_of_domain, self.losses_of)))

    @property
    def keeps_class_embeddings(self) -> bool:
        """There is only one party: nothing can be set apart from others."""
        return False

    def join(self, party: Party, parcel: Parcel) -> Answer:
        """Class embeddings of everybody who is trained on."""
        answer = super().join(party, parcel)
        if self.public == "all":
            party.state[EMBEDDINGS] = torch.cat([party.state[EMBEDDINGS], self._public_embeddings(party)])
        return answer

    def training_images(self, party: Party) -> Images:
        """The pooled images and, where asked for, the public ones."""
        own = party.faces.train
        if self.public == "none":
            return own
        public = _public(party)
        assert own.labels is not None
        assert public.labels is not None
        parts = [
            Part(own, np.arange(len(own)), own.labels),
            Part(public, np.arange(len(public)), own.classes + public.labels),
        ]
        return Mixture(parts, own.classes + public.classes)

    def objective(self, party: Party, embeddings: Tensor, offset: int) -> Loss:
        """The loss of a batch; what it is on the images of each domain is added up beside."""
        loss = super().objective(party, embeddings, offset)
        if not self.losses_of:
            return loss
        public = _public(party).names if self.public == "all" else ()
        domains = [name.rpartition("/")[0] for name in (*party.faces.train.names, *public)]
        strange = sorted(set(self.losses_of) - set(domains))
        if strange:
            known = nearest(strange[0], {domain for domain in domains if domain})
            raise FedVisageError(f"central, losses_of: nobody of domain '{strange[0]}' is trained on: {known}")
        members = {domain: torch.tensor([own == domain for own in domains]) for domain in self.losses_of}
        totals = party.state[LOSSES] = {domain: [0.0, 0] for domain in self.losses_of}

        def told_apart(features: Tensor, batch: Batch) -> Tensor:
            for domain, those in members.items():
                own = those.to(batch.labels.device)[batch.labels]
                count = int(own.sum())
                if count:
                    with torch.no_grad():
                        value = float(loss(features[own], batch._replace(labels=batch.labels[own])))
                    totals[domain] = [totals[domain][0] + count * value, totals[domain][1] + count]
            return loss(features, batch)

        return told_apart

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """Local work, with the domains' losses among what is reported."""
        answer = super().train(party, parcel)
        losses = party.state.pop(LOSSES, {}).items()
        return answer.more(**{loss_of_domain(domain): total / count for domain, (total, count) in losses if count})

    def _public_embeddings(self, party: Party) -> Tensor:
        public = _public(party)
        if self.starts_at_mean:
            return mean_embeddings(party.weights.model, public)
        size = party.weights.model.metadata.embedding_size
        return self.random_embeddings(public.classes, size, party.streams.child("public"))


def loss_of_domain(domain: str) -> str:
    """The name under which the loss on a domain's images is reported."""
    return f"loss of {domain}"


def _public(party: Party) -> Images:
    public = party.faces.public
    if public is None or not len(public) or public.labels is None:
        raise FedVisageError("central with public = 'all' needs public people: set partition.public")
    return public
