"""Gradient correction and the cosine regulariser by closed form, in blocks of anchors: no (C, C) matrix.

With rows in the order of their owners, what an anchor's holders own is a few stretches of columns. A block of anchors
is one matrix product, an exponential and a second product; the largest logit of each anchor is subtracted first, so no
length of class embeddings overflows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import without_autocast
from fedvisage.losses._regularisers import (
    BUFFER,
    ValueAndGradient,
    check_owner,
    full,
    identity_means,
    numbered,
    through_unit,
    unit_rows,
)
from fedvisage.losses.correction import CorrectionForm, constants


class Layout(NamedTuple):
    """Class embeddings in the order of their owners, and the anchors they make."""

    order: Tensor | None
    """Positions (C,) of the ordered rows in the given ones; None where they are in order already."""
    rows: Tensor
    anchors: Tensor
    """(L, d), one per identity; the rows themselves where no identity is shared."""
    held: Tensor
    """(R, 4): anchors from..to are held by the party whose rows are from..to."""


def layout(class_embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> Layout:
    """The rows by owner, and which stretches of them belong to the holders of which anchors."""
    rows, order = full(class_embeddings), None
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        rows, owner = rows[order], owner[order]
        identity = None if identity is None else identity[order]
    count = len(owner)
    anchor = torch.arange(count, device=owner.device)
    anchors = rows
    if identity is not None:
        person = numbered(identity)
        people = int(person.max()) + 1
        if people < count:
            first = torch.full((people,), count, device=owner.device).scatter_reduce(0, person, anchor, "amin")
            anchor = first.argsort().argsort()[person]  # identities in the order in which the rows show them
            anchors = identity_means(rows, anchor)
    _, party, sizes = torch.unique_consecutive(owner, return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0)
    step = (party.diff() != 0) | (anchor.diff() != 1)
    begin = torch.cat([step.new_ones(1), step]).nonzero().squeeze(1)
    length = torch.cat([begin[1:], begin.new_tensor([count])]) - begin
    of = party[begin]
    held = torch.stack([anchor[begin], anchor[begin] + length, ends[of] - sizes[of], ends[of]], dim=1)
    return Layout(order, rows, anchors, held)


def blocks(anchors: int, classes: int, block: int | None) -> Iterator[tuple[int, int]]:
    """Stretches of anchors whose logits with all classes fit the buffer."""
    if block is not None and block < 1:
        raise FedVisageError(f"block must be at least 1, got {block}")
    size = block or max(64, min(1024, BUFFER // classes))
    for start in range(0, anchors, size):
        yield start, min(start + size, anchors)


@torch.no_grad()
def gradient_correction_gradient(
    class_embeddings: Tensor,
    owner: Tensor,
    identity: Tensor | None = None,
    *,
    form: CorrectionForm = "softmax",
    scale: float | None = None,
    margin: float | None = None,
    block: int | None = None,
) -> ValueAndGradient:
    """Value and gradient (C, d) of `gradient_correction`, exact, `block` anchors at a time (256 MB by default)."""
    check_owner(class_embeddings, owner, identity)
    normal = constants(form, scale, margin)
    with without_autocast(class_embeddings):
        order, rows, anchors, held = layout(class_embeddings, owner, identity)
        length = None
        if normal is not None:
            shared = anchors is not rows
            rows, length = unit_rows(rows)
            anchors = unit_rows(anchors)[0] if shared else rows
        gradient = torch.zeros_like(rows)
        total = 0.0
        buffer = rows.new_empty(0)
        for start, stop in blocks(len(anchors), len(rows), block):
            anchor = anchors[start:stop]
            if normal is None:
                own = torch.linalg.vecdot(anchor, anchor)
            else:
                anchor = anchor * normal.scale
                own = anchor.new_full((stop - start,), normal.own)
            buffer = buffer if len(buffer) else rows.new_empty(stop - start, len(rows))
            logits = torch.mm(anchor, rows.T, out=buffer[: stop - start])
            for top, bottom, left, right in own_parties(held, start, stop):
                logits[top:bottom, left:right] = -math.inf
            value, weights = softmax_weights(logits, own)
            total += value
            gradient.addmm_(logits.T, anchor * weights)
        del buffer, logits
        if length is not None:
            through_unit(gradient, rows, length)
        if order is not None:
            gradient = torch.empty_like(gradient).index_copy_(0, order, gradient)
        return ValueAndGradient(total, gradient)


def own_parties(held: Tensor, start: int, stop: int) -> list[list[int]]:
    """The rectangles (top, bottom, left, right) of a block's logits that belong to the anchors' own parties."""
    within = held[(held[:, 0] < stop) & (held[:, 1] > start)].clone()
    within[:, :2] = within[:, :2].clamp(start, stop) - start
    rectangles: list[list[int]] = within.tolist()
    return rectangles


def softmax_weights(logits: Tensor, own: Tensor) -> tuple[float, Tensor]:
    """Turn logits (n, C) in place into e^{logit - top}; return Σ log(1 + Σ e^{logit - own}) and 1/normaliser (n, 1)."""
    top = torch.maximum(logits.amax(dim=1), own)
    logits.sub_(top.unsqueeze(1)).exp_()
    torch.threshold_(logits, torch.finfo(logits.dtype).tiny, 0.0)  # denormal numbers slow the product down
    others = logits.sum(dim=1) + torch.expm1(own - top)
    value = (others.log1p() + (top - own)).double().sum().item()
    return value, (1 / (1 + others)).unsqueeze(1)


@torch.no_grad()
def cosine_regulariser_gradient(
    class_embeddings: Tensor, owner: Tensor, identity: Tensor | None = None, *, normalised: bool = False
) -> ValueAndGradient:
    """Value and gradient (C, d) of `cosine_regulariser`: sums over everybody less sums over what a party holds."""
    check_owner(class_embeddings, owner, identity)
    with without_autocast(class_embeddings):
        rows = full(class_embeddings)
        anchor = torch.arange(len(rows), device=owner.device)
        anchors = rows
        if identity is not None:
            anchor = numbered(identity)
            anchors = identity_means(rows, anchor)
        length = None
        if normalised:
            rows, length = unit_rows(rows)
            anchors, _ = unit_rows(anchors)
        party = numbered(owner)
        parties = int(party.max()) + 1
        held = rows.new_zeros(parties, rows.shape[1], dtype=torch.float64).index_add_(
            0, party, anchors.double()[anchor]
        )
        gradient = (anchors.double().sum(dim=0) - held).to(rows.dtype)[party]
        value = torch.linalg.vecdot(gradient, rows).double().sum().item()
        if length is not None:
            through_unit(gradient, rows, length)
        return ValueAndGradient(value, gradient)
