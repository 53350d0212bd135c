"""The guard before aggregation: an answer is counted only if it is exactly what was asked for.

Each check refuses by name. The norm bound is a number of the recipe or a multiple of norms accepted in earlier rounds,
never of the same round, so that the verdict on one answer cannot depend on another's arrival; updates that are small
beside the model itself pass whatever came before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.core.errors import Kind
from fedvisage.core.flat import Layout, columns, in_order, layout
from fedvisage.core.method import Joined
from fedvisage.core.parcel import BACKBONE, Parcel, Stamp, Tensors, layout_bytes
from fedvisage.core.phase import Phase

SLACK = 4096
BLOCK = 1 << 17
REST = 32 * BLOCK
"""Numbers of an answer that can rest which are in memory at a time."""


NOT_ASKED = "not asked in this round"
REPEATED = "repeated answer: the first one counts"
LONGEST_REASON = 300
"""Characters of a reason that are kept: an answer may hold names of any length."""


class Refused(Exception):
    """Why an answer is not counted: the kind decides what follows, the text explains it in one line."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(" ".join(reason.split())[:LONGEST_REASON])
        self.kind = kind


@dataclass
class Guard:
    """Checks for the answers of one exchange."""

    phase: Phase
    stamp: Stamp
    cohort: frozenset[str]
    joined: Mapping[str, Joined]
    norm_bound: float | None
    max_samples: int
    norm_floor: float = 0.0
    """Share of the norm of what went down up to which no update is beyond the bound."""

    def __post_init__(self) -> None:
        self._answered: set[str] = set()
        self._bytes: dict[int, tuple[Layout, int]] = {}
        self._starts: dict[int, tuple[Tensors, Tensors]] = {}

    def check(self, party: str, answer: Parcel, expected: Mapping[str, Layout], sent: Parcel) -> float:
        """The norm of the backbone's update (0 where none travels); `Refused` if the answer must not count."""
        if party not in self.cohort:
            raise Refused(Kind.NOT_ASKED, NOT_ASKED)
        if party in self._answered:
            raise Refused(Kind.REPEATED, REPEATED)
        if answer.stamp != self.stamp:
            raise Refused(Kind.STALE, f"stale: answers {answer.stamp}, asked was {self.stamp}")
        self._answered.add(party)
        self._check_size(answer, expected)
        for group, shapes in expected.items():
            _check_layout(group, answer.get(group), shapes)
        self._check_statistics(party, answer.statistics)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._check_values(answer, expected, sent)

    def _check_values(self, answer: Parcel, expected: Mapping[str, Layout], sent: Parcel) -> float:
        norm = 0.0
        for group in expected:
            size = self._norm(answer.get(group), sent.get(group) if group == BACKBONE else {}, answer.rest)
            if not math.isfinite(size):
                raise Refused(Kind.NOT_FINITE, f"{group} holds {_first_bad(answer.get(group))}")
            if group == BACKBONE:
                norm = size
        if self.norm_bound is not None and norm > self.norm_bound:
            limit = max(self.norm_bound, self.norm_floor * self._norm(sent.get(BACKBONE), {}))
            if norm > limit:
                raise Refused(Kind.BEYOND, f"backbone update has norm {norm:.4g}, beyond the bound {limit:.4g}")
        return norm

    def _check_size(self, answer: Parcel, expected: Mapping[str, Layout]) -> None:
        allowed = SLACK + sum(map(self._layout_bytes, expected.values()))
        if answer.nbytes > allowed:
            raise Refused(Kind.OVERSIZE, f"oversize: {answer.nbytes:,} bytes where {allowed:,} are enough")
        extra = [group for group in answer.tensors if group not in expected]
        if extra:
            raise Refused(Kind.MALFORMED, f"extra group '{extra[0]}', which {self.phase.name} does not declare")

    def _layout_bytes(self, shapes: Layout) -> int:
        """Bytes of a layout; most parties share one, so it is counted once."""
        known = self._bytes.get(id(shapes))
        if known is None or known[0] is not shapes:
            known = self._bytes[id(shapes)] = (shapes, layout_bytes(shapes))
        return known[1]

    def _check_statistics(self, party: str, values: Mapping[str, float]) -> None:
        known = (*self.phase.reports, *self.phase.may_report)
        missing = [name for name in self.phase.reports if name not in values]
        extra = [name for name in values if name not in known]
        if missing or extra:
            what = f"missing number '{missing[0]}'" if missing else f"extra number '{extra[0]}'"
            raise Refused(Kind.NUMBER, what)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Refused(Kind.NOT_FINITE, f"number '{name}' is {value}")
        for name in ("samples", "classes"):
            if name in values:
                self._check_count(party, name, values[name])

    def _check_count(self, party: str, name: str, value: float) -> None:
        if value != int(value) or not 1 <= value <= self.max_samples:
            raise Refused(Kind.COUNT, f"{name} = {value:g} is not a count between 1 and {self.max_samples:,}")
        known = self.joined.get(party)
        if known and not self.phase.counts and value != getattr(known, name):
            raise Refused(Kind.COUNT, f"{name} = {value:g}, but {getattr(known, name):,} at joining")

    def _norm(self, tensors: Tensors, reference: Tensors, rest: Callable[[], None] | None = None) -> float:
        """Norm of `tensors` minus `reference`, in blocks that fit the cache; not finite if any value is not."""
        if reference:
            values, starts = columns(in_order(tensors, reference), self._start(reference))
            square = sum(self._square(value, start, rest) for value, start in zip(values, starts, strict=True))
        else:
            square = sum(self._square(value, None) for value in columns(tensors)[0])
        return math.sqrt(square) if square >= 0 else math.nan

    def _start(self, reference: Tensors) -> Tensors:
        """What went down, side by side; most parties share one, so it is laid out once."""
        known = self._starts.get(id(reference))
        if known is None or known[0] is not reference:
            known = self._starts[id(reference)] = (reference, in_order(reference, reference))
        return known[1]

    def _square(self, flat: Tensor, reference: Tensor | None, rest: Callable[[], None] | None = None) -> float:
        """Squared norm of one flat tensor minus its reference."""
        if flat.device.type != "cpu" or flat.dtype not in (torch.float32, torch.float64):
            return float((flat.double() if reference is None else flat.double() - reference.double()).square().sum())
        values = flat.numpy()
        if reference is None:
            return float(np.dot(values, values))
        starts, scratch = reference.numpy(), _scratch(values.dtype)
        square = 0.0
        for begin in range(0, len(values), BLOCK):
            block = values[begin : begin + BLOCK]
            change = np.subtract(block, starts[begin : begin + BLOCK], out=scratch[: len(block)])
            square += float(np.dot(change, change))
            if rest and not (begin + BLOCK) % REST:
                rest()
        return square


