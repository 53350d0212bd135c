"""Everything in one place: all parties' images pooled, the upper bound that federated learning may not have.

`of` pools only those of the source, or of the targets, with their true labels: the source-only and the supervised
target-only model of papers on domain adaptation. With `of = "source"` nobody's images but the source's are needed.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, Images, Party
from fedvisage.core.parcel import Parcel
from fedvisage.core.phase import LEARNERS
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg, mean_embeddings
from fedvisage.training.views import Mixture, Part


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

    @property
    def pooled_roles(self) -> frozenset[str]:
        """Whose images, by role."""
        return LEARNERS if self.of is None else frozenset({self.of})

    @property
    def keeps_class_embeddings(self) -> bool:
        """There is only one party: nothing can be set apart from others."""
        return False

    def join(self, party: Party, parcel: Parcel) -> Parcel:
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

    def trained_images(self, own: float, public: float) -> float:
        """With the public ones where asked for."""
        return own + public if self.public == "all" else own

    def _public_embeddings(self, party: Party) -> Tensor:
        public = _public(party)
        if self.starts_at_mean:
            return mean_embeddings(party.weights.model, public)
        size = party.weights.model.metadata.embedding_size
        return self.random_embeddings(public.classes, size, party.streams.child("public"))


def _public(party: Party) -> Images:
    public = party.faces.public
    if public is None or not len(public) or public.labels is None:
        raise FedVisageError("central with public = 'all' needs public people: set partition.public")
    return public
