"""Each party by itself: the same start, local work and number of rounds as a federation, and nothing is shared.

What a party could do without the others: the lower line of every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedvisage.core.codec import State
from fedvisage.core.method import METHODS, Context, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel, Tensors
from fedvisage.core.phase import Audience, Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.core.weights import snapshot
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg

MODEL = "model"


@METHODS.register("alone")
class Alone(FedAvg):
    """Local training only."""

    has_no_global_model: ClassVar[bool] = True
    summary: ClassVar[str] = "each party trains by itself; nothing but the loss is reported"

    classifier: Literal["private"] = "private"
    rounds: Annotated[int, Field(ge=1)] = 1

    @property
    def keeps_class_embeddings(self) -> bool:
        """They are nobody else's business."""
        return False

    def phases(self) -> tuple[Phase, ...]:
        """The start model goes down once; afterwards only the loss comes up."""
        down: dict[str, Audience] = {BACKBONE: "all", BUFFERS: "all"}
        return (
            Phase(
                "join", "start", sampled=False, down=down, reports=("samples",), may_report=("classes",), counts=True
            ),
            Phase("train", reports=("samples", "loss"), trains=True),
        )

    def plan_join(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The start model."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    def join(self, party: Party, parcel: Parcel) -> Answer:
        """Keep the start model as the party's own."""
        party.load(parcel)
        party.state[MODEL] = snapshot(party.weights.all())
        return super().join(party, parcel)

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """Nothing goes down."""
        return {party: Parcel() for party in cohort}

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """Go on from the party's own model."""
        party.weights.load(party.state[MODEL])
        party.state[EMBEDDINGS], fit = self.fit(party, parcel, party.weights.model, party.state[EMBEDDINGS])
        party.state[MODEL] = party.weights.all()
        return party.answer(samples=len(party.faces.train), loss=fit.loss)

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """The server learns nothing."""
        return server

    def personal(self, state: State) -> Tensors | None:
        """The party's own model."""
        model: Tensors = state[MODEL]
        return model
