"""Errors that a user can act on: one line, what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

DIVERGED = "training diverged"
NOT_FINITE = "not finite"
TOO_LARGE = "too large to measure"
BEYOND = "beyond the bound"


class FedVisageError(Exception):
    """A mistake or a fault the user can do something about; the command line prints it as one line and exits with 2.

    One line it is, whatever a damaged file or a library's error puts into it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class Diverged(FedVisageError):
    """A run whose training left all bounds: begun again it would end the same way."""


def tells_divergence(reason: str) -> bool:
    """Whether a party does not count because its training left all bounds."""
    return any(words in reason for words in (DIVERGED, NOT_FINITE, TOO_LARGE, BEYOND))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the known word closest to `name`, or all of them when none is close."""
    known = sorted(known)
    if not known:
        return "there are none"
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
