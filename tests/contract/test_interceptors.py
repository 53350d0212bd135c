"""Interceptors: what they are given and in which order, at parties and at the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from federation.toy import SAMPLES, Toy, run_toy
from methods.small import WORK, federate

from fedvisage.core.assembly import Assembly
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Layout
from fedvisage.core.interceptor import Groups, Interceptor, Stage
from fedvisage.core.method import Context, Party, Result
from fedvisage.core.parcel import BACKBONE, PRIVATE_EMBEDDINGS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer
from fedvisage.federation import Failure, StateStore
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fedavgm import FedAvgM
from fedvisage.methods.separation import Cosine

OPEN = {"norm_multiple": None, "model_multiple": None}
"""No bound on norms: the toy begins at zero."""


class Still(Toy):
    """Parties answer with what came down, so that only interceptors change anything."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        return party.answer(tensors={g: parcel[g] for g in parcel.tensors}, samples=SAMPLES[party.name], loss=0.0)


class Doubles(Interceptor):
    stage: ClassVar[Stage] = "clip"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE})

    def outgoing(self, party: Party, phase: Phase, tensors: Groups, sent: Parcel) -> Groups:
        return {group: {name: 2 * value for name, value in own.items()} for group, own in tensors.items()}


class AddsOne(Interceptor):
    """Adds one at the party, counts how often in its state, and reports at the server what it did."""

    stage: ClassVar[Stage] = "noise"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE})

    def outgoing(self, party: Party, phase: Phase, tensors: Groups, sent: Parcel) -> Groups:
        party.state["added"] = party.state.get("added", 0) + 1
        return {group: {name: value + 1 for name, value in own.items()} for group, own in tensors.items()}

    def account(self, phase: Phase, result: Result, context: Context) -> None:
        context.numbers["spent"] = float(len(result.statistics))


class Masks(Interceptor):
    """Moves answers far away, takes that back from the mean, and has an exchange before the phase and one after it."""

    stage: ClassVar[Stage] = "mask"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE})

    def before_phases(self) -> tuple[Phase, ...]:
        return (Phase("keys"),)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("unmask", keeps_state=False),)

    def plan(self, phase: Phase, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        return {party: Parcel() for party in cohort}

    def local(self, phase: Phase, party: Party, parcel: Parcel) -> Answer:
        if phase.name == "keys":
            party.state["key"] = 4096.0
        return party.answer()

    def absorb(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        return server

    def outgoing(self, party: Party, phase: Phase, tensors: Groups, sent: Parcel) -> Groups:
        key = party.state["key"]
        return {group: {name: value + key for name, value in own.items()} for group, own in tensors.items()}

    def reduced(self, phase: Phase, tensors: Groups, result: Result, context: Context) -> Groups:
        return {group: {name: value - 4096.0 for name, value in own.items()} for group, own in tensors.items()}


def test_stages_follow_each_other_whatever_the_order_of_the_components(tmp_path: Path) -> None:
    """By hand: from 0, each round doubles and adds one: 1, 3, 7."""
    outcome = run_toy(tmp_path, method=Still(), others=[Masks(), AddsOne(), Doubles()], guard=OPEN)
    assert outcome.server[BACKBONE]["w"].tolist() == [7.0] * 4
    assert outcome.server["buffers"]["m"].tolist() == [0.0] * 3
    spent = [event.numbers["spent"] for event in outcome.events if event.kind == "absorbed" and event.phase == "train"]
    assert spent == [3.0, 3.0, 3.0]
    phases = [event.phase for event in outcome.events if event.kind == "absorbed" and event.round == 1]
    assert phases == ["keys", "train", "unmask"]


def test_what_an_interceptor_keeps_at_a_party_is_rolled_back_with_the_answer(tmp_path: Path) -> None:
    def spoil(party: str, sent: Parcel, answer: Any) -> Any:
        lost = (party, sent.stamp.round, sent.stamp.phase) == ("bob", 2, "train")
        return [(party, Failure("lost") if lost else answer)]

    outcome = run_toy(tmp_path, spoil, method=Still(), others=[AddsOne()], guard=OPEN)
    store = StateStore(tmp_path / "parties")
    added = {party: store.load(party, generation)["added"] for party, generation in outcome.book.generations.items()}
    assert added == {"ann": 3, "bob": 2, "cat": 3}


class ScalesSum(Interceptor):
    stage: ClassVar[Stage] = "noise"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE})

    def reduced(self, phase: Phase, tensors: Groups, result: Result, context: Context) -> Groups:
        return {group: {n: torch.full_like(t, 5.0) for n, t in own.items()} for group, own in tensors.items()}


