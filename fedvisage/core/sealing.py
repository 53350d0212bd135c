"""What leaves a party is sealed when it is made, and what came down is lent: neither can be changed for anybody else.

`Party.answer` copies the tensors that leave, so whatever happens to the model afterwards stays at the party. `Lent`
gives a method its own copy of a group when it first looks at it; loading a model from what came down needs no copy.

An answer of the live model is not copied where the core knows that nobody writes to it before it is encoded or summed:
the party half is a function of this package marked `ends_with_answer`, not one that a subclass brings, and nobody
else acts after it. Such a function calls nothing that a subclass may override once its answer is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import copy, layout, pack_flat
from fedvisage.core.parcel import Parcel, Tensors

PACKAGE = __name__.partition(".")[0]
_MARK = "_ends_with_answer"

Function = TypeVar("Function", bound=Callable[..., Any])


def ends_with_answer(function: Function) -> Function:
    """Mark a party half of this package after whose answer nothing writes to the model."""
    setattr(function, _MARK, True)
    return function


def nothing_follows(function: Callable[..., Any]) -> bool:
    """Whether a party half is one of this package that is marked so; of others the core cannot know."""
    return getattr(function, _MARK, False) and is_ours(function)


def is_ours(thing: Any) -> bool:
    """Whether a class or a function comes with this package."""
    return str(thing.__module__).partition(".")[0] == PACKAGE


class Room:
    """Memory for sealed copies of a model, used again for the next party's: asking for it anew costs more than copying.

    Within one party's work no room is used twice, because a method may make several answers and return any of them.
    """

    def __init__(self) -> None:
        self._free, self._used = list[Tensors](), list[Tensors]()

    def next_party(self) -> None:
        """The answers so far have been read."""
        self._free += self._used
        self._used.clear()

    def copy(self, tensors: Tensors) -> Tensors:
        """A copy on the CPU."""
        fitting = (room for room in self._free if layout(room) == layout(tensors))
        room = next(fitting, None)
        if room is None:
            room = pack_flat(tensors, "cpu")
        else:
            self._free = [other for other in self._free if other is not room]
            copy(room, tensors)
        self._used.append(room)
        return room


class Answer:
    """What leaves a party: made by `Party.answer` and sealed from then on. Reading a group gives a copy."""

    __slots__ = ("_statistics", "_tensors", "maker")

    def __init__(self, maker: object, tensors: Mapping[str, Tensors], statistics: Mapping[str, float]) -> None:
        self.maker = maker
        """The party, in the exchange that it is an answer to."""
        self._tensors = {group: own for group, own in tensors.items() if own}
        self._statistics = {name: float(value) for name, value in statistics.items()}

    def __getitem__(self, group: str) -> Tensors:
        return pack_flat(self._tensors[group])

    @property
    def statistics(self) -> dict[str, float]:
        """A copy of the numbers."""
        return dict(self._statistics)

    def more(self, tensors: Mapping[str, Tensors] | None = None, **statistics: float) -> Answer:
        """The same answer with groups and numbers added; what is sealed in it stays as it is."""
        added, known = dict(tensors or {}), (*self._tensors, *self._statistics)
        for name in (*added, *statistics):
            if name in known:
                raise FedVisageError(f"the answer already holds '{name}', which is sealed: make one answer of it all")
        return Answer(self.maker, self._tensors | sealed(added), self._statistics | statistics)

    def parcel(self) -> Parcel:
        """The answer as the core sends it."""
        return Parcel(dict(self._tensors), dict(self._statistics))


def sealed(groups: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Copies on the CPU that later work does not touch."""
    return {group: pack_flat(tensors, "cpu") for group, tensors in groups.items() if tensors}


class Lent(Mapping[str, Tensors]):
    """Groups of tensors that others use as well: looking at one gives a copy, always the same one."""

    def __init__(self, groups: Mapping[str, Tensors]) -> None:
        self._groups, self._copies = groups, dict[str, Tensors]()

    def __getitem__(self, group: str) -> Tensors:
        if group not in self._copies:
            self._copies[group] = pack_flat(self._groups[group])
        return self._copies[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def for_loading(self, group: str) -> Mapping[str, Tensor]:
        """A group to copy values from, and for nothing else: the reader's copy if there is one."""
        return self._copies.get(group) or self._groups.get(group, {})


def lend(parcel: Parcel) -> Parcel:
    """A parcel whose tensors are lent."""
    lent = Lent(parcel.tensors)
    return Parcel(lent, dict(parcel.statistics), parcel.stamp, parcel.generation)  # type: ignore[arg-type]


def to_load(parcel: Parcel, group: str) -> Mapping[str, Tensor]:
    """A group of a parcel to copy values from, without a copy in between."""
    tensors = parcel.tensors
    return tensors.for_loading(group) if isinstance(tensors, Lent) else tensors.get(group, {})
