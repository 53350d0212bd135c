"""ArcFace: a margin on the angle of the true class (Deng et al., CVPR 2019).

The true class's cos θ becomes cos(θ + m) = cos θ cos m - sin θ sin m, and the gradient goes through it; sin θ is kept
away from zero so that it stays finite at θ = 0 and θ = π. Beyond θ = π - m, where cos(θ + m) would rise again, it is
cos θ - m sin m as in the authors' first code and in pytorch-metric-learning: falling in θ everywhere, with a jump down
at π - m. `form="raw"` is cos(θ + m) at every θ, as the paper prints it. With a single class the loss and its gradients
are exactly zero.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.losses._cosines import Reduction, check_batch, scaled_cosines, without_autocast
from fedvisage.losses.choice import LOSSES

SMALLEST_SINE_SQUARED = 1e-12
FORMS = ("falling", "raw")


@LOSSES.register("arcface")
def arcface(
    features: Tensor,
    class_embeddings: Tensor,
    labels: Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    form: Literal["falling", "raw"] = "falling",
    reduction: Reduction = "mean",
) -> Tensor:
    """ArcFace of features (N, d) and class embeddings (C, d) with labels (N,); `margin` is in radians."""
    if form not in FORMS:
        raise FedVisageError(f"arcface has no form '{form}': {nearest(form, FORMS)}")
    if not 0 <= margin < math.pi:
        raise FedVisageError(f"arcface's margin is {margin}: it is an angle in radians, from 0 to below π")
    check_batch(features, class_embeddings, labels)
    with without_autocast(features):
        logits = scaled_cosines(features, class_embeddings, scale)
        index = labels[:, None]
        cosine = logits.gather(1, index) / scale
        logits = logits.scatter_add(1, index, scale * (add_angle(cosine, margin, form) - cosine))
        return functional.cross_entropy(logits, labels, reduction=reduction)


def add_angle(cosine: Tensor, margin: float, form: str = "falling") -> Tensor:
    """cos(θ + margin) from cos θ, any shape; if falling, cos θ - margin·sin(margin) where θ + margin exceeds π."""
    sine = ((1 - cosine) * (1 + cosine)).clamp_min(SMALLEST_SINE_SQUARED).sqrt()
    shifted = cosine * math.cos(margin) - sine * math.sin(margin)
    if form == "raw":
        return shifted
    return torch.where(cosine >= -math.cos(margin), shifted, cosine - margin * math.sin(margin))
