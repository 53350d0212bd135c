"""Lists, bytes and NumPy arrays out of a pickle, without unpickling: nothing in the file is looked up, called or built.

A pickle is a program that can run any code. This reader knows the instructions that put lists, tuples, bytes, text,
numbers and booleans together, and nine names: those under which Python and NumPy pickle bytes, arrays, dtypes and
scalars. Such a name is a word here, not an object. Where a pickle would call it, the arguments must have the one form
that Python or NumPy writes, and become plain data of no more bytes than the file has. Everything else is refused.
"""

from __future__ import annotations

import codecs
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError

_ITEM_BYTES = {f"{kind}{size}": size for kind in "iu" for size in (1, 2, 4, 8)} | {"b1": 1}
"""Bytes of an item of each dtype that is read: integers and booleans."""
_NAMES = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    *((module, name) for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""What may be named: by what Python and NumPy pickle arrays, scalars and bytes."""
_MOST_LINE = 64
"""Bytes of a line that holds a number or a name."""
_NUMBER = re.compile(rb"-?[0-9]{1,20}L?")


class _Mark:
    """Where a list or tuple began."""


_MARK = _Mark()


@dataclass(frozen=True)
class _Name:
    """A name that the pickle would look up."""

    name: str


@dataclass(frozen=True)
class _Kind:
    """A dtype."""

    code: str


@dataclass(eq=False, slots=True)
class Array:
    """An array of integers or booleans: its items in the order of memory, little-endian."""

    shape: tuple[int, ...] | None = None
    """None until the pickle says what is in it."""
    code: str = "u1"
    data: bytes = b""

    def numbers(self) -> NDArray[Any]:
        """The items in a row."""
        return np.frombuffer(self.data, np.dtype(self.code).newbyteorder("<"))


def read_pickle(data: bytes) -> Any:
    """Return what a pickle holds: lists, tuples, bytes, text, numbers, booleans and `Array`."""
    return _Reader(data).value()


class _Reader:
    """Follows the instructions of one pickle."""

    def __init__(self, data: bytes) -> None:
        self.whole, self.data = data, memoryview(data)
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.made = 0
        """Bytes that were made from text."""

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

    def number(self, size: int, signed: bool = False) -> int:
        """The next bytes as a number."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self, most: int = _MOST_LINE) -> bytes:
        """The bytes up to the end of a line."""
        end = self.whole.find(b"\n", self.at, self.at + most)
        if end < 0:
            raise FedVisageError(f"a line at byte {self.at:,} does not end")
        return bytes(self.take(end + 1 - self.at))[:-1]

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

    def line_number(self) -> int:
        """A number as a line of text."""
        text = self.line()
        if not _NUMBER.fullmatch(text):
            raise FedVisageError(f"{text!r} at byte {self.at:,} is no number")
        return int(text.rstrip(b"L"))

    def old_integer(self) -> None:
        """A boolean or a number as text."""
        if self.whole[self.at : self.at + 3] in (b"00\n", b"01\n"):
            self.push(self.line() == b"01")
        else:
            self.push(self.line_number())

    def text(self, data: bytes | memoryview, encoding: str) -> None:
        """Characters in an encoding."""
        try:
            self.push(str(data, encoding))
        except UnicodeDecodeError:
            raise FedVisageError(f"the text before byte {self.at:,} is damaged") from None

    def old_string(self) -> None:
        """Python 2's bytes as it writes them in source code."""
        line = self.line(len(self.whole))
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise FedVisageError(f"the string before byte {self.at:,} is damaged")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for escapes that Python does not know and leaves as they are
                self.push(codecs.escape_decode(line[1:-1])[0])
        except ValueError:
            raise FedVisageError(f"the string before byte {self.at:,} is damaged") from None

    def name(self, module: Any, name: Any) -> None:
        """A name that would be looked up: only those of bytes and arrays, which are not looked up either."""
        if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in _NAMES:
            said = f"{module}.{name}"[:_MOST_LINE] if isinstance(module, str) and isinstance(name, str) else "something"
            raise FedVisageError(
                f"it asks for {said!r} before byte {self.at:,}, and only lists, bytes and arrays are read"
            )
        self.push(_Name(name))

    def line_name(self) -> None:
        """A name, in two lines."""
        module, name = self.line(), self.line()
        self.name(module.decode("latin-1"), name.decode("latin-1"))

    def stack_name(self) -> None:
        """A name, of two texts on the stack."""
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def reduce(self) -> None:
        """What a call would make, where it is one of those that make plain data."""
        arguments, name = self.pop(), self.pop()
        if not isinstance(name, _Name) or name.name not in _CALLS or not isinstance(arguments, tuple):
            raise FedVisageError(
                f"it calls something before byte {self.at:,}, and only lists, bytes and arrays are read"
            )
        made = _CALLS[name.name](arguments)
        if made is None:
            raise FedVisageError(f"what '{name.name}' makes before byte {self.at:,} is no array, number or bytes")
        if isinstance(made, bytes) and len(arguments) == 2:
            self.made += len(made)
            if self.made > len(self.whole):
                raise FedVisageError(f"it makes more bytes than it has, up to byte {self.at:,}")
        self.push(made)

    def build(self) -> None:
        """The content of an array, or the byte order of a dtype."""
        state, target = self.pop(), self.pop()
        good = isinstance(state, tuple) and (
            _fills(target, state) if isinstance(target, Array) else isinstance(target, _Kind) and _plain_dtype(state)
        )
        if not good:
            raise FedVisageError(f"what is built before byte {self.at:,} is no array of whole numbers or booleans")
        self.push(target)


def _fills(array: Array, state: tuple[Any, ...]) -> bool:
    """Whether the state is that of an array, which then has it: version, shape, dtype, order of memory, items."""
    if array.shape is not None or len(state) != 5 or not _is(state[0], 1) or not _is(state[3], 0, 1):
        return False
    filled = _array(state[4], state[2], state[1])
    if filled is None:
        return False
    array.shape, array.code, array.data = filled.shape, filled.code, filled.data
    return True


def _array(data: Any, kind: Any, shape: Any) -> Array | None:
    """An array with these items, where they are as many bytes as its shape and dtype say."""
    if not isinstance(data, bytes) or not isinstance(kind, _Kind) or not isinstance(shape, tuple) or len(shape) > 32:
        return None
    if not all(type(side) is int and 0 <= side < 2**62 for side in shape):
        return None
    if math.prod(shape) * _ITEM_BYTES[kind.code] != len(data):
        return None
    return Array(shape, kind.code, data)


def _plain_dtype(state: tuple[Any, ...]) -> bool:
    """Whether a dtype's state says little-endian, and nothing of fields, shapes or metadata."""
    return (
        len(state) == 8
        and _is(state[0], 3)
        and _word(state[1]) in ("|", "<")
        and all(part is None for part in state[2:5])
        and _is(state[5], -1)
        and _is(state[6], -1)
        and _is(state[7], 0)
    )


def _is(value: Any, *wanted: int) -> bool:
    return isinstance(value, int) and value in wanted


def _word(value: Any) -> str:
    """A short text, which Python 2 wrote as bytes."""
    if isinstance(value, bytes) and len(value) <= _MOST_LINE:
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _dtype(given: tuple[Any, ...]) -> _Kind | None:
    code = _word(given[0]) if len(given) == 3 and _is(given[1], 0) and _is(given[2], 0, 1) else ""
    return _Kind(code) if code in _ITEM_BYTES else None


def _reconstruct(given: tuple[Any, ...]) -> Array | None:
    """An array of which nothing is said yet."""
    right = len(given) == 3 and given[0] == _Name("ndarray") and isinstance(given[1], tuple) and len(given[1]) == 1
    return Array() if right and _is(given[1][0], 0) and _word(given[2]) == "b" else None


def _from_buffer(given: tuple[Any, ...]) -> Array | None:
    """An array with its content, as protocol 5 has it."""
    right = len(given) in (4, 5) and _word(given[3]) in ("C", "F") and given[4:] in ((), (None,))
    return _array(given[0], given[1], given[2]) if right else None


def _scalar(given: tuple[Any, ...]) -> int | bool | None:
    array = _array(given[1], given[0], ()) if len(given) == 2 else None
    return None if array is None else array.numbers()[0].item()


def _encode(given: tuple[Any, ...]) -> bytes | None:
    """Bytes that Python 3 wrote as text for protocols 0 to 2."""
    if len(given) != 2 or not isinstance(given[0], str) or _word(given[1]) not in ("latin1", "latin-1"):
        return None
    try:
        return given[0].encode("latin-1")
    except UnicodeEncodeError:
        return None


def _bytes_of(given: tuple[Any, ...]) -> bytes | None:
    if len(given) == 2:
        return _encode(given)
    return b"" if not given else given[0] if len(given) == 1 and isinstance(given[0], bytes) else None


_CALLS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "dtype": _dtype,
    "_reconstruct": _reconstruct,
    "_frombuffer": _from_buffer,
    "scalar": _scalar,
    "encode": _encode,
    "bytes": _bytes_of,
    "bytearray": _bytes_of,
}


