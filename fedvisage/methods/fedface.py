"""FedFace: parties with one person each (Aggarwal, Zhou & Jain, IJCB 2021).

A phone holds photos of its owner only. Without negatives a party can do no more than draw its features f to its class
embedding w, both at unit length: (1/n) Σ max(0, m - w·f)², with m = 0.9 (eq. 7, `losses.positive_hinge`). Alone
that collapses: every face ends up in one place. So the server sees all class embeddings and spreads them out (eq. 9,
`separation.Spreadout`), and w starts at the mean feature of the party's photos under the server's pre-trained model
instead of at random (eq. 6). Algorithm 1 is `FedAvg.train` with these three pieces.

Ablations are switches: regulariser `none` is "FedAvg" of Table 1 and "w/o spreadout" of Table 2, `embeddings_start =
"random"` is "w/o mean feature", and with `embeddings = "fixed"` besides it is "random class embeddings". A party with
several people (FedFR's Fig. 4) trains on the recipe's margin loss over them; with one person such a loss and its
gradient are exactly zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedvisage.core.method import METHODS, Party
from fedvisage.core.parcel import PRIVATE_EMBEDDINGS
from fedvisage.core.phase import Phase
from fedvisage.losses import positive_hinge, unit
from fedvisage.methods.fedavg import FedPE
from fedvisage.training import Batch, Loss

UNIT = 1.01
"""Largest length of a class embedding that was brought to unit length."""


@METHODS.register("fedface")
class FedFace(FedPE):
    """One person per party: positive-only loss, mean start, spreadout at the server."""

    summary: ClassVar[str] = (
        "one person per party, no negatives; the server sees all class embeddings, spreads them out"
    )
    default_regulariser: ClassVar[str] = "spreadout"

    embeddings_start: Literal["random", "mean"] = "mean"
    margin: Annotated[float, Field(ge=-1, le=2)] = 0.9
    """The cosine that features are drawn to."""
    loss: Literal["by-people", "positive", "margin"] = "by-people"
    """The positive loss where a party has one person and the recipe's margin loss where it has more; or always one."""

    def phases(self) -> tuple[Phase, ...]:
        """As FedPE; class embeddings come up at unit length."""
        return tuple(replace(phase, largest={PRIVATE_EMBEDDINGS: UNIT}) for phase in super().phases())

    def tidy(self, embeddings: Tensor) -> Tensor:
        """Class embeddings stay at unit length."""
        return unit(embeddings)

    def objective(self, party: Party, embeddings: Tensor, offset: int) -> Loss:
        """Eq. 7, or the margin loss over several people."""
        if self.loss == "margin" or (self.loss == "by-people" and len(embeddings) > 1):
            return super().objective(party, embeddings, offset)

        def loss(features: Tensor, batch: Batch) -> Tensor:
            return positive_hinge(features, embeddings[batch.labels], self.margin)

        return loss
