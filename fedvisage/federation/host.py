"""The party side of an exchange: state in, method's party half, state and answer out.

One host serves all parties of a process with one model, whose tensors are overwritten for each party and never rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedvisage.core.assembly import Assembly
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Component, Joined, Party, PartyFaces, Rates, no_rates
from fedvisage.core.parcel import UNSTAMPED, Parcel, Stamp, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Room, lend
from fedvisage.core.weights import Weights, snapshot
from fedvisage.federation.store import StateStore

LOCAL_MODEL = "local_model"


class Host:
    """Runs the party half of a phase for any party of this process."""

    def __init__(
        self,
        components: Sequence[Component],
        weights: Weights,
        faces: Callable[[str], tuple[str, PartyFaces]],
        store: StateStore,
        streams: Streams,
        start_batchnorm: Tensors,
        keep_local: bool = False,
        together: int = 1,
        rates: Rates = no_rates,
    ) -> None:
        self.assembly, self.weights, self.faces, self.store = Assembly(components), weights, faces, store
        self.streams, self.start_batchnorm, self.keep_local = streams, start_batchnorm, keep_local
        if together > 1 and self.assembly.chain:
            raise FedVisageError("interceptors act on each party's answer: set federation.together = 1")
        self.together = together
        """Parties whose training is computed at once (see `methods.together`); 1 for each by itself."""
        self.rates = rates
        self._room = Room()
        self._memo: dict[Any, Any] = {}
        self._stamp = UNSTAMPED

    def handle(self, name: str, parcel: Parcel) -> Parcel:
        """Answer a parcel as party `name`. The answer's tensors are live: read them before the next call."""
        parcel = lend(parcel)
        return self._answer(self._open(name, parcel), parcel)

    def handle_together(self, parcels: Mapping[str, Parcel]) -> Iterator[tuple[str, Parcel | Exception]]:
        """Answer for several parties whose step is computed at once; an exception where one of them fails alone."""
        parcels = {name: lend(parcel) for name, parcel in parcels.items()}
        parties = [self._open(name, parcel) for name, parcel in parcels.items()]
        method, weighting = self.assembly.components[0], self.assembly.components[1]
        counts = [Joined(party.role, len(party.faces.train), 0) for party in parties]
        weigh: Any = weighting
        weights = [weigh.weight({}, party.name, count, {}) for party, count in zip(parties, counts, strict=True)]
        step: Any = method
        for party, outcome in zip(parties, step.step_together(parties, list(parcels.values()), weights), strict=True):
            if isinstance(outcome, Exception):
                yield party.name, outcome
                continue
            party.stepped = outcome
            yield party.name, self._answer(party, parcels[party.name])

    def _open(self, name: str, parcel: Parcel) -> Party:
        """A party with its faces and the state that the parcel asks for."""
        role, faces = self.faces(name)
        if parcel.stamp != self._stamp:
            self._memo.clear()
            self._stamp = parcel.stamp
        self._room.next_party()
        if not self.assembly.ours:
            self.weights.as_new()
        trains = self.assembly.phases[parcel.stamp.phase].trains
        return Party(
            name=name,
            role=role,
            round=parcel.stamp.round,
            faces=faces,
            state=self.store.load(name, parcel.generation),
            weights=self.weights,
            streams=self._streams(name, parcel.stamp),
            start_batchnorm=self.start_batchnorm,
            memo=self._memo,
            rates=self.rates,
            room=self._room,
            keep=self._keep if trains else None,
        )

    def _answer(self, party: Party, parcel: Parcel) -> Parcel:
        phase, name = self.assembly.phases[parcel.stamp.phase], party.name
        answer = self.assembly.local(phase, party, parcel).parcel()
        _check_declared(phase, answer)
        if self.weights.device.type != "cpu":
            answer.tensors = {group: snapshot(tensors) for group, tensors in answer.tensors.items()}
        answer.stamp = parcel.stamp
        if phase.keeps_state and party.state:
            answer.generation = self.store.save(name, parcel.stamp, party.state, parcel.generation)
        return answer

    def computes_together(self, phase: str) -> bool:
        """Whether parties are answered for in groups in this phase."""
        return self.together > 1 and self.assembly.phases[phase].trains

    def close(self) -> None:
        """Let go of the party states."""
        self.store.close()

    def _streams(self, name: str, stamp: Stamp) -> Streams:
        """A party's streams: the same for all phases of a round, others for each repeat of a phase."""
        streams = self.streams.child(stamp.round, name)
        return streams.child("repeat", stamp.repeat) if stamp.repeat else streams

    def _keep(self, party: Party) -> None:
        """What the party keeps of the model as it is answered: a copy, unless nobody writes to it afterwards."""
        own = dict if party.live else snapshot
        if self.weights.local:
            party.state["batchnorm"] = own(self.weights.local)
        if self.keep_local:
            party.state[LOCAL_MODEL] = own(self.weights.all())


def _check_declared(phase: Phase, answer: Parcel) -> None:
    """Nothing leaves a party that the method has not declared."""
    extra = [group for group in answer.tensors if group not in phase.up]
    numbers = [name for name in answer.statistics if name not in (*phase.reports, *phase.may_report)]
    if extra or numbers:
        raise FedVisageError(
            f"phase '{phase.name}' would send undeclared {', '.join(map(repr, extra + numbers))}; nothing was sent"
        )
