"""A federated method on plain tensors, its real hosts, and a transport whose answers a test can spoil."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.config import Federation as Settings
from fedvisage.core.codec import State
from fedvisage.core.method import Component, Context, Joined, Method, Party, Result, Weighting, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.phase import LEARNERS, VALIDATOR, Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer as Sealed
from fedvisage.core.weights import Weights
from fedvisage.federation import Event, Failure, Federation, Host, InProcess, StateStore, Workers
from fedvisage.federation.checkpoint import Book

PARTIES = {"ann": "trainer", "bob": "trainer", "cat": "trainer"}
SAMPLES = {"ann": 10, "bob": 20, "cat": 30}


class Toy(Method):
    """Each party adds noise of its own stream to the global vector, and a little more for each of its visits."""

    summary: ClassVar[str] = "for tests"

    repeats: int = 1
    sampled_always: frozenset[str] = frozenset()

    def phases(self) -> tuple[Phase, ...]:
        groups = {BACKBONE: "all", BUFFERS: "all"}
        return (
            Phase("join", "start", sampled=False, roles=LEARNERS | {VALIDATOR}, reports=("samples",), counts=True),
            Phase(
                "train",
                repeats=self.repeats,
                always=self.sampled_always,
                down=groups,  # type: ignore[arg-type]
                up={BACKBONE: "weighted_sum", BUFFERS: "mean"},
                reports=("samples", "loss"),
                trains=True,
            ),
        )

    def start(self, context: Context) -> State:
        return {BACKBONE: {"w": torch.zeros(4), "v": torch.zeros(2, 2)}, BUFFERS: {"m": torch.zeros(3)}}

    def plan_join(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        return {party: Parcel() for party in cohort}

    def join(self, party: Party, parcel: Parcel) -> Sealed:
        party.state["visits"] = 0
        return party.answer(samples=SAMPLES.get(party.name, 5))

    def absorb_join(self, server: State, result: Result, context: Context) -> State:
        return server

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    def train(self, party: Party, parcel: Parcel) -> Sealed:
        party.state["visits"] += 1
        more = 0.1 * party.state["visits"]
        noise = party.streams.torch("noise")

        def moved(tensor: Tensor) -> Tensor:
            return tensor + torch.randn(tensor.shape, generator=noise) + more

        groups = {group: {name: moved(t) for name, t in parcel[group].items()} for group in (BACKBONE, BUFFERS)}
        return party.answer(tensors=groups, samples=SAMPLES.get(party.name, 5), loss=more)

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        return server | result.reduced


class ByNumber(Weighting):
    """The number of samples; or whatever a test wants."""

    override: dict[str, float] = Field(default_factory=dict)

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        return self.override.get(party, float(joined.samples))


@dataclass(frozen=True)
class MakeToyHost:
    """Builds the toy's host in any process."""

    folder: Path
    components: tuple[Component, ...] = (Toy(),)
    roles: tuple[tuple[str, str], ...] = tuple(PARTIES.items())

    def __call__(self, worker: int) -> Host:
        roles = dict(self.roles)

        def faces(name: str) -> tuple[str, Any]:
            return roles[name], None

        store = StateStore(self.folder / "parties")
        return Host(self.components, Weights(nn.Linear(1, 1)), faces, store, Streams(1, "parties"), {})


Answer = tuple[str, Parcel | Failure]
Spoil = Callable[[str, Parcel, Parcel | Failure], list[Answer]]
"""What to bring back instead: (party, what went down, its real answer) -> answers."""


@dataclass
class Spoiled:
    """A transport that hands the answers of another one through a function, and remembers what went down."""

    inner: Any
    spoil: Spoil = lambda party, sent, answer: [(party, answer)]
    reverse: bool = False
    sent: list[tuple[str, Any, str]] = field(default_factory=list)

    def exchange(self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]] = ()) -> Iterator[Answer]:
        down: dict[str, Parcel] = {}

        def ordered(more: Mapping[str, Parcel]) -> dict[str, Parcel]:
            self.sent += [(party, parcel.stamp, parcel.generation) for party, parcel in more.items()]
            down.update(more)
            return dict(reversed(list(more.items())) if self.reverse else more)

        for party, answer in self.inner.exchange(ordered(parcels), map(ordered, beside)):
            yield from self.spoil(party, down[party], answer)

    def close(self) -> None:
        self.inner.close()


@dataclass
class Outcome:
    """What a run left."""

    server: State
    book: Book
    transport: Spoiled
    events: list[Event]


def run_toy(
    folder: Path,
    spoil: Spoil | None = None,
    *,
    method: Method | None = None,
    weighting: Weighting | None = None,
    others: Sequence[Component] = (),
    parties: Mapping[str, str] = PARTIES,
    reverse: bool = False,
    watch: Callable[[Event], None] | None = None,
    workers: int = 0,
    **settings: Any,
) -> Outcome:
    """Run the toy in a folder, going on with what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    method, weighting = method or Toy(), weighting or ByNumber()
    maker = MakeToyHost(folder, (method, weighting, *others), tuple(parties.items()))
    inner = Workers(maker, workers) if workers else InProcess(maker)
    transport = Spoiled(inner, **({"spoil": spoil} if spoil else {}), reverse=reverse)
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if watch:
            watch(event)

    federation = Federation(
        method,
        weighting,
        others,
        parties,
        transport,
        Settings(**({"rounds": 3} | settings)),
        folder,
        Streams(1, "federation"),
        {},
        4,
        watch=listen,
    )
    try:
        server, book = federation.run()
    finally:
        transport.close()
    return Outcome(server, book, transport, events)


def at(round: int, party: str, change: Callable[[Parcel, Parcel | Failure], Any], phase: str = "train") -> Spoil:
    """Spoil one party's answer in one exchange: by changing it in place, or by what the function returns."""

    def spoil(name: str, sent: Parcel, answer: Parcel | Failure) -> list[Answer]:
        if (name, sent.stamp.round, sent.stamp.phase) != (party, round, phase):
            return [(name, answer)]
        if isinstance(answer, Parcel):
            answer = Parcel(
                {group: {n: t.clone() for n, t in tensors.items()} for group, tensors in answer.tensors.items()},
                dict(answer.statistics),
                answer.stamp,
                answer.generation,
            )
        changed = change(sent, answer)
        return changed if isinstance(changed, list) else [(name, answer)]

    return spoil


def fails(reason: str) -> Callable[[Parcel, Parcel | Failure], list[Answer]]:
    """The party gives no answer."""
    return partial(_failure, reason)


def _failure(reason: str, sent: Parcel, answer: Parcel | Failure) -> list[Answer]:
    return [("bob", Failure(reason, "the long story\n"))]
