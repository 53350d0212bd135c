"""One-vs-all binary classifiers with a margin: FedFR's eq. 6, which follows SphereFace2 (Wen et al., ICLR 2022).

With g(z) = 2((z + 1)/2)^power - 1 (the paper's printed form, 7 at z = 1, is a slip; its code has this one), a sample of
local class k costs

    balance/scale · log(1 + e^{-scale (g(cos_k) - margin) - b_k})
    + (1 - balance)/scale · Σ_{j≠k} log(1 + e^{scale (g(cos_j) + margin) + b_j})

and a public sample, which is nobody's of the party, the second sum over all classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import Reduction, reduce, without_autocast

PUBLIC = -1


def binary_margin(
    cosines: Tensor,
    labels: Tensor,
    scale: float = 30.0,
    margin: float = 0.4,
    balance: float = 0.7,
    power: float = 3.0,
    bias: Tensor | float = 0.0,
    *,
    detached: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """FedFR's eq. 6 of cosines (N, K) and labels (N,); label -1 is a public sample. `bias` is a number or (K,).

    `detached` lets the gradient pass as if the logit were scale · cos, without g and margin, as in opensphere.
    """
    _check_constants(scale, margin, balance, power)
    _check_batch(cosines, labels, bias)
    with without_autocast(cosines):
        cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
        similarity = adjust_similarity(cosines, power)
        if detached:
            similarity = cosines + (similarity - cosines).detach()
        own = torch.zeros_like(cosines, dtype=torch.bool)
        own.scatter_(1, labels.clamp_min(0)[:, None], (labels >= 0)[:, None])
        sign = torch.where(own, -1.0, 1.0).to(cosines.dtype)
        weight = torch.where(own, balance / scale, (1 - balance) / scale).to(cosines.dtype)
        terms = weight * functional.softplus(sign * (scale * similarity + bias) + scale * margin)
        return reduce(terms.sum(dim=1), reduction)


def adjust_similarity(cosines: Tensor, power: float) -> Tensor:
    """g(z) = 2((z + 1)/2)^power - 1, from -1 at z = -1 to 1 at z = 1."""
    return 2 * ((cosines + 1) / 2).clamp_min(0).pow(power) - 1


def binary_margin_bias(
    classes: int, scale: float = 30.0, margin: float = 0.4, balance: float = 0.7, power: float = 3.0
) -> float:
    """SphereFace2's start of the bias: at cosines of zero, positive and negative gradients have equal mass."""
    _check_constants(scale, margin, balance, power)
    if classes < 2 or not 0 < balance < 1:
        raise FedVisageError(
            f"no bias balances {classes} classes with balance {balance}: it needs 2 or more, and 0 < balance < 1"
        )
    middle = 2 * math.pow(0.5, power) - 1
    positive, negative = scale * (middle - margin), scale * (middle + margin)
    z = balance / ((1 - balance) * (classes - 1))
    product = 4 * z * math.exp(positive - negative)
    root = math.sqrt((1 - z) ** 2 + product)
    # (1 - z) + root without cancellation where z > 1
    total = 1 - z + root if z <= 1 else product / (root + z - 1)
    return math.log(2 * z) - negative - math.log(total)


def _check_constants(scale: float, margin: float, balance: float, power: float) -> None:
    if not 0 < scale < math.inf:
        raise FedVisageError(f"scale is {scale}: it multiplies cosines and must be a positive number")
    if not 0 <= margin <= 2:
        raise FedVisageError(f"binary_margin's margin is {margin}: it is a difference of cosines, from 0 to 2")
    if not 0 <= balance <= 1:
        raise FedVisageError(f"balance is {balance}: it shares the loss between positives and negatives, from 0 to 1")
    if not 1 <= power < math.inf:
        raise FedVisageError(f"power is {power}: it bends the cosine and must be 1 or more")


def _check_batch(cosines: Tensor, labels: Tensor, bias: Tensor | float) -> None:
    if cosines.ndim != 2 or 0 in cosines.shape or labels.shape != cosines.shape[:1]:
        raise FedVisageError(
            f"binary_margin wants cosines (N, K), not empty, and labels (N,); got {tuple(cosines.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if isinstance(bias, Tensor) and bias.shape not in ((), cosines.shape[1:]):
        raise FedVisageError(f"the bias is one number or one per class: {tuple(bias.shape)} for {cosines.shape[1]}")
    if labels.dtype != torch.int64:
        raise FedVisageError(f"labels must be int64, not {labels.dtype}")
    if labels.device.type == "cpu":
        low, high = (int(bound) for bound in torch.aminmax(labels))
        if low < PUBLIC or high >= cosines.shape[1]:
            wrong = low if low < PUBLIC else high
            raise FedVisageError(f"label {wrong} is no class of {cosines.shape[1]}, and no public sample ({PUBLIC})")
