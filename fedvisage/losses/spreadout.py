"""Spreadout: class embeddings closer than a margin are pushed apart (FedAwS, Yu et al., ICML 2020; FedFace, eq. 9).

Σ_c Σ_{c'≠c} max(0, margin - d(w_c, w_c'))² over ordered pairs of unit vectors, gradient through the normalisation.
FedFace does not name d; 1 - cos with margin 0.7 is what its published code computes. With the other distances these
margins act on the same pairs: "half-cosine" (1 - cos)/2 at 0.35 (a quarter of the value), "squared-euclidean" 2 - 2 cos
at 1.4 (four times), "euclidean" √(2 - 2 cos) at 1.183.

`spreadout` is dense; `spreadout_gradient` gives the same by closed form over tiles of the upper triangle of pairs. Rows
are brought to unit length tile by tile: that costs next to nothing, and a copy of everybody is spared.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.losses._cosines import unit, without_autocast
from fedvisage.losses._regularisers import (
    BUFFER,
    ValueAndGradient,
    check_class_embeddings,
    full,
    through_unit,
    unit_rows,
)

SpreadoutDistance = Literal["cosine", "half-cosine", "squared-euclidean", "euclidean"]
SLOPES = {"cosine": 1.0, "half-cosine": 0.5, "squared-euclidean": 2.0}
"""Distances that are a multiple of 1 - cos."""
SMALLEST_SQUARE = 1e-6
"""Below this squared distance float32 knows no direction between two unit vectors: "euclidean" does not push them."""
SMALLEST_TILE, LARGEST_TILE = 1024, 2048
"""Rows of a square of pairs that is handled at a time."""


def tile(classes: int, size: int) -> int:
    """Rows of a square of pairs: it takes no more memory than the class embeddings (C, d), within bounds."""
    return min(LARGEST_TILE, max(SMALLEST_TILE, math.isqrt(classes * size)))


def spreadout(
    class_embeddings: Tensor,
    margin: float = 0.7,
    distance: SpreadoutDistance = "cosine",
    *,
    reduction: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Squared hinge on the distances of class embeddings (C, d), summed (or averaged) over ordered pairs; dense."""
    scale = check_spreadout(class_embeddings, margin, distance, reduction)
    with without_autocast(class_embeddings):
        rows = unit(full(class_embeddings))
        cosines = rows @ rows.T
        others = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        return shortfall(cosines[others], margin, distance).square().sum() * scale


def check_spreadout(
    class_embeddings: Tensor, margin: float, distance: SpreadoutDistance, reduction: Literal["sum", "mean"]
) -> float:
    """What the sum over ordered pairs is multiplied with, after the arguments were found in order."""
    check_class_embeddings(class_embeddings)
    if distance not in get_args(SpreadoutDistance):
        raise FedVisageError(
            f"spreadout has no distance '{distance}': {nearest(distance, get_args(SpreadoutDistance))}"
        )
    if not 0 <= margin < math.inf:
        raise FedVisageError(f"spreadout's margin is {margin}: it is a distance to keep, 0 or more")
    if reduction not in ("sum", "mean"):
        raise FedVisageError(f"spreadout is reduced by 'sum' or 'mean', not '{reduction}'")
    count = len(class_embeddings)
    return 1.0 if reduction == "sum" else 1.0 / max(1, count * (count - 1))


def shortfall(cosines: Tensor, margin: float, distance: SpreadoutDistance) -> Tensor:
    """max(0, margin - d) from cosines, any shape."""
    if distance == "euclidean":
        return (margin - (2 - 2 * cosines).clamp_min(SMALLEST_SQUARE).sqrt()).clamp_min(0)
    slope = SLOPES[distance]
    return (slope * cosines + (margin - slope)).clamp_min(0)


def shortfall_(cosines: Tensor, margin: float, distance: SpreadoutDistance) -> tuple[Tensor, Tensor]:
    """Shortfall h of cosines, made in their place where possible, and half the derivative of h² by the cosine."""
    if distance == "euclidean":
        square = cosines.mul_(-2).add_(2)
        length = square.clamp_min(SMALLEST_SQUARE).sqrt_()
        short = (margin - length).clamp_min_(0)
        return short, (short / length).masked_fill_(square < SMALLEST_SQUARE, 0)
    slope = SLOPES[distance]
    short = cosines.mul_(slope) if slope != 1 else cosines
    short.add_(margin - slope).clamp_min_(0)
    return short, short if slope == 1 else short * slope


