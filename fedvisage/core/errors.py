"""Errors that a user can act on: one line, what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar

LONGEST_NAME = 80


class Kind(StrEnum):
    """Why an answer does not count. Outcomes are decided by the kind, never by the words that explain it."""

    NOT_ASKED = "not-asked"
    REPEATED = "repeated"
    STALE = "stale"
    """It answers an earlier exchange; the answer that was asked for may still come."""
    MALFORMED = "malformed"
    """Other groups, names, shapes or dtypes than asked for, or tensors that are no plain numbers."""
    OVERSIZE = "oversize"
    COUNT = "count"
    NUMBER = "number"
    """A number that is missing, not declared or beyond its range."""
    NEGATIVE = "negative"
    """A running variance below zero."""
    NOT_FINITE = "not-finite"
    BEYOND = "beyond-bound"
    """An update or a value beyond its bound."""
    WEIGHT = "weight"
    FAILED = "failed"
    """The party reported a failure."""
    DIVERGED = "diverged"
    """The party's training diverged."""
    POLICY = "policy"
    """The party's policy forbids the answer."""
    NO_ANSWER = "no-answer"

    @property
    def tells_divergence(self) -> bool:
        """Whether training has left all bounds, so that another try would end the same way."""
        return self in (Kind.NOT_FINITE, Kind.BEYOND, Kind.DIVERGED)


class FedVisageError(Exception):
    """A mistake or a fault the user can do something about; the command line prints it as one line and exits with 2.

    One line it is, whatever a damaged file or a library's error puts into it.
    """

    kind: ClassVar[Kind] = Kind.FAILED
    """What the server counts it as where it keeps a party from answering."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class Diverged(FedVisageError):
    """A run whose training left all bounds: begun again it would end the same way."""

    kind: ClassVar[Kind] = Kind.DIVERGED


def kind_of(error: BaseException) -> Kind:
    """Return what the server counts an exception at a party as."""
    return error.kind if isinstance(error, FedVisageError) else Kind.FAILED


def reported_kind(value: object) -> Kind:
    """Return the kind of failure that a party reports; anything a party cannot know of is a plain failure."""
    return next((kind for kind in (Kind.DIVERGED, Kind.POLICY) if kind == value), Kind.FAILED)


def shortened(name: str) -> str:
    """Return a name that came from outside at a length that can be shown and written down."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}... ({len(name):,} characters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the known word closest to `name`, or all of them when none is close."""
    known = sorted(known)
    if not known:
        return "there are none"
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
