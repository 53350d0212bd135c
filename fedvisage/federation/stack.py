"""Answers kept one by one for rules that need them so: vectors in files, of which a few megabytes are in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.core.flat import Layout, columns, in_order, layout
from fedvisage.core.parcel import Tensors
from fedvisage.core.rule import Block

NOTHING = torch.empty(0)
BLOCK_BYTES = 8 << 20
"""Of all vectors together that are in memory at a time."""


class Stack:
    """Vectors of one length: the groups of each answer side by side, in single precision unless one holds doubles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layouts: dict[str, Layout] = {}
        self._files: dict[str, Path] = {}
        self._order: Sequence[str] = ()
        self.size = 0
        self.kind: np.dtype[Any] = np.dtype(np.float32)

    def add(self, party: str, groups: Mapping[str, Tensors], rest: Callable[[], None] | None = None) -> None:
        """Write an answer down."""
        if not self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._layouts = {group: dict(layout(own)) for group, own in groups.items()}
            kinds = [kind for shapes in self._layouts.values() for _, kind in shapes.values()]
            self.kind = np.dtype(np.float32 if all(kind == torch.float32 for kind in kinds) else np.float64)
        path = self._folder / f"{len(self._files):06d}.numbers"
        with path.open("wb") as file:
            for group, shapes in self._layouts.items():
                for part in columns(in_order(groups[group], dict.fromkeys(shapes, NOTHING)))[0]:
                    part.cpu().numpy().astype(self.kind, copy=False).tofile(file)
                    if rest:
                        rest()
        self._files[party] = path
        self.size = path.stat().st_size // self.kind.itemsize

    @property
    def parties(self) -> Sequence[str]:
        """Whose vectors there are."""
        return tuple(self._files)

    def keep(self, order: Sequence[str]) -> Stack:
        """The vectors of these parties, in this order."""
        self._order = order
        return self

    def __len__(self) -> int:
        return len(self._order)

    def block(self, start: int, stop: int) -> Block:
        """See `core.rule.Vectors`."""
        found = np.empty((len(self), stop - start), self.kind)
        for row, party in zip(found, self._order, strict=True):
            with self._files[party].open("rb", buffering=0) as file:
                file.seek(start * self.kind.itemsize)
                file.readinto(memoryview(row).cast("B"))
        return found

    def by_coordinate(self, reduce: Callable[[Block], Block]) -> Tensor:
        """See `core.rule.Vectors`."""
        whole = torch.empty(self.size, dtype=torch.float32 if self.kind == np.float32 else torch.float64)
        step = max(1, BLOCK_BYTES // self.kind.itemsize // max(1, len(self)))
        for start in range(0, self.size, step):
            stop = min(start + step, self.size)
            whole[start:stop] = torch.from_numpy(reduce(self.block(start, stop)))
        return whole

    def groups(self, vector: Tensor) -> dict[str, Tensors]:
        """A vector as groups of tensors again."""
        found: dict[str, Tensors] = {}
        start = 0
        for group, shapes in self._layouts.items():
            found[group] = {}
            for name, (shape, kind) in shapes.items():
                count = torch.Size(shape).numel()
                found[group][name] = vector[start : start + count].view(shape).to(kind)
                start += count
        return found

    def forget(self) -> None:
        """Remove the files."""
        for path in self._files.values():
            path.unlink(missing_ok=True)
