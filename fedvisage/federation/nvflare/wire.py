"""What crosses between the run and the sites: bytes under a few names, and failures as text.

A task's data holds a parcel in two parts (see `parts`). A result holds an encoded parcel, or says why there is none.
Few bytes travel within the message; many are a `Body`, which the receiver fetches block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedvisage.core.errors import FedVisageError
from fedvisage.federation.nvflare.body import Body

PREPARE = "prepare"
"""The task that tells a party which run it is asked for; every other task is named after the method's phase."""
SHARED, OWN, ANSWER, FAILED = "shared", "own", "answer", "failed"
KIND = "fedvisage-kind"
"""The header of a result without an answer that says what kind of failure it is."""
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


def reason_of(error: BaseException) -> str:
    """What the server is told of an exception at a party: one line of it, never a traceback."""
    text = str(error) if isinstance(error, FedVisageError) else f"{type(error).__name__}: {error}"
    return (text.splitlines()[0] if text else type(error).__name__)[:LONGEST_REASON]


def total(pieces: Iterable[bytes | memoryview]) -> int:
    """Bytes of some pieces."""
    return sum(memoryview(piece).nbytes for piece in pieces)
