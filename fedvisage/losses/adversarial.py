"""A domain classifier that the features learn to fool, by gradient reversal (Ganin et al., JMLR 2016: DANN).

The classifier, one hidden layer with ReLU, tells the domains of unit features apart and learns from the cross-entropy
as usual. Between it and the features the gradient is multiplied by -strength: they learn to make the domains alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import full_precision, unit, without_autocast

HIDDEN, HIDDEN_BIAS, OUTPUT, OUTPUT_BIAS = "hidden.weight", "hidden.bias", "output.weight", "output.bias"


class _Reversed(torch.autograd.Function):
    """The identity whose gradient is multiplied by -strength."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: float) -> Tensor:
        """The features as they are."""
        ctx.strength = strength
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient turned round."""
        return -ctx.strength * gradients[0], None


def domain_classifier(size: int, hidden: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A new classifier of features (N, size): its four tensors by name."""

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * math.sqrt(2 / columns)

    return {
        HIDDEN: draw(hidden, size),
        HIDDEN_BIAS: torch.zeros(hidden),
        OUTPUT: draw(1, hidden),
        OUTPUT_BIAS: torch.zeros(1),
    }


def domain_adversarial(
    features: Tensor, is_target: Tensor, classifier: Mapping[str, Tensor], strength: float = 1.0
) -> Tensor:
    """Cross-entropy of the classifier that tells whether features (N, d) are the target's (N,), reversed for them."""
    if features.ndim != 2 or 0 in features.shape or is_target.shape != features.shape[:1]:
        raise FedVisageError(
            "domain_adversarial wants features (N, d), not empty, and their domains (N,); got "
            f"{tuple(features.shape)} and {tuple(is_target.shape)}"
        )
    with without_autocast(features):
        features, weight = full_precision(features, classifier[HIDDEN])
        seen = _Reversed.apply(unit(features), strength)  # type: ignore[no-untyped-call]
        hidden = functional.relu(functional.linear(seen, weight, classifier[HIDDEN_BIAS]))
        score = functional.linear(hidden, classifier[OUTPUT], classifier[OUTPUT_BIAS]).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, is_target.to(score.dtype))


def reversal_strength(progress: float) -> float:
    """The paper's schedule: 0 at the beginning of training (progress 0), nearly 1 at its end (progress 1)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1
