"""What crosses between the run and the sites: parcels as bytes under a few names, and failures as text.

A task's data holds the parcel in two parts: what all parties of the exchange receive alike, encoded once, and what is
the party's own. A result holds an encoded parcel, or says why there is none. Few bytes travel within the message; many
are a `Body`, which the receiver fetches block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Parcel, Tensors, decode
from fedvisage.federation.nvflare.body import Body

PREPARE = "prepare"
"""The task that tells a party which run it is asked for; every other task is named after the method's phase."""
SHARED, OWN, ANSWER, FAILED = "shared", "own", "answer", "failed"
LONGEST_REASON = 500


Content = bytes | Body
"""Bytes as NVFlare carries them."""
FEW = 1 << 20
"""Bytes that travel within a message."""


def as_content(pieces: Sequence[bytes | memoryview]) -> Content:
    """Pieces, one after the other, as they travel."""
    if total(pieces) <= FEW:
        return b"".join(pieces)
    joined = bytearray().join(pieces)
    return Body(len(joined), memoryview(joined))


def look(content: object) -> bytearray | memoryview:
    """The bytes that came over the wire, to look into; a ValueError where they are something else."""
    if isinstance(content, Body):
        return content.whole()
    if isinstance(content, bytes):
        return bytearray(content)
    raise ValueError(f"{type(content).__name__} in place of bytes")


def join_parts(shared: object, own: object) -> Parcel:
    """The parcel that was sent in two parts."""
    parcel = decode(look(own))
    first = look(shared)
    if len(first):
        groups = decode(first).tensors
        parcel.tensors = groups | parcel.tensors
    return parcel


def shared_groups(parcels: Mapping[str, Parcel]) -> dict[str, Tensors]:
    """Groups that all parcels carry as the very same object."""
    first = next(iter(parcels.values()), Parcel())
    return {
        group: tensors
        for group, tensors in first.tensors.items()
        if all(parcel.tensors.get(group) is tensors for parcel in parcels.values())
    }


def own_groups(parcel: Parcel, shared: Mapping[str, Tensors]) -> list[str]:
    """Groups of a parcel that are not shared."""
    return [group for group, tensors in parcel.tensors.items() if shared.get(group) is not tensors]


def reason_of(error: BaseException) -> str:
    """What the server is told of an exception at a party: one line of it, never a traceback."""
    text = str(error) if isinstance(error, FedVisageError) else f"{type(error).__name__}: {error}"
    return (text.splitlines()[0] if text else type(error).__name__)[:LONGEST_REASON]


def total(pieces: Iterable[bytes | memoryview]) -> int:
    """Bytes of some pieces."""
    return sum(memoryview(piece).nbytes for piece in pieces)
