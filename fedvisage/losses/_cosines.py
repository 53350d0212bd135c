"""What the softmax losses share: full precision, unit vectors, scaled cosines and the check of their inputs."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError, nearest

Reduction = Literal["mean", "sum", "none"]

SMALLEST_NORM = 1e-12


def full_precision(features: Tensor, class_embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in float32, or in float64 when one of them already is."""
    dtype = torch.promote_types(torch.promote_types(features.dtype, class_embeddings.dtype), torch.float32)
    return features.to(dtype), class_embeddings.to(dtype)


def without_autocast(features: Tensor) -> AbstractContextManager[object]:
    """A context in which matrix products keep the precision of their inputs."""
    kind = features.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def unit(vectors: Tensor) -> Tensor:
    """Rows of `vectors` (..., d) divided by their norm.

    A zero row stays zero and its gradient is not divided by anything; `F.normalize` would multiply it by 1e12.
    """
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norm > SMALLEST_NORM, norm, torch.ones_like(norm))


def scaled_cosines(features: Tensor, class_embeddings: Tensor, scale: float) -> Tensor:
    """`scale` times the cosine of every feature (N, d) and class embedding (C, d): (N, C).

    The scale multiplies the smaller factor, which spares one pass over (N, C).
    """
    if not 0 < scale < math.inf:
        raise FedVisageError(f"scale is {scale}: it multiplies cosines and must be a positive number")
    features, class_embeddings = full_precision(features, class_embeddings)
    return functional.linear(unit(features) * scale, unit(class_embeddings))


def check_batch(features: Tensor, class_embeddings: Tensor, labels: Tensor) -> None:
    """Refuse shapes that do not belong together and, on the CPU where it is free, labels outside 0..C-1."""
    if (
        features.ndim != 2
        or class_embeddings.ndim != 2
        or features.shape[1] != class_embeddings.shape[1]
        or labels.shape != features.shape[:1]
        or 0 in (*features.shape, *class_embeddings.shape)
    ):
        raise FedVisageError(
            "a loss wants features (N, d), class embeddings (C, d) and labels (N,), none of them empty; got "
            f"{tuple(features.shape)}, {tuple(class_embeddings.shape)} and {tuple(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise FedVisageError(f"labels must be int64, not {labels.dtype}")
    if labels.device.type == "cpu":
        low, high = (int(bound) for bound in torch.aminmax(labels))
        if low < 0 or high >= len(class_embeddings):
            wrong = low if low < 0 else high
            raise FedVisageError(f"label {wrong} has no class embedding: there are {len(class_embeddings)} classes")


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Losses (N,) as they are, summed or averaged."""
    match reduction:
        case "none":
            return losses
        case "sum":
            return losses.sum()
        case "mean":
            return losses.mean()
    raise FedVisageError(f"unknown reduction '{reduction}': {nearest(reduction, get_args(Reduction))}")
