"""DAN: features of two domains made alike in distribution (Long et al., ICML 2015), on pooled images.

A comparator of papers on domain adaptation, and no federated method: the source's labelled and the targets' unlabelled
images are in one place. A step's loss is the margin loss on the source images of the batch plus `alignment` times the
multi-kernel discrepancy of the batch's source and target features. The targets' true labels are out of reach.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, Images, Party
from fedvisage.core.parcel import Parcel, Tensors
from fedvisage.core.phase import SOURCE, TARGET
from fedvisage.losses import multi_kernel_mmd
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg
from fedvisage.models import Backbone
from fedvisage.training import Batch, Fit, loss_of
from fedvisage.training.views import Mixture, Part


class Aligned(FedAvg):
    """Pooled training in which unlabelled target images take part through an alignment term."""

    pools: ClassVar[bool] = True
    pools_without_labels: ClassVar[frozenset[str]] = frozenset({TARGET})
    roles: ClassVar[frozenset[str]] = frozenset({SOURCE, TARGET})

    classifier: Literal["private"] = "private"
    alignment: Annotated[float, Field(ge=0)] = 1.0
    """What the term that makes the domains alike is multiplied by."""

    @property
    def pooled_roles(self) -> frozenset[str]:
        """Of the source and the targets."""
        return frozenset({SOURCE, TARGET})

    @property
    def keeps_class_embeddings(self) -> bool:
        """There is only one party: nothing can be set apart from others."""
        return False

    def training_images(self, party: Party) -> Images:
        """The labelled images, and the others as one class more, which no class embedding belongs to."""
        own, others = party.faces.train, party.faces.unlabelled
        if others is None or own.labels is None:
            raise FedVisageError("this partition has no target: aligning domains needs images of both")
        everybody = np.full(len(others), own.classes)
        parts = [Part(own, np.arange(len(own)), own.labels), Part(others, np.arange(len(others)), everybody)]
        return Mixture(parts, own.classes + 1)

    def fit(
        self, party: Party, parcel: Parcel, model: Backbone, embeddings: Tensor, offset: int = 0
    ) -> tuple[Tensor, Fit]:
        """Train on batches of both domains."""
        trainer = self.trainer(party, model, {EMBEDDINGS: embeddings, **self.beside(party)})
        if self.keeps_momentum:
            trainer.restore(party.state.get("optimiser", {}))
        criterion, others = loss_of(self.training), trainer.others
        classes = len(embeddings)

        def loss(features: Tensor, batch: Batch) -> Tensor:
            is_target = batch.labels == classes
            value = features.sum() * 0.0
            if not bool(is_target.all()):
                source = ~is_target
                value = value + criterion(features[source], others[EMBEDDINGS], batch.labels[source])
                if bool(is_target.any()):
                    value = value + self.alignment * self.align(party, features, is_target, others)
            return value

        fit = trainer.fit(self.training_images(party), loss, party.streams.child("train"))
        if self.keeps_momentum:
            party.state["optimiser"] = trainer.state()
        values = trainer.values()
        self.keep(party, values)
        return values[EMBEDDINGS], fit

    def beside(self, party: Party) -> Tensors:
        """What is trained besides the backbone and the class embeddings."""
        return {}

    def keep(self, party: Party, values: Tensors) -> None:
        """Keep that for the next round."""

    @abstractmethod
    def align(self, party: Party, features: Tensor, is_target: Tensor, others: Tensors) -> Tensor:
        """How unlike the domains of a batch's features (N, d) are, (N,) telling which are the target's."""


@METHODS.register("dan")
class DAN(Aligned):
    """Alignment by the multi-kernel maximum mean discrepancy."""

    summary: ClassVar[str] = "pools all images (targets' unlabelled), aligns domains by MMD: breaks the constraint"

    def align(self, party: Party, features: Tensor, is_target: Tensor, others: Tensors) -> Tensor:
        """The discrepancy of the batch's two domains."""
        return multi_kernel_mmd(features[~is_target], features[is_target])
