"""DANN: features that a domain classifier cannot tell apart (Ganin et al., JMLR 2016), on pooled images.

A comparator of papers on domain adaptation, and no federated method (see `dan`). The classifier learns to tell source
from target features, and its gradient reaches the features reversed, the more strongly the further training has come.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedvisage.core.method import METHODS, Party
from fedvisage.core.parcel import Tensors
from fedvisage.losses import domain_adversarial, domain_classifier, reversal_strength
from fedvisage.methods.dan import Aligned
from fedvisage.models import Backbone
from fedvisage.training import Trainer

CLASSIFIER = "domain_classifier"


@METHODS.register("dann")
class DANN(Aligned):
    """Alignment by gradient reversal."""

    summary: ClassVar[str] = "pools all images (targets' unlabelled), fools a domain classifier: breaks the constraint"

    hidden: Annotated[int, Field(ge=1)] = 64
    """Units of the classifier's hidden layer."""
    classifier_rate: Annotated[float, Field(gt=0)] = 10.0
    """The classifier's learning rate, in those of the network."""

    def beside(self, party: Party) -> Tensors:
        """The domain classifier."""
        if CLASSIFIER not in party.state:
            size = party.weights.model.metadata.embedding_size
            party.state[CLASSIFIER] = domain_classifier(size, self.hidden, party.streams.torch("domain classifier"))
        kept: Tensors = party.state[CLASSIFIER]
        return kept

    def keep(self, party: Party, values: Tensors) -> None:
        """The domain classifier as it is now."""
        party.state[CLASSIFIER] = {name: values[name] for name in party.state[CLASSIFIER]}

    def trainer(self, party: Party, model: Backbone, others: Tensors) -> Trainer:
        """The classifier learns at a rate of its own."""
        faster = dict.fromkeys(party.state[CLASSIFIER], self.classifier_rate)
        return Trainer(model, others, self.training, party.rate, factors=faster)

    def align(self, party: Party, features: Tensor, is_target: Tensor, others: Tensors) -> Tensor:
        """The classifier's cross-entropy, reversed for the features."""
        strength = reversal_strength((party.round - 0.5) / self.rounds)
        return domain_adversarial(features, is_target, others, strength)
