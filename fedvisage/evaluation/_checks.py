"""What every metric asks of its input, and the one place where embeddings are brought to unit length."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROWS = 256  # rows handled at a time: a block of 512-d float64 rows stays in the processor's cache


def numeric(name: str, values: ArrayLike, ndim: int) -> NDArray[Any]:
    """`values` as a real-valued array with `ndim` axes; its dtype is kept."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise FedVisageError(f"{name} must hold real numbers, got an array of {array.dtype}")
    if array.ndim != ndim:
        raise FedVisageError(f"{name} must have {ndim} axes, got shape {array.shape}")
    return array


def embeddings(name: str, values: ArrayLike) -> NDArray[Any]:
    """`values` as an (N, d) array with at least one row and one column."""
    array = numeric(name, values, 2)
    if 0 in array.shape:
        raise FedVisageError(f"{name} must hold at least one embedding of one dimension, got shape {array.shape}")
    return array


def scores(name: str, values: ArrayLike) -> Floats:
    """`values` as an (N,) float64 array, not empty and finite."""
    return finite(name, numeric(name, values, 1).astype(np.float64))


def finite(name: str, values: ArrayLike) -> NDArray[Any]:
    """`values` as an (N,) array of their own dtype, not empty and finite."""
    array = numeric(name, values, 1)
    if array.size == 0:
        raise FedVisageError(f"no {name}: a rate needs at least one of them")
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise FedVisageError(f"{bad} of {array.size} {name} are NaN or infinite")
    return array


def flags(same: ArrayLike, pairs: int) -> Bools:
    """`same` as an (N,) boolean array for `pairs` pairs, with both kinds present."""
    array = numeric("same", same, 1)
    if len(array) != pairs:
        raise FedVisageError(f"same has {len(array)} entries for {pairs} pairs")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise FedVisageError("same must hold only 0 and 1 (or False and True)")
    array = array.astype(np.bool_)
    genuine = int(np.count_nonzero(array))
    if genuine in (0, pairs):
        raise FedVisageError(f"{genuine} genuine and {pairs - genuine} impostor pairs: verification needs both kinds")
    return array


def identities(labels: ArrayLike, count: int | None = None) -> tuple[NDArray[Any], Ints]:
    """The distinct labels, sorted, and for each of the N entries the position of its label among them."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise FedVisageError(f"labels must have 1 axis, got shape {array.shape}")
    if count is not None and len(array) != count:
        raise FedVisageError(f"{len(array)} labels for {count} embeddings")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise FedVisageError(f"{int(np.count_nonzero(~np.isfinite(array)))} of {len(array)} labels are NaN or infinite")
    names, index = np.unique(array, return_inverse=True)
    return names, index.astype(np.int64)


def unit_block(rows: NDArray[Any]) -> tuple[Floats, Floats]:
    """Rows (n, d) in float64 divided by their lengths, and the lengths (n,), by scikit-learn's `normalize` arithmetic.

    Nothing is checked here: give all lengths to `check_lengths` before the rows are used.
    """
    block = np.array(rows, dtype=np.float64, order="C")
    with np.errstate(all="ignore"):
        length = np.sqrt(np.einsum("ij,ij->i", block, block))
        block /= length[:, None]
    return block, length


def check_lengths(name: str, length: Floats) -> None:
    """Refuse embeddings that have no direction."""
    broken = int(np.count_nonzero(~np.isfinite(length)))
    if broken:
        raise FedVisageError(f"{broken} of {length.size} embeddings in {name} hold NaN, infinite or too large values")
    zero = int(np.count_nonzero(length == 0))
    if zero:
        raise FedVisageError(f"{zero} of {length.size} embeddings in {name} are zero vectors, which have no direction")


def unit_rows(name: str, values: ArrayLike) -> Floats:
    """Embeddings (N, d) at unit length, float64."""
    unit, length = unit_block(embeddings(name, values))
    check_lengths(name, length)
    return unit


def rational_far(far: Any, name: str = "far") -> Fraction:
    """`far` as the decimal number it was written as, so that 0.001 of 3000 is exactly 3."""
    try:
        exact = Fraction(str(far))
    except (ValueError, ZeroDivisionError):
        raise FedVisageError(f"{name} must be a number in (0, 1], got {far!r}") from None
    if not 0 < exact <= 1:
        raise FedVisageError(f"{name} must lie in (0, 1], got {far}")
    return exact


def choice(what: str, name: str, known: Any) -> Any:
    """`known[name]`, or an error that lists the names."""
    if name not in known:
        raise FedVisageError(f"unknown {what} '{name}'; known: {', '.join(known)}")
    return known[name]