@cache
def _scratch(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Room for one block, kept: asking for it anew would cost more than the arithmetic."""
    return np.empty(BLOCK, dtype)


def bound(fixed: float | None, multiple: float | None, accepted: Sequence[float]) -> float | None:
    """The norm bound of a round: the recipe's number, else a multiple of the median accepted before."""
    if fixed is not None or multiple is None or not accepted:
        return fixed
    return multiple * median(accepted) or None


def _check_layout(group: str, tensors: Tensors, expected: Layout) -> None:
    if layout(tensors) == expected:
        return
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if missing or extra:
        raise Refused(
            Kind.MALFORMED, f"{group}: missing key '{missing[0]}'" if missing else f"{group}: extra key '{extra[0]}'"
        )
    for name, (shape, kind) in expected.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise Refused(Kind.MALFORMED, f"{group}: '{name}' has shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype != kind:
            raise Refused(Kind.MALFORMED, f"{group}: '{name}' has dtype {tensor.dtype}, expected {kind}")


def _first_bad(tensors: Tensors) -> str:
    for name, tensor in tensors.items():
        bad = tensor[~torch.isfinite(tensor)]
        if bad.numel():
            return f"{bad.numel()} values that are not finite in '{name}' (first: {float(bad[0])})"
    return "values too large to measure"
