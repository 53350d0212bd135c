"""Reducing answers as they arrive, in an order that does not depend on when they arrive.

The cohort is cut into chunks by its size alone. A chunk sums its answers in order, and chunk sums add in order, so the
result is the same bits for any number of workers and any transport; an answer that is early is held until its turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch

from fedvisage.core.codec import load_state, read_state, save_state, state_bytes
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import columns, in_order, pack_flat, zeros_flat
from fedvisage.core.method import Result
from fedvisage.core.parcel import Parcel, Tensors, group_bytes
from fedvisage.core.phase import Phase
from fedvisage.core.rule import Mean, Rule
from fedvisage.core.weights import snapshot
from fedvisage.federation.stack import Stack

CHUNKS = 64
SPILL_BYTES = 64 << 20
SMALL = 1 << 16
"""Answers of fewer bytes are kept as bytes: the objects around a class embedding are larger than itself."""

Item = TypeVar("Item")
Groups = dict[str, Tensors]
Summand = tuple[Groups, float]
Rest = Callable[[], None] | None
"""See `Parcel.rest`."""
Term = tuple[Groups, float, Rest]
PIECE = 1 << 22
"""Numbers of an answer that can rest which are in memory at a time."""


def chunk_size(cohort: int) -> int:
    """Parties per chunk: a function of the cohort's size only."""
    return max(1, math.ceil(cohort / CHUNKS))


class InOrder(Generic[Item]):
    """Passes items on by position, holding those that come early; a position may be skipped."""

    def __init__(self, emit: Callable[[Item], None], keep: Callable[[Item], Item]) -> None:
        self._emit, self._keep = emit, keep
        self._held: dict[int, tuple[Item | None, Rest]] = {}
        self.position = 0

    def put(self, position: int, item: Item | None, rest: Rest = None) -> None:
        """Hand in the item of a position (None to skip it); one that can `rest` is held as it is, not copied."""
        if position != self.position:
            self._held[position] = (item if rest or item is None else self._keep(item)), rest
            return
        while True:
            if item is not None:
                self._emit(item)
            if rest:
                rest()
            self.position += 1
            if self.position not in self._held:
                return
            item, rest = self._held.pop(self.position)


class Accumulator:
    """A running weighted sum of groups of tensors."""

    def __init__(self, space: Groups | None = None) -> None:
        self._space = space
        self.total: Groups | None = None

    def add(self, term: Term) -> None:
        """total += weight * tensors."""
        groups, weight, rest = term
        if self.total is None and self._space:
            self.total = self._space
            for tensors in self.total.values():
                torch._foreach_zero_(columns(tensors)[0])
        elif self.total is None:
            self.total = {group: zeros_flat(tensors) for group, tensors in groups.items()}
        for group, tensors in groups.items():
            total = self.total[group]
            sums, values = columns(total, in_order(tensors, total))
            if rest is None:
                torch._foreach_add_(sums, values, alpha=weight)
                continue
            for own, other in zip(sums, values, strict=True):
                for start in range(0, len(own), PIECE):
                    own[start : start + PIECE].add_(other[start : start + PIECE], alpha=weight)
                    rest()


class OrderedSum:
    """Sum of weighted tensor lists over positions 0 to count - 1, in fixed order whatever the order of arrival."""

    def __init__(self, count: int) -> None:
        self.count, self.chunk = count, chunk_size(count)
        self._whole = Accumulator()
        self._spare: list[Groups] = []
        self._chunks: dict[int, tuple[InOrder[Term], Accumulator]] = {}
        self._order = (
            InOrder[Term](self._whole.add, _copy)
            if self.chunk == 1
            else InOrder[Term](partial(_add, self._whole, self._spare), _keep)
        )

    @property
    def total(self) -> Groups | None:
        """The sum so far; None before the first summand."""
        return self._whole.total

    def put(self, position: int, summand: Summand | None, rest: Rest = None) -> None:
        """Add the tensors of a position, or skip it. They are read before this returns, or copied if they must wait.

        Those that can `rest` are held as they are.
        """
        term = summand and (*summand, rest)
        if self.chunk == 1:
            self._order.put(position, term, rest)
            return
        number, within = divmod(position, self.chunk)
        if number not in self._chunks:
            part = Accumulator(self._spare.pop() if self._spare else None)
            self._chunks[number] = (InOrder(part.add, _copy), part)
        order, part = self._chunks[number]
        order.put(within, term, rest)
        if order.position == min(self.chunk, self.count - number * self.chunk):
            del self._chunks[number]
            self._order.put(number, (part.total, 1.0, None) if part.total else None)


def _add(whole: Accumulator, spare: list[Groups], term: Term) -> None:
    """Add a chunk's sum; its tensors may hold another chunk's next.

    A function and no method: a sum that knew itself would hold a model until the garbage collector comes by.
    """
    whole.add(term)
    spare.append(term[0])


