"""FedAvgM: FedAvg with momentum on the server (Hsu et al., arXiv 1909.06335).

The change that averaging would make is a gradient to the server: v <- beta * v + (Theta - mean) and
Theta <- Theta - eta_s * v. Parties know nothing of it. BatchNorm statistics are averaged as they are.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedvisage.core.codec import State
from fedvisage.core.flat import weighted
from fedvisage.core.method import METHODS, Context, Result
from fedvisage.core.parcel import BACKBONE
from fedvisage.methods.fedavg import FedAvg

VELOCITY = "velocity"


@METHODS.register("fedavgm")
class FedAvgM(FedAvg):
    """Server momentum."""

    summary: ClassVar[str] = "FedAvg whose server steps with momentum"

    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_rate: Annotated[float, Field(gt=0)] = 1.0

    def start(self, context: Context) -> State:
        """v = 0."""
        server = super().start(context)
        return server | {VELOCITY: weighted((0.0, server[BACKBONE]))}

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """One step of momentum SGD with the averaged change as its gradient."""
        averaged = super().absorb_train(server, result, context)
        before, mean = server[BACKBONE], averaged[BACKBONE]
        velocity = weighted((self.server_momentum, server[VELOCITY]), (1.0, before), (-1.0, mean))
        return averaged | {BACKBONE: weighted((1.0, before), (-self.server_rate, velocity)), VELOCITY: velocity}
