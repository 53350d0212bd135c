"""A method, its weighting and its other components, put together: whose phases run, and who else has a hand in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Layout
from fedvisage.core.interceptor import Chain
from fedvisage.core.method import Component, Context, Joined, Party, Result, Weighting
from fedvisage.core.parcel import PRIVATE_EMBEDDINGS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.rows import check_owners, rows_of, without_rows
from fedvisage.core.sealing import Answer, is_ours, nothing_follows


class Assembly:
    """All components of a run. Each phase has one owner; rows and interceptors join in what training phases send."""

    def __init__(self, components: Sequence[Component]) -> None:
        self.components = tuple(components)
        self.ours = all(is_ours(type(component)) for component in self.components)
        """Whether all of them come with this package; of others the core cannot know what they do to a model."""
        self.phases: dict[str, Phase] = {}
        self._owner: dict[str, Component] = {}
        self.rows, self.chain = rows_of(self.components), Chain(self.components)
        brought: list[tuple[Component, Phase]] = [
            (owner, phase) for owner in self.chain.links for phase in owner.before_phases()
        ]
        brought += [(owner, phase) for owner in self.components for phase in owner.phases()]
        for owner, phase in brought:
            check_owners(owner, phase)
            if phase.name in self.phases:
                raise FedVisageError(f"two components bring a phase called '{phase.name}'")
            phase = self.rows.extend(phase) if self.rows else phase
            self.phases[phase.name], self._owner[phase.name] = phase, owner
        for phase in self.phases.values():
            if phase.beside:
                self._check_beside(phase)

    def _check_beside(self, phase: Phase) -> None:
        """A party does one thing at a time."""
        other = self.phases.get(phase.beside)
        wrong = ""
        if other is None or other.when != "round":
            wrong = "no phase of a round is called so"
        elif other.roles & phase.roles:
            wrong = f"both ask the {', '.join(sorted(other.roles & phase.roles))}"
        elif any(third.beside == phase.beside for third in self.phases.values() if third is not phase):
            wrong = "another does already"
        if wrong:
            raise FedVisageError(f"phase '{phase.name}' cannot run beside '{phase.beside}': {wrong}")

    def start(self, context: Context) -> State:
        """The first server state: what every component adds to it."""
        state: State = {}
        for component in self.components:
            state |= component.start(context)
        return state

    def plan(self, phase: Phase, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """What goes down, per party."""
        owner, seen = self._owner[phase.name], self.hidden(server)
        parcels = owner.plan(phase, seen, cohort, context)
        if self.rows and phase.trains:
            for party, parcel in parcels.items():
                if PRIVATE_EMBEDDINGS in parcel.tensors:
                    raise FedVisageError(
                        f"phase '{phase.name}' would send class embeddings to {party}, which the core alone does; "
                        "nothing was sent"
                    )
            self.rows.send(server, parcels, context.joined)
        return parcels

    def hidden(self, server: State) -> State:
        """The server state as methods and weightings see it: without the rows that the core keeps."""
        return self.rows.hidden(server) if self.rows else server

    def local(self, phase: Phase, party: Party, parcel: Parcel) -> Answer:
        """What comes up; runs at the party."""
        owner = self._owner[phase.name]
        party.live = self.nothing_follows(phase)
        if self.rows and phase.trains:
            self.rows.receive(party, parcel)
        answer = owner.local(phase, party, parcel)
        if not isinstance(answer, Answer) or answer.maker is not party:
            what = f"phase '{phase.name}' of {type(owner).__name__}"
            raise FedVisageError(f"{what} must return what party.answer(...) made in this exchange; nothing was sent")
        return self.chain.outgoing(phase, party, answer, parcel) if self.chain else answer

    def nothing_follows(self, phase: Phase) -> bool:
        """Whether the core knows that nobody writes to a party's model once a phase's answer is made."""
        owner = self._owner[phase.name]
        half = getattr(type(owner), phase.name, None)
        known = type(owner).local is Component.local and half is not None and nothing_follows(half)
        return known and not self.chain

    def absorb(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        """The server state after the accepted answers."""
        owner, before = self._owner[phase.name], server
        shown = without_rows(result) if self.rows else result
        self.chain.reduced(phase, shown, context)
        server = owner.absorb(phase, self.hidden(server), shown, context)
        for weighting in self.components if phase.trains else ():
            if isinstance(weighting, Weighting):
                server = weighting.keep(phase, server, shown, context)
        if self.rows is None:
            return server
        server = self.hidden(server)
        if phase.trains:
            return self.rows.absorb(before, server, result, context)
        kept = before.get(PRIVATE_EMBEDDINGS)
        return server if kept is None else server | {PRIVATE_EMBEDDINGS: kept}

    def local_steps(self, phase: Phase, joined: Joined) -> int:
        """Local steps of a party in a training phase."""
        return max(1, self._owner[phase.name].local_steps(joined))

    def owner(self, phase: Phase) -> Component:
        """The component that brings a phase."""
        return self._owner[phase.name]

    def expect(self, phase: Phase, server: State, party: str, parcel: Parcel, context: Context) -> dict[str, Layout]:
        """Shapes and dtypes of an answer's groups."""
        owner = self._owner[phase.name]
        server = self.hidden(server)
        shapes = owner.expect(phase, server, party, parcel, context)
        if self.rows and phase.trains:
            shapes |= self.rows.expected(party, context)
        return self.chain.expected(phase, shapes)


def with_groups(phase: Phase, **more: object) -> Phase:
    """A phase with groups or numbers added."""
    changes: dict[str, object] = {}
    for name, addition in more.items():
        present = getattr(phase, name)
        changes[name] = {**present, **addition} if isinstance(addition, dict) else (*present, *addition)  # type: ignore[misc]
    return replace(phase, **changes)  # type: ignore[arg-type]
