"""What the server's regularisers share: the check of class embeddings and owners, and the way back through `unit`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import SMALLEST_NORM

BUFFER = 2**26
"""Numbers in the largest intermediate matrix: 256 MB in float32."""


ROWS = 4096
"""Rows handled at a time where a step needs a temporary copy of them."""


class ValueAndGradient(NamedTuple):
    """A regulariser of class embeddings (C, d): its value and its gradient (C, d)."""

    value: float
    gradient: Tensor


def check_class_embeddings(class_embeddings: Tensor) -> None:
    """Refuse anything but a non-empty (C, d) tensor of real numbers."""
    if class_embeddings.ndim != 2 or 0 in class_embeddings.shape or not class_embeddings.is_floating_point():
        raise FedVisageError(
            "a regulariser wants class embeddings (C, d) of real numbers, not empty; got "
            f"{class_embeddings.dtype} {tuple(class_embeddings.shape)}"
        )


def check_owner(class_embeddings: Tensor, owner: Tensor, identity: Tensor | None = None) -> None:
    """Refuse owners or identities that are not one int64 per class, and a party that holds an identity twice."""
    check_class_embeddings(class_embeddings)
    for name, of in (("owner", owner), ("identity", identity)):
        if of is not None and (of.shape != class_embeddings.shape[:1] or of.dtype != torch.int64):
            raise FedVisageError(
                f"{name} must be one int64 per class embedding, ({len(class_embeddings)},); got "
                f"{of.dtype} {tuple(of.shape)}"
            )
    if identity is not None:
        pairs, count = torch.unique(torch.stack([owner, identity]), dim=1, return_counts=True)
        if int(count.max()) > 1:
            party, person = pairs[:, int(count.argmax())].tolist()
            raise FedVisageError(f"party {party} holds identity {person} {int(count.max())} times: merge them first")


def full(class_embeddings: Tensor) -> Tensor:
    """`class_embeddings` in float32 or, where they already are, in float64."""
    return class_embeddings.to(torch.promote_types(class_embeddings.dtype, torch.float32))


def unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (C, d) at unit length and their lengths (C, 1); a zero row stays zero and has length 1, as in `unit`."""
    length = lengths(vectors)
    return vectors / length, length


def to_unit_(vectors: Tensor) -> Tensor:
    """Rows (C, d) brought to unit length where they are."""
    return vectors.div_(lengths(vectors))


def lengths(vectors: Tensor) -> Tensor:
    """Lengths (C, 1) of rows (C, d), 1 for a zero row."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(length > SMALLEST_NORM, length, torch.ones_like(length))


def through_unit(gradient: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient (C, d) by unit rows, turned in place into that by the rows themselves."""
    for part, direction in zip(torch.split(gradient, ROWS), torch.split(unit, ROWS), strict=True):
        part.addcmul_(direction, torch.linalg.vecdot(part, direction).unsqueeze(1), value=-1)
    return gradient.div_(length)


def average_shared(class_embeddings: Tensor, identity: Tensor) -> Tensor:
    """Class embeddings (C, d) with the copies of each identity (C,) replaced by their plain mean."""
    if identity.shape != class_embeddings.shape[:1]:
        raise FedVisageError(f"{len(identity)} identities for {len(class_embeddings)} class embeddings")
    person = numbered(identity)
    return identity_means(class_embeddings, person)[person]


def numbered(values: Tensor) -> Tensor:
    """Values (C,) replaced by their rank 0, 1, ... among the distinct ones."""
    index: Tensor = torch.unique(values, return_inverse=True)[1]
    return index


def identity_means(class_embeddings: Tensor, person: Tensor) -> Tensor:
    """Mean class embedding (L, d) of each of the identities 0..L-1 that `person` (C,) numbers."""
    people = int(person.max()) + 1
    means = class_embeddings.new_zeros(people, class_embeddings.shape[1]).index_add_(0, person, class_embeddings)
    return means.div_(person.bincount(minlength=people).unsqueeze(1))
