"""The class embeddings of all parties' people, kept by the core and shown to a server regulariser only.

They are one matrix (C, d), each party's rows after those of the party before it by name. Parties send their own rows
with what a training phase answers, the regulariser takes its step on the whole matrix and returns one of the same
shape, and the core alone cuts it up again: each party is sent the rows of its own people. No method, weighting or
regulariser says who gets which row, and none but the regulariser sees one. A step that exchanges rows is possible
all the same: it sees the matrix and its owners.

Rows of parties that are absent stay where the server left them, and count; those of parties that were never heard of
do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Layout
from fedvisage.core.method import Component, Context, Joined, Party, Regulariser, Result
from fedvisage.core.parcel import EMBEDDINGS, IDENTITY_TOKENS, PRIVATE_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.people import follow_present
from fedvisage.core.phase import Phase

OWN = "own"
MATRIX, HEARD = "rows", "heard"


class Rows:
    """What the core does with class embeddings where a run has a regulariser."""

    def __init__(self, regulariser: Regulariser) -> None:
        self.regulariser = regulariser

    def extend(self, phase: Phase) -> Phase:
        """In training the rows come up party by party and go down to their owners."""
        if not phase.trains:
            return phase
        down, up = {**phase.down, PRIVATE_EMBEDDINGS: "owner"}, {**phase.up, PRIVATE_EMBEDDINGS: "individual"}
        return replace(phase, down=down, up=up)

    def hidden(self, server: State) -> State:
        """The server state as everybody else sees it."""
        return {name: value for name, value in server.items() if name != PRIVATE_EMBEDDINGS}

    def send(self, server: State, parcels: Mapping[str, Parcel], joined: Mapping[str, Joined]) -> None:
        """Every party its own rows, once it has sent some."""
        held = server.get(PRIVATE_EMBEDDINGS)
        if held is None:
            return
        places = where(joined)
        for party, parcel in parcels.items():
            own = places[party]
            if held[HEARD][own].any():
                parcel.tensors[PRIVATE_EMBEDDINGS] = {OWN: held[MATRIX][own]}

    def expected(self, party: str, context: Context) -> dict[str, Layout]:
        """One row for each of the party's people."""
        shape = (context.joined[party].classes, context.embedding_size)
        return {PRIVATE_EMBEDDINGS: {OWN: (shape, torch.float32)}}

    def receive(self, party: Party, parcel: Parcel) -> None:
        """At the party: local work begins with the rows that came down, and what it leaves of them is sent."""
        if parcel.get(PRIVATE_EMBEDDINGS):
            party.state[EMBEDDINGS] = parcel[PRIVATE_EMBEDDINGS][OWN]
        party.extra = _own_rows

    def absorb(self, before: State, server: State, result: Result, context: Context) -> State:
        """Put in the rows that came, and let the regulariser step on all that are known."""
        total = sum(entry.classes for entry in context.joined.values())
        held, places = before.get(PRIVATE_EMBEDDINGS), where(context.joined)
        rows = torch.zeros(total, context.embedding_size) if held is None else held[MATRIX].clone()
        heard = torch.zeros(total, dtype=torch.bool) if held is None else held[HEARD].clone()
        present = torch.zeros_like(heard)
        for party, answer in result.individual[PRIVATE_EMBEDDINGS].items():
            own = places[party]
            rows[own], heard[own], present[own] = answer[OWN], True, True
        owner = torch.repeat_interleave(torch.tensor([own.stop - own.start for own in places.values()]))
        person = before.get(IDENTITY_TOKENS)
        if person is not None:
            follow_present(rows, person, present)
        if heard.all():
            rows = self._step(rows, owner, person, context)
        elif heard.any():
            rows[heard] = self._step(rows[heard], owner[heard], None if person is None else person[heard], context)
        return server | {PRIVATE_EMBEDDINGS: {MATRIX: rows, HEARD: heard}}

    def _step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        shape, kind = rows.shape, rows.dtype
        after = self.regulariser.step(rows, owner, person, context)
        if after.shape != shape or after.dtype != kind:
            name, were = type(self.regulariser).__name__, f"{tuple(shape)} of {kind}"
            raise FedVisageError(f"regulariser {name} returned rows {tuple(after.shape)} of {after.dtype}, not {were}")
        return after


def _own_rows(party: Party) -> dict[str, Tensors]:
    """The rows of a party's people, as they are when its answer is made."""
    return {PRIVATE_EMBEDDINGS: {OWN: party.state[EMBEDDINGS]}}


def without_rows(result: Result) -> Result:
    """An exchange's result as everybody but the regulariser sees it."""
    individual = {group: kept for group, kept in result.individual.items() if group != PRIVATE_EMBEDDINGS}
    return replace(result, individual=individual)


def where(joined: Mapping[str, Joined]) -> dict[str, slice]:
    """Which rows are each party's."""
    places, start = {}, 0
    for party in sorted(joined):
        places[party] = slice(start, start + joined[party].classes)
        start += joined[party].classes
    return places


def rows_of(components: Sequence[Component]) -> Rows | None:
    """The rows of a run, if one of its components is a regulariser."""
    found = [component for component in components if isinstance(component, Regulariser)]
    if len(found) > 1:
        names = " and ".join(type(one).__name__ for one in found)
        raise FedVisageError(f"a run has one regulariser at most, not {names}")
    return Rows(found[0]) if found else None


def check_owners(component: Component, phase: Phase) -> None:
    """Refuse a phase that would show class embeddings one by one, or send a group to owners that it names itself."""
    owned = [group for group, audience in phase.down.items() if audience == "owner"]
    if owned or phase.up.get(PRIVATE_EMBEDDINGS) == "individual":
        raise FedVisageError(
            f"phase '{phase.name}' of {type(component).__name__} declares "
            f"{owned[0] if owned else PRIVATE_EMBEDDINGS} for its owner: class embeddings of single parties are kept "
            "by the core and shown to a regulariser only"
        )
