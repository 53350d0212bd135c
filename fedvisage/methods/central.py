"""Everything in one place: all parties' images pooled, the upper bound that federated learning may not have.

`of` pools only those of the source, or of the targets, with their true labels: the source-only and the supervised
target-only model of papers on domain adaptation. With `of = "source"` nobody's images but the source's are needed.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedvisage.core.method import METHODS
from fedvisage.core.phase import LEARNERS
from fedvisage.methods.fedavg import FedAvg


@METHODS.register("central")
class Central(FedAvg):
    """One party that holds all images; a round is its local work."""

    pools: ClassVar[bool] = True
    summary: ClassVar[str] = "pools all parties' images: an upper bound that breaks the constraint"

    roles: ClassVar[frozenset[str]] = LEARNERS

    classifier: Literal["private"] = "private"
    of: Literal["source", "target"] | None = None
    """Only these parties' images; without it everybody's."""

    @property
    def pooled_roles(self) -> frozenset[str]:
        """Whose images, by role."""
        return LEARNERS if self.of is None else frozenset({self.of})

    @property
    def keeps_class_embeddings(self) -> bool:
        """There is only one party: nothing can be set apart from others."""
        return False
