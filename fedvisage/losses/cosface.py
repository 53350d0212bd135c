"""CosFace: a margin on the cosine of the true class (Wang et al., CVPR 2018).

With z = s (m + log-sum-exp of the other classes' cosines / s - cos_y), written out s·m + LSE(s cos_j≠y) - s cos_y:

- `form="softplus"` is the paper's cross-entropy, log(1 + e^z);
- `form="hinge"` is max(0, z), which the published code of FedFace (Aggarwal et al., IJCB 2021) uses. Its "margin 10"
  at scale 30 is in units of scaled logits: `margin=10 / 30` here.

With a single class z is minus infinity: the loss and its gradients are exactly zero in both forms.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.losses._cosines import Reduction, check_batch, reduce, scaled_cosines, without_autocast
from fedvisage.losses.choice import LOSSES

FORMS = ("softplus", "hinge")


@LOSSES.register("cosface")
def cosface(
    features: Tensor,
    class_embeddings: Tensor,
    labels: Tensor,
    *,
    scale: float = 30.0,
    margin: float = 0.35,
    form: Literal["softplus", "hinge"] = "softplus",
    reduction: Reduction = "mean",
) -> Tensor:
    """CosFace of features (N, d) and class embeddings (C, d) with labels (N,); `margin` is a cosine."""
    if form not in FORMS:
        raise FedVisageError(f"cosface has no form '{form}': {nearest(form, FORMS)}")
    if not 0 <= margin <= 2:
        raise FedVisageError(f"cosface's margin is {margin}: it is a difference of cosines, from 0 to 2")
    check_batch(features, class_embeddings, labels)
    with without_autocast(features):
        logits = scaled_cosines(features, class_embeddings, scale)
        index = labels[:, None]
        if form == "softplus":
            logits.scatter_add_(1, index, logits.new_full(index.shape, -scale * margin))
            return functional.cross_entropy(logits, labels, reduction=reduction)
        positive = logits.gather(1, index).squeeze(1)
        if len(class_embeddings) == 1:
            return reduce(positive * 0.0, reduction)
        negatives = logits.scatter(1, index, -torch.inf).logsumexp(dim=1)
        return reduce(functional.relu(scale * margin + negatives - positive), reduction)
