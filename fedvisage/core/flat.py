"""Many tensors as one: a group of tensors that lies side by side in memory can be copied, checked and summed whole.

A network has hundreds of small tensors, and handling them one by one costs more than the work itself. A `Flat` is an
ordinary dict of tensors that are views into one vector; whoever finds two of them alike may work on the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Any, TypeGuard

import torch
from torch import Tensor

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shapes and dtypes by name."""


def _changing(change: Callable[..., Any]) -> Callable[..., Any]:
    """A method of dict that replaces entries: afterwards the vector does not stand for them any more."""

    @wraps(change)
    def changing(self: Flat, *values: Any, **more: Any) -> Any:
        self.whole = False
        return change(self, *values, **more)

    return changing


class Flat(dict[str, Tensor]):
    """Named views into `vector`, in order and without gaps."""

    whole = False
    """Whether its entries are still the views it was made with: only then does `vector` stand for them.

    Noted where entries change, because it is asked far more often than they do.
    """

    def __init__(self, tensors: Mapping[str, Tensor], vector: Tensor) -> None:
        super().__init__(tensors)
        self.vector, self.order, self.whole = vector, tuple(tensors), True

    __setitem__ = _changing(dict.__setitem__)
    __delitem__ = _changing(dict.__delitem__)
    __ior__ = _changing(dict.__ior__)
    clear = _changing(dict.clear)
    pop = _changing(dict.pop)
    popitem = _changing(dict.popitem)
    setdefault = _changing(dict.setdefault)
    update = _changing(dict.update)

    @cached_property
    def layout(self) -> Layout:
        """Shapes and dtypes, in order."""
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.items()}


def is_flat(group: Mapping[str, Tensor]) -> TypeGuard[Flat]:
    """Whether a group can be handled as one vector."""
    return isinstance(group, Flat) and group.whole


def flat_views(layout: Layout, vector: Tensor) -> Flat:
    """Views of these shapes into a vector that has room for exactly them."""
    views, start = {}, 0
    for name, (shape, _) in layout.items():
        count = torch.Size(shape).numel()
        views[name] = vector[start : start + count].view(shape)
        start += count
    return Flat(views, vector)


def layout(tensors: Mapping[str, Tensor]) -> Layout:
    """Shapes and dtypes of a group."""
    if is_flat(tensors):
        return tensors.layout
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def pack_flat(tensors: Mapping[str, Tensor], device: str | torch.device | None = None) -> dict[str, Tensor]:
    """A copy of a group: flat where all its tensors have one dtype."""
    if len({tensor.dtype for tensor in tensors.values()}) != 1:
        return {name: tensor.detach().to(device or tensor.device, copy=True) for name, tensor in tensors.items()}
    first = next(iter(tensors.values()))
    packed = flat_views(layout(tensors), first.new_empty(_count(tensors), device=device or first.device))
    copy(packed, tensors)
    return packed


def zeros_flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in the shapes of a group: flat where all its tensors have one dtype."""
    if len({tensor.dtype for tensor in tensors.values()}) != 1:
        return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    return flat_views(layout(tensors), next(iter(tensors.values())).new_zeros(_count(tensors)))


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def in_order(tensors: dict[str, Tensor], order: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors side by side in this order: the last bits of a sum must not depend on how its numbers lay in memory."""
    if is_flat(tensors) and tensors.order == (order.order if is_flat(order) else tuple(order)):
        return tensors
    return pack_flat({name: tensors[name] for name in order})


def columns(*groups: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """What to work on in several groups of the same names and shapes: a vector each if all are flat alike."""
    first, *others = groups
    if is_flat(first) and all(is_flat(g) and g.order == first.order for g in others):
        return [[g.vector] for g in groups if isinstance(g, Flat)]
    return [[group[name].reshape(-1) for name in first] for group in groups]


def copy(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy one group's values into another's tensors."""
    if is_flat(into) and is_flat(values) and into.order == values.order:
        into.vector.copy_(values.vector)
    elif values:
        torch._foreach_copy_([into[name] for name in values], [value.detach() for value in values.values()])


def weighted(*terms: tuple[float, dict[str, Tensor]], into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """A new group: the sum of weight * group over groups of the same names and shapes, on the first one's device.

    Where there is a group to put it `into`, that one's values are overwritten and it is returned.
    """
    (weight, first), *others = terms
    total = pack_flat(first) if into is None else into
    if into is not None:
        copy(into, first)
    torch._foreach_mul_(columns(total)[0], weight)
    for weight, group in others:
        sums, values = columns(total, in_order(group, total))
        torch._foreach_add_(sums, [v.to(s.device) for s, v in zip(sums, values, strict=True)], alpha=weight)
    return total