def _bytes(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(bytes(reader.take(reader.number(size))))


def _text(size: int) -> Callable[[_Reader], None]:
    return lambda reader: reader.text(reader.take(reader.number(size)), "utf-8")


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
    b"\x96": _bytes(8),  # a bytearray
    b"U": _bytes(1),  # Python 2's bytes
    b"T": _bytes(4),
    b"S": _Reader.old_string,
    b"X": _text(4),
    b"\x8c": _text(1),
    b"\x8d": _text(8),
    b"V": lambda r: r.text(r.line(len(r.whole)), "raw-unicode-escape"),
    b"N": lambda r: r.push(None),
    b"\x88": lambda r: r.push(True),
    b"\x89": lambda r: r.push(False),
    b"I": _Reader.old_integer,
    b"L": lambda r: r.push(r.line_number()),
    b"K": lambda r: r.push(r.number(1)),
    b"M": lambda r: r.push(r.number(2)),
    b"J": lambda r: r.push(r.number(4, signed=True)),
    b"\x8a": lambda r: r.push(r.number(r.number(1), signed=True)),
    b"p": lambda r: r.keep(r.line_number()),
    b"q": lambda r: r.keep(r.number(1)),
    b"r": lambda r: r.keep(r.number(4)),
    b"\x94": lambda r: r.keep(len(r.memo)),
    b"g": lambda r: r.recall(r.line_number()),
    b"h": lambda r: r.recall(r.number(1)),
    b"j": lambda r: r.recall(r.number(4)),
    b"c": _Reader.line_name,
    b"\x93": _Reader.stack_name,
    b"R": _Reader.reduce,
    b"b": _Reader.build,
}
