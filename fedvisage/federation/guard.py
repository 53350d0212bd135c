"""The guard before aggregation: an answer is counted only if it is exactly what was asked for.

Each check refuses by name: tensors that are no plain numbers, other groups, names, shapes or dtypes than asked for,
values that are not finite or larger than the phase declares, negative variances, counts other than at joining, and
updates beyond the bound (see `bounds`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.config import Guard as Rules
from fedvisage.core.errors import Kind, shortened
from fedvisage.core.flat import Flat, Layout, columns, in_order, is_flat, layout
from fedvisage.core.method import Joined
from fedvisage.core.parcel import (
    BACKBONE,
    BUFFERS,
    GROUPS,
    PRIVATE_EMBEDDINGS,
    PUBLIC_EMBEDDINGS,
    Parcel,
    Stamp,
    Tensors,
    layout_bytes,
)
from fedvisage.core.phase import LARGEST, LARGEST_NUMBER, Phase
from fedvisage.federation.bounds import History, Sender, bound
from fedvisage.federation.plain import strangeness

SLACK = 4096
BLOCK = 1 << 17
REST = 32 * BLOCK
"""Numbers of an answer that can rest which are in memory at a time."""


NOT_ASKED = "not asked in this round"
REPEATED = "repeated answer: the first one counts"
LONGEST_REASON = 300
"""Characters of a reason that are kept: a party's own account of a failure may have any length."""
COUNTS = ("samples", "classes")
VARIANCE = "running_var"


class Refused(Exception):
    """Why an answer is not counted: the kind decides what follows, the text explains it in one line."""

    def __init__(self, kind: Kind, reason: str) -> None:
        line = " ".join(reason[: 2 * LONGEST_REASON].split())[:LONGEST_REASON]
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in line))
        self.kind = kind


