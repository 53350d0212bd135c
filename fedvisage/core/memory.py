"""Memory that nobody uses any more goes back to the operating system."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Ask the C library to let go of what it holds for later: making a network leaves gaps as large as the network."""
    with suppress(OSError, AttributeError):  # other C libraries than GNU's
        ctypes.CDLL(None).malloc_trim(0)