def test_a_servers_optimiser_sees_the_sum_only_after_the_interceptors(tmp_path: Path) -> None:
    """FedAvgM's velocity after one round is start - 5: the true mean is nowhere in the server's state."""
    ran = federate(tmp_path, FedAvgM(training=WORK), others=[ScalesSum()], rounds=1)
    velocity, start = ran.server["velocity"], ran.start[BACKBONE]
    assert all(torch.allclose(velocity[name], start[name] - 5.0) for name in start)


class Looks(Interceptor):
    """Names the class embeddings, too, and notes what the server shows it."""

    stage: ClassVar[Stage] = "encode"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE, PRIVATE_EMBEDDINGS})
    seen: ClassVar[set[str]] = set()

    def received(self, party: str, phase: Phase, tensors: Groups, context: Context) -> Groups:
        Looks.seen |= {f"received {group}" for group in tensors}
        return tensors

    def reduced(self, phase: Phase, tensors: Groups, result: Result, context: Context) -> Groups:
        Looks.seen |= {f"reduced {group}" for group in (*tensors, *result.individual)}
        return tensors


def test_no_interceptor_sees_single_class_embeddings_at_the_server(tmp_path: Path) -> None:
    federate(tmp_path, FedPE(training=WORK), others=[Cosine(training=WORK), Looks()], rounds=1)
    assert Looks.seen == {f"received {BACKBONE}", f"reduced {BACKBONE}"}


class Halves(Interceptor):
    """Encodes in half precision, and says so or not."""

    stage: ClassVar[Stage] = "encode"
    groups: ClassVar[frozenset[str]] = frozenset({BACKBONE})
    says: bool = True

    def outgoing(self, party: Party, phase: Phase, tensors: Groups, sent: Parcel) -> Groups:
        return {group: {name: value.half() for name, value in own.items()} for group, own in tensors.items()}

    def layout(self, group: str, shapes: Layout) -> Layout:
        return {name: (shape, torch.float16) for name, (shape, _) in shapes.items()} if self.says else shapes

    def received(self, party: str, phase: Phase, tensors: Groups, context: Context) -> Groups:
        return {group: {name: value.float() for name, value in own.items()} for group, own in tensors.items()}


def test_an_encoding_is_what_the_guard_expects_and_is_undone_before_the_sum(tmp_path: Path) -> None:
    outcome = run_toy(tmp_path, method=Still(), others=[AddsOne(), Halves()], guard=OPEN)
    assert outcome.server[BACKBONE]["w"].tolist() == [3.0] * 4
    assert outcome.server[BACKBONE]["w"].dtype == torch.float32
    with pytest.raises(FedVisageError, match="interceptor Halves makes another group or other shapes of 'backbone'"):
        run_toy(tmp_path / "silent", method=Still(), others=[Halves(says=False)])


class Strange(Doubles):
    stage: ClassVar[Any] = "later"


def test_two_of_one_stage_on_one_group_and_unknown_stages_are_refused_before_training() -> None:
    with pytest.raises(FedVisageError, match="interceptors Doubles and Doubles both clip backbone: one of them"):
        Assembly([Toy(), Doubles(), AddsOne(), Doubles()])
    with pytest.raises(FedVisageError, match="interceptor Strange: no stage 'later'; known: clip, noise, encode, mask"):
        Assembly([Toy(), Strange()])


def test_a_run_with_interceptors_copies_every_answer() -> None:
    assembly = Assembly([FedPE(), Doubles()])
    assert not assembly.nothing_follows(assembly.phases["train"])
