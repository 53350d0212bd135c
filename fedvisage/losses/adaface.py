"""AdaFace: a margin that depends on the quality of the image (Kim, Jain and Liu, CVPR 2022).

The norm of a feature stands for the quality of its image. With the mean μ and the standard deviation σ of the batch's
norms, q = h (norm - μ) / σ, clipped to [-1, 1] and taken as a constant (its eq. 12 and 13). The true class's cos θ
becomes cos(θ - m q) - (m q + m) (eq. 14 and 15): ArcFace's margin at q = -1, CosFace's at q = 0, and at q = 1 an angle
that is subtracted, so that hard images count for less where their quality is low. The angle stays from 0 to π, as in
the authors' code.

The paper averages μ and σ over batches with a weight of 0.99 on the newest one. A loss here is a function of its
inputs, so the newest has all the weight, as in the authors' code by default. Where all norms of a batch are equal, and
in a batch of one image, q = 0. With a single class the loss and its gradients are exactly zero.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import (
    SMALLEST_NORM,
    Reduction,
    check_batch,
    full_precision,
    scaled_cosines,
    without_autocast,
)
from fedvisage.losses.arcface import SMALLEST_SINE_SQUARED
from fedvisage.losses.choice import LOSSES


@LOSSES.register("adaface")
def adaface(
    features: Tensor,
    class_embeddings: Tensor,
    labels: Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.4,
    concentration: float = 0.333,
    reduction: Reduction = "mean",
) -> Tensor:
    """AdaFace of features (N, d) and class embeddings (C, d) with labels (N,); `concentration` is the paper's h."""
    if not 0 <= margin <= 1:
        raise FedVisageError(f"adaface's margin is {margin}: it is an angle and a difference of cosines, from 0 to 1")
    if not concentration >= 0:
        raise FedVisageError(f"adaface's concentration is {concentration}: it cannot be negative")
    check_batch(features, class_embeddings, labels)
    with without_autocast(features):
        quality = relative_norms(full_precision(features, class_embeddings)[0].detach(), concentration)
        return with_quality(features, class_embeddings, labels, quality, scale, margin, reduction)


def relative_norms(features: Tensor, concentration: float) -> Tensor:
    """q of each feature of a batch (N, d): (N,)."""
    norms = torch.linalg.vector_norm(features, dim=1)
    spread = norms.std() if len(norms) > 1 else norms.new_zeros(())
    if not spread > SMALLEST_NORM:
        return torch.zeros_like(norms)
    quality: Tensor = concentration * (norms - norms.mean()) / spread
    return quality.clamp(-1, 1)


def with_quality(
    features: Tensor,
    class_embeddings: Tensor,
    labels: Tensor,
    quality: Tensor,
    scale: float,
    margin: float,
    reduction: Reduction,
) -> Tensor:
    """The loss at given qualities (N,)."""
    logits = scaled_cosines(features, class_embeddings, scale)
    index = labels[:, None]
    cosine = logits.gather(1, index) / scale
    angle = -margin * quality[:, None]
    sine = ((1 - cosine) * (1 + cosine)).clamp_min(SMALLEST_SINE_SQUARED).sqrt()
    moved = cosine * angle.cos() - sine * angle.sin()
    moved = torch.where((angle < 0) & (cosine > angle.cos()), 1.0, moved)
    moved = torch.where((angle > 0) & (cosine < -angle.cos()), -1.0, moved)
    logits = logits.scatter_add(1, index, scale * (moved - margin * (quality[:, None] + 1) - cosine))
    return functional.cross_entropy(logits, labels, reduction=reduction)
