"""Interceptors: what acts on answers between a party's method and the server's: clipping, noise, encoding, masks.

An interceptor names the groups it acts on and its stage. At the party it is given sealed tensors and returns new
ones, in the order of `STAGES`; the result is what policy, ledger and guard see. At the server it acts on each answer
that the guard has accepted, in the reverse order, and on what a rule has made of them all, before the method absorbs
it, so that an optimiser of the server's never keeps a sum as it was before noise or unmasking. It may bring exchanges
of its own: `before_phases` run ahead of everybody's, `phases` after them. What it puts into a party's state is rolled
back with the answer.

At the server no interceptor sees class embeddings of single parties, whatever groups it names (`core.rows`).

Only what an interceptor asks for is computed: a run without one has the same bits as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import ClassVar, Literal

from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Layout, layout
from fedvisage.core.method import Component, Context, Party, Result
from fedvisage.core.parcel import PRIVATE_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.registry import Registry
from fedvisage.core.sealing import Answer

Stage = Literal["clip", "noise", "encode", "mask"]
STAGES: tuple[Stage, ...] = ("clip", "noise", "encode", "mask")
"""The order at the party."""
Groups = dict[str, Tensors]


class Interceptor(Component):
    """Acts on what leaves parties in training phases; every hook is given the interceptor's own groups only."""

    stage: ClassVar[Stage]
    groups: ClassVar[frozenset[str]]

    def before_phases(self) -> tuple[Phase, ...]:
        """Exchanges ahead of all others of their time, such as one that agrees on keys."""
        return ()

    def outgoing(self, party: Party, phase: Phase, tensors: Groups, sent: Parcel) -> Groups:
        """At the party: new tensors in place of the sealed ones; `sent` is what came down."""
        return tensors

    def layout(self, group: str, shapes: Layout) -> Layout:
        """Shapes and dtypes of what `outgoing` makes of a group; other ones are refused."""
        return shapes

    def received(self, party: str, phase: Phase, tensors: Groups, context: Context) -> Groups:
        """At the server: what is summed of one accepted answer."""
        return tensors

    def reduced(self, phase: Phase, tensors: Groups, result: Result, context: Context) -> Groups:
        """At the server: what the method absorbs of the reduced groups."""
        return tensors

    def account(self, phase: Phase, result: Result, context: Context) -> None:
        """At the server, at the end of an exchange: write down what it cost, into `context.numbers`."""


INTERCEPTORS: Registry[type[Interceptor]] = Registry("interceptor")


class Chain:
    """The interceptors of a run in the order of their stages."""

    def __init__(self, components: Sequence[Component]) -> None:
        found = [component for component in components if isinstance(component, Interceptor)]
        for one in found:
            if one.stage not in STAGES:
                known = ", ".join(STAGES)
                raise FedVisageError(f"interceptor {type(one).__name__}: no stage '{one.stage}'; known: {known}")
        self.links = sorted(found, key=lambda one: STAGES.index(one.stage))
        for one, other in combinations(self.links, 2):
            both = sorted(one.groups & other.groups)
            if one.stage == other.stage and both:
                names = f"{type(one).__name__} and {type(other).__name__}"
                raise FedVisageError(f"interceptors {names} both {one.stage} {both[0]}: one of them is enough")

    def __bool__(self) -> bool:
        return bool(self.links)

    def outgoing(self, phase: Phase, party: Party, answer: Answer, sent: Parcel) -> Answer:
        """The answer that leaves the party."""
        parcel = answer.parcel()
        for link in self.links if phase.trains else ():
            own = {group: tensors for group, tensors in parcel.tensors.items() if group in link.groups}
            shapes = {group: link.layout(group, layout(tensors)) for group, tensors in own.items()}
            parcel.tensors |= _checked(link, link.outgoing(party, phase, own, sent), shapes)
        return Answer(party, parcel.tensors, parcel.statistics)

    def expected(self, phase: Phase, shapes: dict[str, Layout]) -> dict[str, Layout]:
        """Shapes and dtypes of what reaches the server."""
        for link in self.links if phase.trains else ():
            shapes = {g: link.layout(g, own) if g in link.groups else own for g, own in shapes.items()}
        return shapes

    def received(self, phase: Phase, party: str, answer: Parcel, context: Context) -> Parcel:
        """The answer that is counted."""
        tensors = dict(answer.tensors)
        for link in reversed(self.links) if phase.trains else ():
            own = {group: tensors[group] for group in link.groups & tensors.keys() - {PRIVATE_EMBEDDINGS}}
            tensors |= link.received(party, phase, own, context)
        return Parcel(tensors, answer.statistics, answer.stamp, answer.generation, answer.rest)

    def reduced(self, phase: Phase, result: Result, context: Context) -> None:
        """Put what the interceptors make of the reduced groups into the result."""
        for link in reversed(self.links) if phase.trains else ():
            own = {group: result.reduced[group] for group in link.groups & result.reduced.keys()}
            shapes = {group: layout(tensors) for group, tensors in own.items()}
            result.reduced |= _checked(link, link.reduced(phase, own, result, context), shapes)
            link.account(phase, result, context)


def _checked(link: Interceptor, made: Groups, wanted: dict[str, Layout]) -> Groups:
    """What a hook returned, if it is of the groups and shapes that it was given or said."""
    shapes = {group: layout(tensors) for group, tensors in made.items()}
    if shapes != wanted:
        wrong = next(group for group in (*wanted, *shapes) if shapes.get(group) != wanted.get(group))
        raise FedVisageError(f"interceptor {type(link).__name__} makes another group or other shapes of '{wrong}'")
    return made
