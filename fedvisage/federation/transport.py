"""How parcels travel: one interface, of which the in-process transport and the real-hosts transport are two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedvisage.core.errors import Kind
from fedvisage.core.parcel import Parcel


@dataclass(frozen=True)
class Failure:
    """A party that gave no answer, and why; `detail` is for the log."""

    reason: str
    detail: str = ""
    kind: Kind = Kind.FAILED


class Transport(Protocol):
    """Delivers parcels and brings answers back as they arrive."""

    def exchange(
        self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]] = ()
    ) -> Iterator[tuple[str, Parcel | Failure]]:
        """Send each party its parcel; yield answers. An answer's tensors are valid until the next one is asked for.

        `beside` is for other parties, each time the same ones, meanwhile: parcels are taken from it as soon as those
        before have been answered, and all of them before this ends.
        """
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...
