"""NumPy's file format, read so that a damaged file of any kind is a `ValueError` and never costs more than its size."""

from __future__ import annotations

import math
import tokenize
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


class Header(NamedTuple):
    """What an `.npy` file says it holds, and where that begins."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    present: int
    """Bytes after the header."""


def read_header(path: Path) -> Header:
    """The header of an `.npy` file; OSError or ValueError where there is none."""
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2 are read all the same
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except (SyntaxError, tokenize.TokenError, TypeError, RecursionError, MemoryError, OverflowError) as error:
            raise ValueError(f"damaged header ({type(error).__name__})") from None
        offset = file.tell()
        present = file.seek(0, 2) - offset
    if not all(0 <= length < 2**62 for length in shape):
        raise ValueError(f"no array has the shape {shape}")
    return Header(shape, fortran, dtype, offset, present)


def load_array(path: Path) -> NDArray[Any]:
    """The array of numbers in an `.npy` file; OSError or ValueError where there is none."""
    shape, fortran, dtype, offset, present = read_header(path)
    if dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype}, not numbers")
    count = math.prod(shape)
    if count * dtype.itemsize > present:
        raise ValueError(f"it is truncated: {present:,} bytes of {count * dtype.itemsize:,}")
    flat: NDArray[Any] = np.fromfile(path, dtype, count, offset=offset)
    return flat.reshape(shape, order="F" if fortran else "C")
