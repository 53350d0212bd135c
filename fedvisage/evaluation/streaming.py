"""What the large protocols are made of: embeddings read in blocks, and the largest of more scores than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Floats

SLACK = 4096  # values held beyond twice those wanted before they are sorted out


class Rows(Protocol):
    """Embeddings (N, d) that are read a slice at a time, such as those of an embeddings file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, d)."""
        ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


Embeddings = ArrayLike | Rows
"""An array, what numpy makes one of, or `Rows`."""


def rows(name: str, values: Embeddings) -> Rows:
    """`values` as something to read slices from, with at least one row and one column."""
    if isinstance(values, np.ndarray) or not hasattr(values, "shape"):
        return checks.embeddings(name, cast(ArrayLike, values))
    shape = tuple(values.shape)
    if len(shape) != 2 or 0 in shape:
        raise FedVisageError(f"{name} must hold at least one embedding of one dimension, got shape {shape}")
    return cast(Rows, values)


def same_width(first: str, one: Rows, second: str, other: Rows) -> None:
    """Refuse embeddings of different networks."""
    if one.shape[1] != other.shape[1]:
        raise FedVisageError(
            f"{first} have {one.shape[1]} dimensions and {second} {other.shape[1]}: they come from different models"
        )


def precision(dtype: DTypeLike) -> np.dtype[Any]:
    """float32 or float64, which scores are computed in."""
    kind = np.dtype(dtype)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise FedVisageError(f"dtype must be float32 or float64, got {kind}")
    return kind


class UnitBlocks:
    """Embeddings brought to unit length a block at a time, checked when all have been seen.

    A block with a zero vector or NaN in it gives NaN scores; iteration ends with an error that counts them all.
    """

    def __init__(self, name: str, values: Embeddings, block: int, dtype: DTypeLike) -> None:
        if block < 1:
            raise FedVisageError(f"block must be at least 1, got {block}")
        self.name, self.values, self.block, self.dtype = name, rows(name, values), block, precision(dtype)

    def __len__(self) -> int:
        return self.values.shape[0]

    def __iter__(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Where each block lies, and its rows at unit length."""
        length = np.empty(len(self))
        with np.errstate(all="ignore"):
            for start in range(0, len(self), self.block):
                place = slice(start, min(start + self.block, len(self)))
                unit, length[place] = unit_rows_of(self.values[place], self.dtype)
                yield place, unit
        checks.check_lengths(self.name, length)

    def all(self) -> NDArray[Any]:
        """Every row at unit length, (N, d)."""
        whole = np.empty((len(self), self.values.shape[1]), self.dtype)
        for place, unit in self:
            whole[place] = unit
        return whole


def unit_rows_of(block: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], Floats]:
    """Rows (n, d) at unit length in `dtype`, and their lengths (n,); a few at a time, so that they stay in cache."""
    unit, length = np.empty(block.shape, dtype), np.empty(len(block))
    single = dtype == np.float32 and block.dtype == np.float32
    for start in range(0, len(block), checks.ROWS):
        part = slice(start, start + checks.ROWS)
        if single:
            some = np.sqrt(np.einsum("ij,ij->i", block[part], block[part]))
            np.divide(block[part], some[:, None], out=unit[part])
            length[part] = some
        else:
            unit[part], length[part] = checks.unit_block(block[part])
    return unit, length


class Largest:
    """The `size` largest of the values added so far.

    `keep_down_to` may ask for more: given the values held and the size-th largest of them, it names the least to keep.
    """

    def __init__(self, size: int, keep_down_to: Callable[[NDArray[Any], float], float] | None = None) -> None:
        self.size, self.keep_down_to = size, keep_down_to
        self.parts: list[NDArray[Any]] = []
        self.held = 0
        self.limit = 2 * size + SLACK
        self.bound = -np.inf if size else np.inf  # `size` values at least this large are held: only larger ones matter

    def add(self, values: NDArray[Any]) -> None:
        """Take in values (n,)."""
        values = values[values > self.bound]
        if not values.size:
            return
        self.parts.append(values)
        self.held += values.size
        if self.held >= self.limit:
            self._trim()

    def _trim(self) -> None:
        kept = np.concatenate(self.parts) if self.parts else np.empty(0)
        if kept.size > self.size:
            kept = np.partition(kept, kept.size - self.size)
            self.bound = kept[kept.size - self.size]
            if self.keep_down_to is None:
                kept = kept[kept.size - self.size :]
            else:
                self.bound = self.keep_down_to(kept, float(self.bound))
                kept = kept[kept >= self.bound]
        self.parts, self.held = [kept], kept.size
        self.limit = 2 * kept.size + SLACK

    def descending(self) -> Floats:
        """The values held, largest first, at least `size` of them where so many were added."""
        self._trim()
        ordered: Floats = np.sort(self.parts[0])[::-1].astype(np.float64)
        return ordered