@torch.no_grad()
def spreadout_gradient(
    class_embeddings: Tensor,
    margin: float = 0.7,
    distance: SpreadoutDistance = "cosine",
    *,
    reduction: Literal["sum", "mean"] = "sum",
    block: int | None = None,
) -> ValueAndGradient:
    """Value and gradient (C, d) of `spreadout`, exact, `block` times `block` pairs at a time (16 MB at most)."""
    scale = check_spreadout(class_embeddings, margin, distance, reduction)
    if block is not None and block < 1:
        raise FedVisageError(f"block must be at least 1, got {block}")
    block = block or tile(*class_embeddings.shape)
    with without_autocast(class_embeddings):
        rows = full(class_embeddings)
        parts = torch.split(rows, block)
        gradient = torch.zeros_like(rows)
        targets = torch.split(gradient, block)
        buffer = rows.new_empty(len(parts[0]) ** 2)
        total = 0.0
        for i, part in enumerate(parts):
            row, _ = unit_rows(part)
            for j, other in enumerate(parts[i:], start=i):
                column = row if i == j else unit_rows(other)[0]
                out = buffer[: len(row) * len(column)].view(len(row), len(column))
                cosines = torch.mm(row, column.T, out=out)
                if i == j:
                    cosines.fill_diagonal_(-math.inf)
                short, slope = shortfall_(cosines, margin, distance)
                value = torch.linalg.vector_norm(short, dim=1).double().square().sum().item()
                if value == 0:  # nobody here is too close: there is nothing to push
                    continue
                total += value if i == j else 2 * value
                targets[i].addmm_(slope, column, alpha=4 * scale)
                if i != j:
                    targets[j].addmm_(slope.T, row, alpha=4 * scale)
        for target, part in zip(targets, parts, strict=True):
            through_unit(target, *unit_rows(part))
        return ValueAndGradient(total * scale, gradient)


@torch.no_grad()
def mined_spreadout_gradient(
    class_embeddings: Tensor,
    nearest_classes: int,
    margin: float = 0.7,
    distance: SpreadoutDistance = "cosine",
    *,
    among: Tensor | None = None,
) -> ValueAndGradient:
    """Spreadout over each class and its `nearest_classes` closest others only, as FedAwS mines them; summed.

    `among` (m,) holds the positions of the classes that are looked through, a random sample as in FedAwS, or everybody.
    It equals `spreadout_gradient` when every pair within the margin is among the mined ones.
    """
    check_spreadout(class_embeddings, margin, distance, "sum")
    if nearest_classes < 1:
        raise FedVisageError(f"mining wants at least 1 nearest class, got {nearest_classes}")
    with without_autocast(class_embeddings):
        rows, length = unit_rows(full(class_embeddings))
        chosen = torch.arange(len(rows), device=rows.device) if among is None else among
        others = rows if among is None else rows[among]
        gradient, total = torch.zeros_like(rows), 0.0
        size = max(1, min(1024, BUFFER // max(len(others), nearest_classes * rows.shape[1])))
        for start in range(0, len(rows), size):
            row = rows[start : start + size]
            cosines = row @ others.T
            position = torch.arange(start, start + len(row), device=rows.device)
            cosines.masked_fill_(position[:, None] == chosen, -math.inf)
            closest, index = cosines.topk(min(nearest_classes, len(chosen)), dim=1)
            short, slope = shortfall_(closest, margin, distance)
            total += torch.linalg.vecdot(short, short).double().sum().item()
            index = chosen[index]
            slope = 2 * slope
            gradient[start : start + size] += torch.einsum("nk,nkd->nd", slope, rows[index])
            gradient.index_add_(0, index.flatten(), (slope.unsqueeze(2) * row.unsqueeze(1)).flatten(0, 1))
        return ValueAndGradient(total, through_unit(gradient, rows, length))
