"""Images as encoded records: millions of them behind an index of eight bytes each, decoded in threads when read.

`images.bin` is the records one after another and `offsets.npy` (N + 1,) uint64 is where each begins and the last ends.
Both are read in place with `pread`: opening a set looks at no image, resident memory does not grow with the set, and a
truncated file is an error instead of a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import MOST_BYTES, decode
from fedvisage.faces.npy import read_header

Indices = NDArray[np.int64]
Pixels = NDArray[np.uint8]

_IN_A_BATCH = 8
"""Images decoded by one thread in one go; fewer than two batches are decoded where they are asked for."""


BUFFER = 1 << 20
"""Bytes collected before they are written."""


def without_folder(where: str) -> str:
    """What to call a file in a message without telling where it is."""
    path = Path(where)
    return f"{path.name} of '{path.parent.name}'"


class EncodedImages:
    """The records of a folder."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        path, self.size = folder / "images.bin", size
        self._where = str(path)
        index = folder / "offsets.npy"
        try:
            shape, _, dtype, self._start, indexed = read_header(index)
            self._bytes = path.stat().st_size
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read images from {folder}: {error}") from None
        if len(shape) != 1 or shape[0] < 1 or dtype != np.dtype("<u8"):
            raise FedVisageError(f"{index} holds {dtype} of shape {shape}; expected uint64 (N + 1,)")
        self._count = shape[0] - 1
        if indexed < 8 * shape[0]:
            raise FedVisageError(f"{index} is truncated: it should know {self._count:,} images")
        self._index = os.open(index, os.O_RDONLY)
        self._file = os.open(path, os.O_RDONLY)
        if self._count and self._place(self._count - 1)[1] > self._bytes:
            raise FedVisageError(f"{self._where} is truncated: it should hold {self._count:,} images")

    def __del__(self) -> None:
        for name in ("_index", "_file"):
            if hasattr(self, name):
                os.close(getattr(self, name))

    def __len__(self) -> int:
        return self._count

    @cached_property
    def bare(self) -> EncodedImages:
        """The same records without their folder, where the labels lie."""
        twin = copy(self)
        twin._index, twin._file, twin._where = os.dup(self._index), os.dup(self._file), without_folder(self._where)
        return twin

    def record(self, index: int) -> bytes:
        """The encoded bytes of one image."""
        begin, end = self._place(index)
        if not 0 <= begin <= end <= self._bytes or end - begin > MOST_BYTES:
            raise FedVisageError(f"{self._where}: image {index} of {self._count:,} is not where the index says")
        data = os.pread(self._file, end - begin, begin)
        if len(data) != end - begin:
            raise FedVisageError(f"{self._where}: image {index} of {self._count:,} cannot be read")
        return data

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        out = np.empty((len(indices), *self.size, 3), dtype=np.uint8)

        def fill(start: int) -> None:
            for place in range(start, min(start + _IN_A_BATCH, len(indices))):
                out[place] = self._decoded(int(indices[place]))

        in_threads(fill, range(0, len(indices), _IN_A_BATCH))
        return out

    def _decoded(self, index: int) -> Pixels:
        try:
            pixels = decode(self.record(index))
        except FedVisageError as error:
            raise FedVisageError(f"{self._where}: image {index} of {self._count:,}: {error}") from None
        if pixels.shape[:2] != self.size:
            height, width = pixels.shape[:2]
            raise FedVisageError(f"{self._where}: image {index} is {width}x{height}, not {self.size[1]}x{self.size[0]}")
        return pixels

    def _place(self, index: int) -> tuple[int, int]:
        entry = os.pread(self._index, 16, self._start + 8 * index) if 0 <= index < self._count else b""
        if len(entry) != 16:
            raise FedVisageError(f"{self._where}: image {index} of {self._count:,} cannot be read")
        return int.from_bytes(entry[:8], "little"), int.from_bytes(entry[8:], "little")


class RecordWriter:
    """Writes records one after another; the index is written when it is closed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = (folder / "images.bin").open("wb", BUFFER)
        self._ends = bytearray(8)
        self._end = 0

    def add(self, data: bytes) -> None:
        """One more record."""
        self._file.write(data)
        self._end += len(data)
        self._ends += self._end.to_bytes(8, "little")

    def close(self) -> None:
        """Write the index."""
        self._file.close()
        np.save(self.folder / "offsets.npy", np.frombuffer(self._ends, dtype="<u8"))


def in_threads(work: Callable[[int], Any], items: Iterable[int], threads: int | None = None) -> None:
    """Do something for each item, on as many threads as there are cores; Pillow lets go of the interpreter lock."""
    items = list(items)
    count = min(threads or cores(), len(items))
    for _ in map(work, items) if count < 2 else _pool().map(work, items):
        pass


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
    return ThreadPoolExecutor(cores(), thread_name_prefix="decoding")
