"""Reader of the file format in which dlib stores its face network.

dlib writes a network from the loss layer inwards: a version number per layer, then, from the input outwards, what each
layer holds. A whole number is a byte that says how many bytes follow (its top bit is the sign), then those bytes, low
first; a string is its length and its bytes; a float is a mantissa and an exponent; a tensor is the number 2, four
sizes, and 32-bit floats. Only the layers of this network are known. Every read is checked against the end of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError

Floats = NDArray[np.float32]

LARGEST = 1 << 28
"""No file of this kind is larger than 256 MB."""


class Layer(NamedTuple):
    """A layer with parameters: its kind as dlib names it, its parameters in one row, and its other numbers."""

    kind: str
    values: Floats
    numbers: tuple[int, ...]


def read_layers(path: str | Path) -> list[Layer]:
    """The layers that have parameters, from the input outwards."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise FedVisageError(f"cannot read the network {path}: {error.strerror}") from None
    if len(content) > LARGEST:
        raise FedVisageError(f"{path} is too large for a dlib face network")
    try:
        return _Reader(content).network()
    except _Malformed as error:
        raise FedVisageError(f"{path} is not a dlib face network: {error}") from None


class _Malformed(Exception):
    """What is wrong, and at which byte."""


class _Reader:
    """A position in the bytes of a file."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def network(self) -> list[Layer]:
        """The whole file."""
        self._versions_to("loss_metric_2")
        self._float(), self._float()
        self._versions_to("input_rgb_image_sized")
        for _ in range(3):
            self._float()
        self._integers(2)
        layers = [self._layer()]
        if self._integer() != 1:
            raise self._wrong("the first layer makes several samples of one")
        while self.at < len(self.content):
            layers.append(self._layer())
        return [layer for layer in layers if len(layer.values)]

    def _layer(self) -> Layer:
        kind = self._string(self._integer())
        if kind not in _DETAILS:
            raise self._wrong(f"unknown layer '{kind}'")
        values, numbers = _DETAILS[kind](self)
        if not set(self._take(3)) <= set(b"01"):
            raise self._wrong("a flag is neither 0 nor 1")
        for _ in range(3):
            self._tensor()
        return Layer(kind, values, numbers)

    def _versions_to(self, name: str) -> None:
        """Version numbers (all small), then a string."""
        while (number := self._integer()) < 4:
            continue
        if (found := self._string(number)) != name:
            raise self._wrong(f"'{found}' stands where '{name}' should")

    def _take(self, count: int) -> bytes:
        if count > len(self.content) - self.at:
            raise self._wrong(f"it ends {count - (len(self.content) - self.at):,} bytes too early")
        self.at += count
        return self.content[self.at - count : self.at]

    def _integer(self) -> int:
        control = self._take(1)[0]
        size = control & 0x0F
        if control & 0x70 or not 1 <= size <= 8:
            raise self._wrong(f"no number starts with {control}")
        value = int.from_bytes(self._take(size), "little")
        return -value if control & 0x80 else value

    def _integers(self, count: int) -> tuple[int, ...]:
        return tuple(self._integer() for _ in range(count))

    def _float(self) -> float:
        mantissa, exponent = self._integers(2)
        if abs(exponent) > 1000:
            raise self._wrong(f"no float has the exponent {exponent}")
        return float(mantissa) * 2.0**exponent

    def _string(self, length: int) -> str:
        if not 1 <= length <= 64:
            raise self._wrong(f"no name has {length:,} letters")
        return self._take(length).decode("ascii", "replace")

    def _tensor(self) -> Floats:
        version, *sizes = self._integers(5)
        if version != 2 or min(sizes) < 0 or max(sizes) > LARGEST:
            raise self._wrong(f"no tensor has version {version} and shape {tuple(sizes)}")
        count = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        values = np.frombuffer(self._take(4 * count), dtype="<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise self._wrong("a parameter is not finite")
        return values

    def _wrong(self, what: str) -> _Malformed:
        return _Malformed(f"{what} (byte {self.at:,})")

    def _convolution(self) -> tuple[Floats, tuple[int, ...]]:
        """Filters and biases in one tensor; filters, height, width, strides, paddings; two shapes; four rates."""
        values, numbers = self._tensor(), self._integers(7)
        self._integers(10 + 8)
        return values, numbers

    def _affine(self) -> tuple[Floats, tuple[int, ...]]:
        """Scales and shifts in one tensor, two shapes and a mode."""
        values = self._tensor()
        return values, self._integers(11)

    def _matrix(self) -> tuple[Floats, tuple[int, ...]]:
        """Outputs, inputs, the matrix, two shapes, whether there is a bias, four rates."""
        numbers, values = self._integers(2), self._tensor()
        self._integers(11 + 8)
        return values, numbers

    def _pool(self) -> tuple[Floats, tuple[int, ...]]:
        return np.empty(0, np.float32), self._integers(6)

    def _plain(self) -> tuple[Floats, tuple[int, ...]]:
        return np.empty(0, np.float32), ()


_DETAILS: dict[str, Callable[[_Reader], tuple[Floats, tuple[int, ...]]]] = {
    "con_4": _Reader._convolution,
    "affine_": _Reader._affine,
    "fc_2": _Reader._matrix,
    "max_pool_2": _Reader._pool,
    "avg_pool_2": _Reader._pool,
    "relu_": _Reader._plain,
    "add_prev_": _Reader._plain,
}
