"""Random numbers as a pure function of integer keys: no state, no order, the same on every machine.

splitmix64 (Steele, Lea & Flood, OOPSLA 2014) mixes the keys and the number of the draw. Only exact arithmetic
follows, so that a draw has the same bits alone, in a batch, and on any CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating[Any]]

_SQRT3 = 1.7320508075688772
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: each bit of the key changes about half the bits of the answer."""
    key = (key ^ (key >> np.uint64(30))) * _FIRST
    key = (key ^ (key >> np.uint64(27))) * _SECOND
    return key ^ (key >> np.uint64(31))


class Draws:
    """A sequence of draws for each of n keys; every key is a tuple of integers, given column by column."""

    def __init__(self, *columns: NDArray[np.int64]) -> None:
        state = np.zeros(np.broadcast_shapes(*(column.shape for column in columns)), np.uint64)
        for column in columns:
            state = mix((state ^ column.astype(np.uint64)) + _GOLDEN)
        self._state = state
        self._drawn = 0

    def _bits(self) -> NDArray[np.uint64]:
        self._drawn += 1
        return mix(self._state + np.array([self._drawn], np.uint64) * _GOLDEN)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Values:
        """Evenly spread over [low, high)."""
        return low + (high - low) * ((self._bits() >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> Values:
        """Nearly Gaussian (the sum of four uniforms), never beyond 3.47 deviations: faces stay faces."""
        bits = self._bits()
        total: Values = np.zeros(bits.shape, np.float64)
        for shift in (0, 16, 32, 48):
            total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64)
        return mean + (deviation * _SQRT3) * ((total + 2.0) / 65536.0 - 2.0)

    def chance(self, probability: float | Values) -> Values:
        """1.0 with this probability, else 0.0."""
        return (self.uniform() < probability).astype(np.float64)
