"""A parcel in two parts: what all parties of an exchange receive alike, encoded once, and what is the party's own."""

from __future__ import annotations

from collections.abc import Mapping

from fedvisage.core.parcel import Parcel, Tensors, decode
from fedvisage.federation.nvflare.wire import look


def join_parts(shared: object, own: object) -> Parcel:
    """The parcel that was sent in two parts."""
    parcel = decode(look(own))
    first = look(shared)
    if len(first):
        groups = decode(first).tensors
        parcel.tensors = groups | parcel.tensors
    return parcel


def own_groups(parcel: Parcel, shared: Mapping[str, Tensors]) -> list[str]:
    """Groups of a parcel that are not shared."""
    return [group for group, tensors in parcel.tensors.items() if shared.get(group) is not tensors]
