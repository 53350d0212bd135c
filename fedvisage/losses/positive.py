"""The positive-only loss of a party with one person (FedFace, Aggarwal, Zhou and Jain, IJCB 2021).

With unit vectors the party's features are drawn to its class embedding until their cosine reaches the margin:
the mean of max(0, margin - w·f)². There are no negatives; alone it collapses, which is what `spreadout` is against.
"""

from __future__ import annotations

from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import Reduction, full_precision, reduce, unit, without_autocast


def positive_hinge(
    features: Tensor, class_embedding: Tensor, margin: float = 0.9, *, reduction: Reduction = "mean"
) -> Tensor:
    """Squared hinge of features (N, d) and their class embedding, (d,) for all of them or (N, d) for one each."""
    if (
        features.ndim != 2
        or 0 in features.shape
        or class_embedding.shape not in (features.shape, features.shape[1:], (1, features.shape[1]))
    ):
        raise FedVisageError(
            "positive_hinge wants features (N, d), not empty, and a class embedding (d,) or (N, d); got "
            f"{tuple(features.shape)} and {tuple(class_embedding.shape)}"
        )
    if not -1 <= margin <= 2:
        raise FedVisageError(f"positive_hinge's margin is {margin}: it is a cosine to reach, from -1 to 2")
    with without_autocast(features):
        features, class_embedding = full_precision(features, class_embedding)
        cosines = (unit(features) * unit(class_embedding)).sum(dim=-1)
        return reduce((margin - cosines).clamp_min(0).square(), reduction)
