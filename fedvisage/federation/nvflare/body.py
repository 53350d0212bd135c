"""Many bytes on their way: in memory at a party, in a file without a name at the server.

A model that passes through the server's processes is read and written there piece by piece. The file has no name, so it
goes with the last process that holds it, however that ends; the kernel keeps in memory what fits of it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile

LARGEST = 1 << 36
"""More bytes than this nobody sends."""


class Body:
    """Bytes that are read and written by position."""

    def __init__(self, size: int, buffer: memoryview | None = None, file: int = -1) -> None:
        """In `buffer`, or in the file of this descriptor, which is closed in the end."""
        self.size, self._buffer, self._file = size, buffer, file
        self._map: mmap.mmap | None = None
        if buffer is None:
            weakref.finalize(self, os.close, file)

    @staticmethod
    def room(size: int, folder: Path | None) -> Body:
        """Room for so many bytes: in a file of a folder, or in memory."""
        if not 0 < size <= LARGEST:
            raise ValueError(f"{size:,} bytes, where at most {LARGEST:,} are sent")
        return Body(size, memoryview(bytearray(size))) if folder is None else Body(size, file=_nameless(folder))

    @staticmethod
    def spooled(pieces: Iterable[bytes | memoryview], folder: Path) -> Body:
        """Pieces one after the other, in a file of a folder."""
        body, end = Body(0, file=_nameless(folder)), 0
        for piece in pieces:
            body.write(end, piece)
            end += memoryview(piece).nbytes
        body.size = end
        return body

    @property
    def file(self) -> int | None:
        """The file's descriptor; None in memory."""
        return self._file if self._buffer is None else None

    def read(self, start: int, count: int) -> bytes:
        """Some of the bytes."""
        if self._buffer is not None:
            return bytes(self._buffer[start : start + count])
        return os.pread(self._file, min(count, self.size - start), start)

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Put bytes in their place."""
        if self._buffer is not None:
            self._buffer[start : start + len(data)] = data
            return
        view = memoryview(data)
        while len(view):
            done = os.pwrite(self._file, view, start)
            view, start = view[done:], start + done

    def whole(self) -> memoryview:
        """All of them, to look into; what is changed there stays there."""
        if self._buffer is not None:
            return self._buffer
        if os.fstat(self._file).st_size < self.size:
            raise ValueError("shorter than it says")
        self._map = mmap.mmap(self._file, self.size, access=mmap.ACCESS_COPY)
        return memoryview(self._map)

    def rest(self) -> None:
        """Let go of the memory behind `whole`; whoever still looks into it finds the file's bytes again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _nameless(folder: Path) -> int:
    with TemporaryFile(dir=folder, buffering=0) as file:
        return os.dup(file.fileno())
