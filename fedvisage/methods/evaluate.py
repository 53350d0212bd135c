"""Evaluation at the parties: each scores models on its own held-out images and sends numbers only.

The gallery is the mean embedding of each person's training images; the probes are the held-out images of the same
people. A party scores the global model, its local one (before averaging, where `federation.keep_local` is set) and its
personal one (where the method gives it one): the share of probes whose own person comes first. Where a method goes on
after the last round, as FedFR's second stage does, the parties score once more after that (`evaluate_end`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedvisage.core.codec import State
from fedvisage.core.method import Component, Context, Method, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer
from fedvisage.models import personalised
from fedvisage.training import embed_images

MODELS = ("global", "local", "personal")


class EvaluateAtParties(Component):
    """Scores at every party, every n rounds and after the last."""

    method: Method
    every: Annotated[int, Field(ge=1)] = 1

    def phases(self) -> tuple[Phase, ...]:
        """Everybody who learns, not only the round's participants; once more where the method ends with work."""
        regular = Phase(
            "evaluate",
            every=self.every,
            sampled=False,
            down={BACKBONE: "all", BUFFERS: "all"},
            may_report=tuple(f"{model}_rank1" for model in MODELS),
            keeps_state=False,
        )
        goes_on = any(phase.when == "end" for phase in self.method.phases())
        return (regular, replace(regular, name="evaluate_end", when="end")) if goes_on else (regular,)

    def plan_evaluate(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The global model."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    def evaluate(self, party: Party, parcel: Parcel) -> Answer:
        """Numbers for each model this party has; none where nothing was held out."""
        if party.faces.held_out is None or party.faces.held_out.labels is None:
            return party.answer()
        party.load(parcel)
        scores: dict[str, Any] = {"global_rank1": rank_one(party)}
        for name, tensors in (
            ("local", party.state.get("local_model")),
            ("personal", self.method.personal(party.state)),
        ):
            if tensors is not None:
                with personalised(party.weights, tensors):
                    scores[f"{name}_rank1"] = rank_one(party)
        return party.answer(**scores)

    def absorb_evaluate(self, server: State, result: Result, context: Context) -> State:
        """The numbers are in the metrics; the state does not change."""
        return server

    plan_evaluate_end, evaluate_end, absorb_evaluate_end = plan_evaluate, evaluate, absorb_evaluate


def rank_one(party: Party) -> float:
    """Share of the held-out images whose most similar gallery mean is their own person's."""
    train, probes = party.faces.train, party.faces.held_out
    assert probes is not None
    assert probes.labels is not None
    assert train.labels is not None
    gallery = np.zeros((train.classes, party.weights.model.metadata.embedding_size))
    np.add.at(gallery, train.labels, embed_images(party.weights.model, train, normalise=True))
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    similar = embed_images(party.weights.model, probes, normalise=True) @ gallery.T
    return float(np.mean(similar.argmax(axis=1) == probes.labels))
