"""Softmax cross-entropy over class embeddings, raw and on the unit sphere (NormFace, Wang et al., 2017).

No bias. With a single class both losses are exactly zero and so are their gradients: a party with one person learns
nothing from them.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fedvisage.losses._cosines import Reduction, check_batch, full_precision, scaled_cosines, without_autocast
from fedvisage.losses.choice import LOSSES


@LOSSES.register("softmax")
def softmax(features: Tensor, class_embeddings: Tensor, labels: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy of the inner products of features (N, d) and class embeddings (C, d) with labels (N,)."""
    check_batch(features, class_embeddings, labels)
    with without_autocast(features):
        logits = functional.linear(*full_precision(features, class_embeddings))
        return functional.cross_entropy(logits, labels, reduction=reduction)


@LOSSES.register("normalised-softmax")
def normalised_softmax(
    features: Tensor, class_embeddings: Tensor, labels: Tensor, *, scale: float = 30.0, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy of `scale` times the cosines of features (N, d) and class embeddings (C, d), labels (N,)."""
    check_batch(features, class_embeddings, labels)
    with without_autocast(features):
        logits = scaled_cosines(features, class_embeddings, scale)
        return functional.cross_entropy(logits, labels, reduction=reduction)
