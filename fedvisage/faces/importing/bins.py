"""InsightFace's `.bin` verification sets: pickled lists of encoded images and of whether each pair shows one person.

A pickle can run any code, so this is no unpickler: it knows the few instructions that lists, tuples, bytes and
booleans are made of and refuses every other one. Nothing is looked up, called or built.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import UNLABELLED, Source
from fedvisage.faces.lists import Listing, PairList
from fedvisage.faces.records import Indices

MOST = 16_000_000_000


class _Mark:
    """Where a list or tuple began."""


_MARK = _Mark()


class _Reader:
    """Follows the instructions of one pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def value(self) -> Any:
        """What the pickle holds."""
        while True:
            code = bytes(self.take(1))
            if code == b".":
                return self.pop()
            step = _STEPS.get(code)
            if step is None:
                raise FedVisageError(f"instruction {code!r} at byte {self.at - 1:,} makes more than lists and bytes")
            step(self)

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        if count > len(self.data) - self.at:
            raise FedVisageError(f"it ends at byte {len(self.data):,}, in the middle of something")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, size: int) -> int:
        """The next bytes as a number."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        """The bytes up to the end of a line."""
        end = bytes(self.data[self.at : self.at + 32]).find(b"\n")
        if end < 0:
            raise FedVisageError(f"a line at byte {self.at:,} does not end")
        return bytes(self.take(end + 1))[:-1]

    def push(self, value: Any) -> None:
        """Onto the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """From the stack."""
        if not self.stack or self.stack[-1] is _MARK:
            raise FedVisageError(f"something is missing before byte {self.at:,}")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Everything above the last mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                values = self.stack[place + 1 :]
                del self.stack[place:]
                return values
        raise FedVisageError(f"a mark is missing before byte {self.at:,}")

    def extend(self, values: list[Any]) -> None:
        """Add to the list on top of the stack."""
        target = self.pop()
        if not isinstance(target, list) or any(value is target for value in values):
            raise FedVisageError(f"something is added to no list at byte {self.at:,}")
        target.extend(values)
        self.push(target)

    def keep(self, key: int) -> None:
        """Remember the top of the stack."""
        self.memo[key] = self.pop()
        self.push(self.memo[key])

    def recall(self, key: int) -> None:
        """Put something remembered on the stack."""
        if key not in self.memo:
            raise FedVisageError(f"something is recalled at byte {self.at:,} that was never kept")
        self.push(self.memo[key])

    def old_integer(self) -> None:
        """A boolean or a small number as text."""
        text = self.line()
        if text not in (b"00", b"01", b"0", b"1"):
            raise FedVisageError(f"{text!r} at byte {self.at:,} is no boolean")
        self.push(text in (b"01", b"1"))


def _bytes(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(bytes(reader.take(reader.number(size))))


def _tuple(count: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(tuple([reader.pop() for _ in range(count)][::-1]))


_STEPS: dict[bytes, Callable[[_Reader], Any]] = {
    b"\x80": lambda r: r.take(1),  # protocol
    b"\x95": lambda r: r.take(8),  # frame
    b"]": lambda r: r.push([]),
    b"(": lambda r: r.push(_MARK),
    b"l": lambda r: r.push(r.since_mark()),
    b"t": lambda r: r.push(tuple(r.since_mark())),
    b")": lambda r: r.push(()),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"a": lambda r: r.extend([r.pop()]),
    b"e": lambda r: r.extend(r.since_mark()),
    b"C": _bytes(1),
    b"B": _bytes(4),
    b"\x8e": _bytes(8),
    b"U": _bytes(1),  # Python 2's bytes
    b"T": _bytes(4),
    b"\x88": lambda r: r.push(True),
    b"\x89": lambda r: r.push(False),
    b"I": _Reader.old_integer,
    b"K": lambda r: r.push(r.number(1)),
    b"M": lambda r: r.push(r.number(2)),
    b"J": lambda r: r.push(r.number(4)),
    b"q": lambda r: r.keep(r.number(1)),
    b"r": lambda r: r.keep(r.number(4)),
    b"\x94": lambda r: r.keep(len(r.memo)),
    b"h": lambda r: r.recall(r.number(1)),
    b"j": lambda r: r.recall(r.number(4)),
}


def parse_bin(data: bytes) -> tuple[list[bytes], list[bool]]:
    """The encoded images and whether each pair of neighbours shows one person."""
    value = _Reader(data).value()
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise FedVisageError("it does not hold a list of images and a list of answers")
    images, same = value
    if not isinstance(images, list) or not all(isinstance(image, bytes) for image in images):
        raise FedVisageError("its first part is not a list of encoded images")
    if not isinstance(same, list) or not all(type(answer) in (bool, int) and answer in (0, 1) for answer in same):
        raise FedVisageError("its second part is not a list of booleans")
    if len(images) != 2 * len(same):
        raise FedVisageError(f"it holds {len(images):,} images for {len(same):,} pairs")
    return images, [bool(answer) for answer in same]


def read_bin(path: Path) -> Source:
    """A source of the images of a `.bin` file, with its pairs as the list `pairs`."""
    try:
        if path.stat().st_size > MOST:
            raise FedVisageError(f"{path} is larger than {MOST:,} bytes")
        images, same = parse_bin(path.read_bytes())
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from None
    except FedVisageError as error:
        raise FedVisageError(f"{path} is no verification set: {error}") from None

    def lists(kept: Indices) -> dict[str, Listing]:
        numbers = np.arange(len(same))
        return {"pairs": pair_list(kept, 2 * numbers, 2 * numbers + 1, np.array(same, dtype=np.int64), notes=notes)}

    labels = np.zeros(len(images), np.int64)
    source = Source((UNLABELLED,), labels, lambda n: images[n], lambda n: f"{path.name}, image {n}", lists=lists)
    notes = source.notes
    return source


def pair_list(
    kept: Indices, left: Indices, right: Indices, same: Indices, fold: Indices | None = None, *, notes: list[str]
) -> PairList:
    """Pairs of source images as pairs of the set's images; ten folds in a row where nothing else is said.

    A negative number in `left` or `right` is an image that is not in the source.
    """
    if fold is None:
        count = len(left)
        fold = 1 + np.arange(count) * 10 // count if count and count % 10 == 0 else np.zeros(count, np.int64)
    padded = np.append(kept, -1)
    left, right = padded[left], padded[right]
    there = (left >= 0) & (right >= 0)
    if not there.all():
        notes.append(f"{int((~there).sum()):,} of {len(there):,} pairs are left out: their images are not there")
    return PairList(left[there], right[there], same[there], fold[there])
