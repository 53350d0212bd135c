"""Embeddings on disk: one safetensors file with embeddings (N, d), identities (N,) and what they were made with.

Written and read in blocks, so that a million embeddings need no more memory than a few.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.codec import HEADER_LIMIT, write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation._checks import Ints

KEY = "fedvisage-embeddings"
FORMAT = 1


@dataclass(frozen=True)
class About:
    """What embeddings were made with: the model's name and digest, of which faces, and with mirrored images or not."""

    model: str
    digest: str
    flip: bool
    faces: str = ""
    faces_digest: str = ""
    names: tuple[str, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict)


def write_embeddings(
    path: Path, blocks: Iterable[NDArray[np.float32]], shape: tuple[int, int], labels: Ints, about: About
) -> None:
    """Write embeddings given in blocks whose rows add up to `shape` (N, d); the file is whole or not there."""
    if labels.shape != (shape[0],):
        raise FedVisageError(f"{labels.size} labels for {shape[0]} embeddings")
    text = {"format": FORMAT, "model": about.model, "digest": about.digest, "flip": about.flip, "faces": about.faces}
    text |= {"faces_digest": about.faces_digest, "names": list(about.names), "more": dict(about.more)}
    middle, end = 8 * shape[0], 8 * shape[0] + 4 * shape[0] * shape[1]
    header = {
        "__metadata__": {KEY: json.dumps(text, sort_keys=True)},
        "labels": {"dtype": "I64", "shape": [shape[0]], "data_offsets": [0, middle]},
        "embeddings": {"dtype": "F32", "shape": list(shape), "data_offsets": [middle, end]},
    }
    start = json.dumps(header, separators=(",", ":")).encode()
    start += b" " * (-len(start) % 8)

    def pieces() -> Iterator[bytes]:
        yield len(start).to_bytes(8, "little") + start
        yield labels.astype("<i8").tobytes()
        seen = 0
        for block in blocks:
            seen += len(block)
            if block.shape[1:] != shape[1:] or seen > shape[0]:
                raise FedVisageError(f"a block of embeddings {block.shape} does not fit into {shape}")
            yield np.ascontiguousarray(block, "<f4").tobytes()
        if seen != shape[0]:
            raise FedVisageError(f"{seen} embeddings were made where {shape[0]} were promised")

    write_atomically(path, pieces())


class EmbeddingsFile:
    """An embeddings file, read a slice at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise FedVisageError(f"cannot read the embeddings {path}: {error.strerror}") from None
        try:
            header, start = self._header()
            table = json.loads(header["__metadata__"][KEY])
            if table["format"] != FORMAT:
                raise FedVisageError(f"{path} has format {table['format']}; this version reads format {FORMAT}")
            names = tuple(str(name) for name in table["names"])
            made, faces = (str(table["model"]), str(table["digest"])), (str(table["faces"]), str(table["faces_digest"]))
            self.about = About(*made, bool(table["flip"]), *faces, names, dict(table["more"]))
            (count,), first = self._entry(header, "labels", "I64", 1, start)
            self.shape, self._offset = self._entry(header, "embeddings", "F32", 2, start)
            if count != self.shape[0] or os.fstat(self._file).st_size < self._offset + 4 * count * self.shape[1]:
                raise ValueError("it is cut short")
            self.labels = np.frombuffer(self._bytes(first, 8 * count), "<i8").astype(np.int64)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise FedVisageError(f"{path} is no embeddings file: `fedvisage embed` writes them") from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> NDArray[np.float32]:
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise FedVisageError("embeddings are read in ascending order, all of a range")
        width = 4 * self.shape[1]
        count = max(0, stop - start)
        data = self._bytes(self._offset + start * width, count * width)
        return np.frombuffer(data, "<f4").reshape(count, self.shape[1])

    def _header(self) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(self._bytes(0, 8), "little")
        if length > min(HEADER_LIMIT, os.fstat(self._file).st_size):
            raise ValueError("the header runs past the end")
        return dict(json.loads(self._bytes(8, length))), 8 + length

    @staticmethod
    def _entry(header: Any, name: str, kind: str, axes: int, start: int) -> tuple[tuple[int, ...], int]:
        entry = header[name]
        shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
        size = int(np.prod([*shape, 8 if kind == "I64" else 4], dtype=object))
        whole = all(type(n) is int and 0 <= n < 2**48 for n in (*shape, first, last))
        if entry["dtype"] != kind or len(shape) != axes or not whole or last - first != size:
            raise ValueError(f"'{name}' is not {kind}")
        return shape, start + first

    def _bytes(self, offset: int, count: int) -> bytearray:
        buffer = bytearray(count)
        view, done = memoryview(buffer), 0
        while done < count:
            got = os.preadv(self._file, [view[done:]], offset + done)
            if not got:
                raise FedVisageError(f"{self.path} is cut short")
            done += got
        return buffer


def is_embeddings_file(path: Path) -> bool:
    """Whether a file says of itself that it holds embeddings; only its header is read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return KEY in dict(json.loads(file.read(min(length, HEADER_LIMIT)))).get("__metadata__", {})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