@dataclass
class Guard:
    """Checks for the answers of one exchange."""

    phase: Phase
    stamp: Stamp
    cohort: frozenset[str]
    joined: Mapping[str, Joined]
    rules: Rules
    history: History = field(default_factory=History)
    """Norms that were accepted in earlier exchanges of the phase."""
    steps: Callable[[Joined], int] = lambda joined: 1
    """Local steps of a party, from the counts it joined with."""
    rate: float = 1.0
    """Learning rate of the round."""

    def __post_init__(self) -> None:
        self.floor = 0.0
        """Norm up to which every update of this exchange is accepted."""
        self._answered: set[str] = set()
        self._members = Counter(joined.role for joined in self.joined.values())
        self._bytes: dict[int, tuple[Layout, int]] = {}
        self._starts: dict[int, tuple[Tensors, Tensors]] = {}
        self._models: dict[int, tuple[Tensors, float]] = {}
        self._variances: dict[tuple[str, ...], Tensor] = {}

    def check(self, party: str, answer: Parcel, expected: Mapping[str, Layout], sent: Parcel) -> float:
        """The norm of the backbone's update (0 where none travels); `Refused` if the answer must not count."""
        if party not in self.cohort:
            raise Refused(Kind.NOT_ASKED, NOT_ASKED)
        if party in self._answered:
            raise Refused(Kind.REPEATED, REPEATED)
        if answer.stamp != self.stamp:
            raise Refused(Kind.STALE, f"stale: answers {answer.stamp}, asked was {self.stamp}")
        self._answered.add(party)
        _check_plain(answer)
        self._check_size(answer, expected)
        for group, shapes in expected.items():
            _check_layout(group, answer.get(group), shapes)
        self._check_numbers(party, answer.statistics)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = self._check_values(answer, expected, sent)
            if self.phase.trains and BACKBONE in expected:
                self._check_norm(party, norm, sent.get(BACKBONE))
        return norm

    def _check_values(self, answer: Parcel, expected: Mapping[str, Layout], sent: Parcel) -> float:
        norm = 0.0
        for group in expected:
            size = self._norm(answer.get(group), sent.get(group) if group == BACKBONE else {}, answer.rest)
            if not math.isfinite(size):
                raise Refused(Kind.NOT_FINITE, f"{group} holds {_first_bad(answer.get(group))}")
            if group == BACKBONE:
                norm = size
            elif size > self._largest(group):  # else nothing in it is
                self._check_largest(group, answer.get(group))
            if group == BUFFERS:
                self._check_variances(answer.get(group))
        return norm

    def _check_norm(self, party: str, norm: float, sent: Tensors) -> None:
        """The update must not be beyond the bound."""
        joined, model = self.joined[party], self._size(sent)
        self.floor = self.rules.norm_floor * model
        sender = Sender(party, joined.role, self.steps(joined), self.rate, self._members[joined.role] == 1)
        limit, why = bound(self.rules, self.history, sender, model)
        if norm > limit:
            raise Refused(
                Kind.BEYOND, f"backbone update has norm {norm:.4g}, beyond the bound {limit:.4g}, which is {why}"
            )

    def _size(self, sent: Tensors) -> float:
        """The norm of a model that went down; of zeros, that of as many ones."""
        known = self._models.get(id(sent))
        if known is None or known[0] is not sent:
            numbers = sum(tensor.numel() for tensor in sent.values())
            known = self._models[id(sent)] = (sent, self._norm(sent, {}) or math.sqrt(numbers))
        return known[1]

    def _largest(self, name: str) -> float:
        """The largest size of what a group or a number may hold."""
        return self.phase.largest.get(name, LARGEST.get(name, math.inf if name in GROUPS else LARGEST_NUMBER))

    def _check_largest(self, group: str, tensors: Tensors) -> None:
        """No class embedding may be longer, and no other number larger, than the phase declares."""
        for name, tensor in tensors.items():
            limit, what = self._largest(group), "a value"
            if group in (PRIVATE_EMBEDDINGS, PUBLIC_EMBEDDINGS) and tensor.ndim > 1:
                what, tensor = "a row of length", torch.linalg.vector_norm(tensor, dim=-1)
            elif name.endswith(VARIANCE):
                what, limit = "a variance", limit**2
            found = float(tensor.abs().max()) if tensor.numel() else 0.0
            if found > limit:
                raise Refused(Kind.BEYOND, f"{group}: '{name}' has {what} {found:.4g}, beyond the bound {limit:.4g}")

    def _check_variances(self, tensors: Tensors) -> None:
        """No running variance may be negative."""
        if is_flat(tensors) and tensors.vector.device.type == "cpu":
            places = self._places(tensors)
            if not len(places) or tensors.vector[places].min() >= 0:
                return
        for name, tensor in tensors.items():
            if name.endswith(VARIANCE) and tensor.numel() and (least := float(tensor.min())) < 0:
                raise Refused(Kind.NEGATIVE, f"{BUFFERS}: '{name}' has a variance of {least:.4g}")

    def _places(self, tensors: Flat) -> Tensor:
        """Where the variances are in a vector of all buffers; most answers have one order, so it is worked out once."""
        if tensors.order not in self._variances:
            marks = [torch.full((tensor.numel(),), name.endswith(VARIANCE)) for name, tensor in tensors.items()]
            self._variances[tensors.order] = torch.cat(marks).nonzero().flatten()
        return self._variances[tensors.order]

    def _check_size(self, answer: Parcel, expected: Mapping[str, Layout]) -> None:
        allowed = SLACK + sum(map(self._layout_bytes, expected.values()))
        if answer.nbytes > allowed:
            raise Refused(Kind.OVERSIZE, f"oversize: {answer.nbytes:,} bytes where {allowed:,} are enough")
        extra = [group for group in answer.tensors if group not in expected]
        if extra:
            raise Refused(
                Kind.MALFORMED, f"extra group '{shortened(extra[0])}', which {self.phase.name} does not declare"
            )

    def _layout_bytes(self, shapes: Layout) -> int:
        """Bytes of a layout; most parties share one, so it is counted once."""
        known = self._bytes.get(id(shapes))
        if known is None or known[0] is not shapes:
            known = self._bytes[id(shapes)] = (shapes, layout_bytes(shapes))
        return known[1]

    def _check_numbers(self, party: str, values: Mapping[str, float]) -> None:
        known = (*self.phase.reports, *self.phase.may_report)
        missing = [name for name in self.phase.reports if name not in values]
        extra = [name for name in values if name not in known]
        if missing or extra:
            what = f"missing number '{missing[0]}'" if missing else f"extra number '{shortened(extra[0])}'"
            raise Refused(Kind.NUMBER, what)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Refused(Kind.NOT_FINITE, f"number '{name}' is {value}")
            if name in COUNTS:
                self._check_count(party, name, value)
            elif abs(value) > self._largest(name):
                raise Refused(
                    Kind.BEYOND, f"number '{name}' is {value:.4g}, beyond the bound {self._largest(name):.4g}"
                )
        if self.phase.counts and values.get("classes", 0) > values.get("samples", math.inf):
            raise Refused(Kind.COUNT, f"{values['classes']:,.0f} classes cannot share {values['samples']:,.0f} samples")

    def _check_count(self, party: str, name: str, value: float) -> None:
        most = self.rules.max_classes if name == "classes" else self.rules.max_samples
        if value != int(value) or not 1 <= value <= most:
            raise Refused(Kind.COUNT, f"{name} = {value:g} is not a count between 1 and {most:,}")
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


def _check_plain(answer: Parcel) -> None:
    """Every tensor must be plain numbers in memory."""
    for group, tensors in answer.tensors.items():
        for name, tensor in tensors.items():
            if strange := strangeness(tensor):
                raise Refused(Kind.MALFORMED, f"{shortened(group)}: '{shortened(name)}' {strange}")


def _check_layout(group: str, tensors: Tensors, expected: Layout) -> None:
    if layout(tensors) == expected:
        return
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if missing or extra:
        what = f"missing key '{missing[0]}'" if missing else f"extra key '{shortened(extra[0])}'"
        raise Refused(Kind.MALFORMED, f"{group}: {what}")
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
