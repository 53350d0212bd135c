"""What crosses between server and party: a parcel of tensors in named groups, numbers, and a stamp.

Every tensor belongs to exactly one group. A method declares, per phase, which groups go down and come up; a party's
policy, the ledger and the privacy table speak in the same words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fedvisage.core.codec import flatten, neighbours, pack, unpack
from fedvisage.core.flat import Layout, is_flat

BACKBONE = "backbone"
BUFFERS = "buffers"
PRIVATE_EMBEDDINGS = "class_embeddings.private"
PUBLIC_EMBEDDINGS = "class_embeddings.public"
IDENTITY_TOKENS = "identity_tokens"
OPTIMISER = "optimiser"
CENTRES = "centres"
STATISTICS = "statistics"
PERSONAL = "personal"

EMBEDDINGS = "class_embeddings"
"""In a party's state: the class embeddings of its own people (C, d)."""

GROUPS: Mapping[str, str] = {
    BACKBONE: "parameters of the network that turns an image into an embedding",
    BUFFERS: "BatchNorm running means and variances",
    PRIVATE_EMBEDDINGS: "class embeddings of a party's own people: face templates in all but name",
    PUBLIC_EMBEDDINGS: "class embeddings of public people",
    IDENTITY_TOKENS: "keyed hashes of people's names, by which the server sees who is at several parties",
    OPTIMISER: "momentum, control variates and other optimiser state",
    CENTRES: "sums of people's mean embeddings, with how many people: near to templates where they are few",
    STATISTICS: "named numbers: counts, losses, scores",
    PERSONAL: "a party's own branch or model; it never leaves",
}

Tensors = dict[str, Tensor]
"""Tensors of one group by name."""


class Stamp(NamedTuple):
    """Which exchange a parcel belongs to.

    `repeat` counts the exchanges of one phase and round, `attempt` tells a try after an interruption from the first.
    """

    round: int
    phase: str
    attempt: int
    repeat: int = 0

    def __str__(self) -> str:
        return f"{self.round:06d}.{self.phase}.{self.repeat}.{self.attempt}"


UNSTAMPED = Stamp(0, "", 0)


@dataclass(slots=True)
class Parcel:
    """Tensors by group and name, numbers by name, and the stamp that the federation puts on it."""

    tensors: dict[str, Tensors] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    stamp: Stamp = UNSTAMPED
    generation: str = ""
    """Downward: the party state to start from (the last one accepted). Upward: the one just stored, if any."""
    rest: Callable[[], None] | None = None
    """Lets go of the memory behind its tensors, which come back from a file when they are looked at again.

    Where it is given, they stay as they are for as long as somebody holds them; else whoever keeps them copies them.
    """

    def __getitem__(self, group: str) -> Tensors:
        return self.tensors[group]

    def get(self, group: str) -> Tensors:
        """The tensors of a group, none if it is absent."""
        return self.tensors.get(group, {})

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and numbers."""
        return sum(map(group_bytes, self.tensors.values())) + 8 * len(self.statistics)


def group_bytes(tensors: Tensors) -> int:
    """Bytes of a group."""
    if is_flat(tensors):
        return tensors.vector.nbytes
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def layout_bytes(shapes: Layout) -> int:
    """Bytes that tensors of this layout take."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def pieces(parcel: Parcel, groups: Iterable[str] | None = None) -> list[bytes | memoryview]:
    """A parcel (or only some of its groups) as bytes in pieces, which look into its tensors."""
    chosen = {name: parcel.tensors[name] for name in (parcel.tensors if groups is None else groups)}
    tensors, rest = flatten(chosen)
    head = {"statistics": parcel.statistics, "stamp": parcel.stamp, "generation": parcel.generation, "tensors": rest}
    return pack(tensors, {"parcel": json.dumps(head)})


def encode(parcel: Parcel, groups: Iterable[str] | None = None) -> bytes:
    """A parcel (or only some of its groups) as bytes."""
    return b"".join(pieces(parcel, groups))


def decode(buffer: bytearray | memoryview) -> Parcel:
    """The parcel in `buffer`; a ValueError says what is wrong with it. Judging its values is the guard's work."""
    tensors, metadata = unpack(buffer)
    try:
        head = json.loads(metadata["parcel"])
        shape: dict[str, dict[str, Any]] = head["tensors"]
        return Parcel(
            {group: neighbours({name: tensors[e["$"]] for name, e in names.items()}) for group, names in shape.items()},
            {str(name): float(value) for name, value in head["statistics"].items()},
            _stamp(*head["stamp"]),
            str(head["generation"]),
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a parcel: {type(error).__name__}: {error}") from error


def _stamp(round: Any, phase: Any, attempt: Any, repeat: Any) -> Stamp:
    return Stamp(int(round), str(phase), int(attempt), int(repeat))


def shared_groups(parcels: Mapping[str, Parcel]) -> dict[str, Tensors]:
    """Groups that all parcels carry as the very same object."""
    first = next(iter(parcels.values()), Parcel())
    return {
        group: tensors
        for group, tensors in first.tensors.items()
        if all(parcel.tensors.get(group) is tensors for parcel in parcels.values())
    }
