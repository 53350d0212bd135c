"""Random streams derived from names, so that no result depends on who drew before.

Every draw belongs to a path such as (run seed, round, party, purpose). Two different paths give independent
generators; the same path gives the same numbers in any process, in any order. There are no global seeds.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

Key = str | int


class Streams:
    """A place in the tree of random streams; `numpy` and `torch` make the generator of a purpose below it."""

    __slots__ = ("path",)

    def __init__(self, *path: Key) -> None:
        self.path = path

    def child(self, *path: Key) -> Streams:
        """The place `path` further down."""
        return Streams(*self.path, *path)

    def bits(self, *purpose: Key) -> int:
        """128 bits that name this purpose, and no other."""
        keys = (f"{type(key).__name__}:{key}".replace("\x1f", "\x1f\x1f") for key in (*self.path, *purpose))
        text = "\x1f".join(keys)
        return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little")

    def numpy(self, *purpose: Key) -> np.random.Generator:
        """A numpy generator for this purpose."""
        return np.random.Generator(np.random.Philox(key=self.bits(*purpose)))

    def torch(self, *purpose: Key) -> torch.Generator:
        """A CPU torch generator for this purpose."""
        return torch.Generator().manual_seed(self.bits(*purpose) & (2**63 - 1))
