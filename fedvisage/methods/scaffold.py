"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020), with option II of its Algorithm 1.

A party steps with y <- y - eta * (g - c_i + c), where c estimates everybody's gradient and c_i its own. After K steps
c_i <- c_i - c + u_i with u_i = (x - y) / (K * eta), and what comes up is c + (the change of c_i), which is u_i. The
server takes x <- x + eta_s * (mean - x) and c <- c + |S| / N * (mean of u_i - c) for |S| of N parties.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedvisage.core.assembly import with_groups
from fedvisage.core.codec import State
from fedvisage.core.flat import weighted
from fedvisage.core.method import METHODS, Context, Party, Result
from fedvisage.core.parcel import BACKBONE, OPTIMISER, Parcel
from fedvisage.core.phase import LEARNERS, Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.pfm import momentum_between
from fedvisage.training import Correct, add_constant, count_steps

CONTROL = "control"


@METHODS.register("scaffold")
class Scaffold(FedAvg):
    """Control variates; the backbone has no momentum."""

    summary: ClassVar[str] = "FedAvg with control variates that correct each party's drift"
    default_weighting: ClassVar[str] = "equal"
    needs_mean: ClassVar[bool] = True
    backbone_momentum: ClassVar[float | None] = 0.0

    classifier: Literal["private"] = "private"
    server_rate: Annotated[float, Field(gt=0)] = 1.0

    def phases(self) -> tuple[Phase, ...]:
        """As FedAvg; control variates both ways, averaged equally."""
        join, train = super().phases()
        return join, with_groups(train, down={OPTIMISER: "all"}, up={OPTIMISER: "mean"})

    def start(self, context: Context) -> State:
        """c = 0."""
        server = super().start(context)
        return server | {OPTIMISER: weighted((0.0, server[BACKBONE]))}

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """Corrected local work, then the new control variates."""
        own = party.state.get(CONTROL)
        length = count_steps(len(self.training_images(party)), self.training) * party.rate
        answer = super().train(party, parcel)
        drift = momentum_between(parcel[BACKBONE], party.weights.backbone, length)
        party.state[CONTROL] = weighted((1.0, drift), (-1.0, parcel[OPTIMISER]), *([(1.0, own)] if own else []))
        return answer.more({OPTIMISER: drift})

    def correction(self, party: Party, parcel: Parcel) -> Correct:
        """c - c_i on top of every gradient; c_i is zero in a party's first round."""
        own = party.state.get(CONTROL)
        return add_constant(weighted((1.0, parcel[OPTIMISER]), (-1.0, own)) if own else parcel[OPTIMISER])

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """The global model and c move towards the means."""
        averaged = super().absorb_train(server, result, context)
        rate = self.server_rate
        everybody = sum(joined.role in LEARNERS for joined in context.joined.values())
        part = len(result.statistics) / everybody
        backbone = weighted((1 - rate, server[BACKBONE]), (rate, averaged[BACKBONE]))
        control = weighted((1 - part, server[OPTIMISER]), (part, averaged[OPTIMISER]))
        return averaged | {BACKBONE: backbone, OPTIMISER: control}
