"""SlowMo: slow momentum around local SGD (Wang et al., ICLR 2020).

As server momentum, but in gradient units, so that a falling learning rate eta shrinks the whole step:
u <- beta * u + (Theta - mean) / eta, Theta <- Theta - alpha * eta * u. Whether the parties' own momentum is reset or
maintained between rounds is `training.optimiser_state`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedvisage.core.codec import State
from fedvisage.core.flat import weighted
from fedvisage.core.method import METHODS, Context, Result
from fedvisage.core.parcel import BACKBONE
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.pfm import momentum_between

SLOW = "slow_momentum"


@METHODS.register("slowmo")
class SlowMo(FedAvg):
    """Slow momentum."""

    summary: ClassVar[str] = "FedAvg with a slow momentum on the server, in units of the gradient"

    slow_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.7
    slow_rate: Annotated[float, Field(gt=0)] = 1.0
    """Alpha in the paper."""

    def start(self, context: Context) -> State:
        """u = 0."""
        server = super().start(context)
        return server | {SLOW: weighted((0.0, server[BACKBONE]))}

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """The slow step."""
        averaged = super().absorb_train(server, result, context)
        before, rate = server[BACKBONE], context.rate
        change = momentum_between(before, averaged[BACKBONE], rate)
        slow = weighted((self.slow_momentum, server[SLOW]), (1.0, change))
        return averaged | {BACKBONE: weighted((1.0, before), (-self.slow_rate * rate, slow)), SLOW: slow}
