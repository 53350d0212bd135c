"""FedProx: FedAvg whose local work is pulled back to the global model (Li et al., MLSys 2020).

A party minimises its loss plus (mu / 2) * ||theta - theta_global||^2, the squared norm over the backbone's parameters;
class embeddings and BatchNorm statistics are left out. The gradient of that term is mu * (theta - theta_global).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.core.method import METHODS, Party
from fedvisage.core.parcel import BACKBONE, Parcel
from fedvisage.methods.fedavg import FedAvg
from fedvisage.training import Correct


@METHODS.register("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    summary: ClassVar[str] = "FedAvg with a proximal term that holds local work near the global model"

    mu: Annotated[float, Field(ge=0)] = 0.01

    def correction(self, party: Party, parcel: Parcel) -> Correct:
        """Add mu * (theta - theta_global) to the backbone's gradients."""
        return proximal(parcel[BACKBONE], self.mu)


def proximal(anchor: Mapping[str, Tensor], mu: float) -> Correct:
    """A correction that adds the gradient of (mu / 2) * ||theta - anchor||^2."""

    fixed: list[Tensor] = []

    def correct(parameters: Mapping[str, Tensor]) -> None:
        pulled = [parameters[name] for name in anchor]
        if not fixed:
            fixed.extend(anchor[name].to(p.device) for name, p in zip(anchor, pulled, strict=True))
        gradients = [p.grad for p in pulled if p.grad is not None]
        torch._foreach_add_(gradients, torch._foreach_sub(pulled, fixed), alpha=mu)

    return correct
