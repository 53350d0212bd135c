"""PFM: partially federated momentum (Bai et al., "Federated Face Recognition", arXiv 2105.02501).

Few reliable parties train from scratch over many rounds. The backbone's momentum M is global: a party spreads it over
its K local steps (eq. 3) and keeps no momentum of its own for the backbone,

    theta <- theta - eta * (g + beta * M / K),

while its class embeddings, which nobody else has, keep ordinary momentum from round to round (eq. 1 and 2). After
averaging (eq. 4) the server reads the new momentum off the change of the global model (eq. 5 and 6),

    M <- (Theta_before - Theta_after) / eta,

which equals beta * M + the weighted sum of all gradients because the weights sum to one. Weight decay is part of g, and
BatchNorm statistics have no momentum. With one party and K = 1 this is SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from fedvisage.core.assembly import with_groups
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import columns, weighted
from fedvisage.core.method import METHODS, Context, Party, Result
from fedvisage.core.parcel import BACKBONE, OPTIMISER, Parcel, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import FedAvg
from fedvisage.training import Correct, add_constant, count_steps

HOLDERS = "holders"
LAST_GLOBAL = "last_global"


@METHODS.register("pfm")
class PFM(FedAvg):
    """Partially federated momentum; beta is `training.momentum`. The class embeddings' momentum is always kept."""

    summary: ClassVar[str] = "global momentum spread over the local steps; class embeddings keep their own, privately"
    default_weighting: ClassVar[str] = "equal"
    needs_mean: ClassVar[bool] = True
    backbone_momentum: ClassVar[float | None] = 0.0

    classifier: Literal["private"] = "private"
    momentum: Literal["sent", "derived"] = "sent"
    """Whether M goes down, or parties derive it from two global models in a row; who missed one is sent it."""

    def phases(self) -> tuple[Phase, ...]:
        """As FedAvg, and the momentum goes down."""
        join, train, *more = super().phases()
        return join, with_groups(train, down={OPTIMISER: "all"}), *more

    @property
    def keeps_momentum(self) -> bool:
        """Eq. 1: that of the class embeddings."""
        return True

    def start(self, context: Context) -> State:
        """M = 0."""
        server = super().start(context)
        return server | {OPTIMISER: weighted((0.0, server[BACKBONE])), HOLDERS: []}

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """Theta and M; M not to those who can derive it (in round 1 everybody: it is zero)."""
        parcels = super().plan_train(server, cohort, context)
        if self.momentum == "derived":
            for party in cohort if context.round == 1 else set(cohort) & set(server[HOLDERS]):
                del parcels[party].tensors[OPTIMISER]
        return parcels

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """FedAvg's local work under the corrected gradients."""
        answer = super().train(party, parcel)
        if self.momentum == "derived":
            party.state[LAST_GLOBAL] = {"round": party.round, BACKBONE: parcel[BACKBONE]}
        return answer

    def correction(self, party: Party, parcel: Parcel) -> Correct | None:
        """Eq. 3: beta * M / K on top of every gradient, with this party's own number of steps."""
        steps = count_steps(len(self.training_images(party)), self.training)
        momentum = self.global_momentum(party, parcel)
        return add_constant(momentum, self.training.momentum / steps) if momentum else None

    def global_momentum(self, party: Party, parcel: Parcel) -> Tensors:
        """M as it was sent, or from this global model and the last one."""
        if OPTIMISER in parcel.tensors or party.round == 1:
            return parcel.get(OPTIMISER)
        last = party.state.get(LAST_GLOBAL, {"round": 0})
        if last["round"] != party.round - 1:
            raise FedVisageError(f"party '{party.name}' missed round {party.round - 1} and was not sent the momentum")
        rate = party.rates(party.round - 1)
        return party.once("momentum", lambda: momentum_between(last[BACKBONE], parcel[BACKBONE], rate))

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """Eq. 4 and 6; the server does not step with M."""
        after = super().absorb_train(server, result, context)
        momentum = momentum_between(server[BACKBONE], after[BACKBONE], context.rate)
        return after | {OPTIMISER: momentum, HOLDERS: sorted(result.statistics)}


def momentum_between(before: Tensors, after: Tensors, rate: float) -> Tensors:
    """Eq. 6: (before - after) / rate."""
    change = weighted((1.0, before), (-1.0, after))
    torch._foreach_div_(columns(change)[0], rate)
    return change