def _copy(term: Term) -> Term:
    return {group: pack_flat(tensors) for group, tensors in term[0].items()}, term[1], None


def _keep(term: Term) -> Term:
    return term


class Individuals(Mapping[str, Tensors]):
    """Answers of one group kept party by party, on disk once they are large; listed by name, not by arrival."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._items: dict[str, Tensors | bytes | Path] = {}
        self._bytes = 0

    def add(self, party: str, tensors: Tensors) -> None:
        """Keep a copy of one party's answer."""
        size = group_bytes(tensors)
        self._bytes += size
        if self._bytes <= SPILL_BYTES:
            self._items[party] = state_bytes(dict(tensors)) if size < SMALL else snapshot(tensors)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{len(self._items):06d}.safetensors"
        save_state(path, dict(tensors), durable=False)
        self._items[party] = path

    def __getitem__(self, party: str) -> Tensors:
        item = self._items[party]
        if isinstance(item, bytes):
            return read_state(bytearray(item), f"the answer of {party}")
        return load_state(item) if isinstance(item, Path) else item

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)


class Aggregator:
    """Collects the accepted answers of one exchange and reduces them as the phase declares."""

    def __init__(
        self,
        phase: Phase,
        cohort: Sequence[str],
        rule: Rule | None = None,
        individual: frozenset[str] = frozenset(),
        spill: Path = Path(),
    ) -> None:
        self.phase, self.rule = phase, rule or Mean()
        self._position = {party: position for position, party in enumerate(cohort)}
        self._summed = {group: how for group, how in phase.up.items() if how != "individual"}
        kept = {group for group, how in phase.up.items() if how == "individual"}
        self._kept = {group: Individuals(spill / group) for group in sorted(kept | (individual & set(phase.up)))}
        seen = self.rule.needs == "individual" and self._summed
        self._stack = Stack(spill / "answers") if seen else None
        self._sent = Stack(spill / "sent")
        self._sums = {} if seen else {how: OrderedSum(len(cohort)) for how in set(self._summed.values())}
        self._weights: dict[str, float] = {}
        self._statistics: dict[str, dict[str, float]] = {}
        self.absent: dict[str, str] = {}
        """Parties whose answer does not count, with the reason."""

    def add(self, party: str, answer: Parcel, weight: float, norm: float, sent: Parcel) -> None:
        """Count one accepted answer. Its tensors may be overwritten afterwards."""
        self._weights[party] = weight
        self._statistics[party] = answer.statistics
        for group, kept in self._kept.items():
            kept.add(party, answer.get(group))
        groups = {group: answer[group] for group in self._summed if answer.get(group)}
        if self._stack is not None:
            if not len(self._stack.parties):
                self._sent.add("", {group: _start(sent.get(group), own) for group, own in groups.items()})
            self._stack.add(party, groups, answer.rest)
            return
        groups = self.rule.contribution(groups, sent, norm)
        for how, sums in self._sums.items():
            own = {group: tensors for group, tensors in groups.items() if self._summed[group] == how}
            sums.put(self._position[party], (own, weight if how == "weighted_sum" else 1.0), answer.rest)

    def skip(self, party: str, reason: str) -> None:
        """Note that a party's answer does not count."""
        self.absent[party] = reason
        for sums in self._sums.values():
            sums.put(self._position[party], None)

    @property
    def accepted(self) -> int:
        """Answers counted so far."""
        return len(self._weights)

    def result(self) -> Result:
        """The reduced answers, once every party of the cohort was added or skipped."""
        order = sorted(self._weights, key=self._position.__getitem__)
        total = math.fsum(self._weights[party] for party in order)
        if order and not total and "weighted_sum" in self._sums:
            raise FedVisageError(f"phase '{self.phase.name}': the answers of {', '.join(order)} have no weight at all")
        reduced: dict[str, Tensors] = {}
        for how, sums in self._sums.items():
            if sums.total is None:
                continue
            divisor = total if how == "weighted_sum" else float(len(order))
            for group, tensors in sums.total.items():
                torch._foreach_div_(columns(tensors)[0], divisor)
                reduced[group] = tensors
        if self._stack is not None and order:
            weights = [self._weights[party] for party in order]
            vector = self.rule.reduce(self._stack.keep(order), weights, self._sent.keep([""]))
            reduced = self._stack.groups(vector)
            self._stack.forget()
            self._sent.forget()
        return Result(
            reduced={group: reduced.get(group, {}) for group in self.phase.up if group in self._summed},
            individual=dict(self._kept),
            statistics={party: self._statistics[party] for party in order},
            weights={party: self._weights[party] / total if total else 1 / len(order) for party in order},
            absent={party: self.absent[party] for party in sorted(self.absent, key=self._position.__getitem__)},
        )


def _start(sent: Tensors, values: Tensors) -> Tensors:
    """What went down of a group; zeros where nothing did."""
    return {name: sent.get(name, torch.zeros_like(value)) for name, value in values.items()}
