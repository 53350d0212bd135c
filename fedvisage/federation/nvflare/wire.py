"""What crosses between the run and the sites: parcels as bytes under a few names, and failures as text.

A task's data holds the parcel in two parts: what all parties of the exchange receive alike, encoded once, and what is
the party's own. A result holds an encoded parcel, or says why there is none. Few bytes travel within the message; many
are cut into blocks, which NVFlare fetches one by one, so that neither side holds further copies of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Parcel, Tensors, decode

PREPARE = "prepare"
"""The task that tells a party which run it is asked for; every other task is named after the method's phase."""
SHARED, OWN, ANSWER, FAILED = "shared", "own", "answer", "failed"
LONGEST_REASON = 500


Content = bytes | list[NDArray[np.uint8]]
"""Bytes as NVFlare carries them."""
BLOCK = 2_000_000


def cut(payload: bytes | bytearray) -> Content:
    """Bytes for the wire: blocks that look into `payload`, or a copy where they are few."""
    if len(payload) <= BLOCK:
        return bytes(payload)
    whole = np.frombuffer(payload, dtype=np.uint8)
    return [whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK)]


def views(content: object) -> list[memoryview]:
    """The bytes that came over the wire, in pieces; a ValueError where they are something else."""
    if isinstance(content, bytes):
        return [memoryview(content)]
    if not isinstance(content, list) or not all(isinstance(block, np.ndarray) for block in content):
        raise ValueError(f"{type(content).__name__} in place of bytes")
    if any(block.dtype != np.uint8 or block.ndim != 1 for block in content):
        raise ValueError("blocks of something else than bytes")
    whole: list[Any] = [np.ascontiguousarray(block) for block in content]
    return [memoryview(block) for block in whole]


def join(content: object) -> bytearray:
    """The bytes that came over the wire, as one."""
    return bytearray().join(views(content))


def join_parts(shared: object, own: object) -> Parcel:
    """The parcel that was sent in two parts."""
    parcel = decode(join(own))
    first = join(shared)
    if first:
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
