"""Losses about a centre: features and class embeddings at unit length less a mean, before they are compared.

Where all features lie in a narrow cone, a margin on cosines spends its gradients on opening or moving the cone. About
the mean of the features it does not see the cone at all. The mean is a constant: no gradient goes through it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import full_precision, unit, without_autocast

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
KEEP = 0.9
"""Share of the running mean that a batch leaves as it was: it follows about ten batches."""


class Centred:
    """A loss of cosines about a `centre` (d,), or about the running mean of the unit features that it is given.

    The running mean starts at the first batch's; each later batch moves it before its own loss is taken. It does not
    move where no gradients are wanted.
    """

    def __init__(self, loss: Loss, centre: Tensor | None = None) -> None:
        self.loss, self.centre, self.runs = loss, centre, centre is None
        _check_compares_cosines(loss)

    def __call__(self, features: Tensor, class_embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of features (N, d) and class embeddings (C, d) with labels (N,)."""
        with without_autocast(features):
            features, class_embeddings = full_precision(features, class_embeddings)
            if self.runs and (self.centre is None or torch.is_grad_enabled()):
                mean = unit(features.detach()).mean(dim=0)
                self.centre = mean if self.centre is None else KEEP * self.centre + (1 - KEEP) * mean
            assert self.centre is not None
            return self.loss(about(features, self.centre), about(class_embeddings, self.centre), labels)


def about(vectors: Tensor, centre: Tensor) -> Tensor:
    """Vectors (N, d) in the direction of unit(v) - c, as long as v."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return unit(unit(vectors) - centre.to(vectors)) * length


def _check_compares_cosines(loss: Loss) -> None:
    """Refuse a loss that looks at lengths, too: about a centre they mean something else."""
    features, labels = torch.eye(2, 3, dtype=torch.float64) + 0.1, torch.tensor([0, 1])
    one, other = loss(features, features.flip(1), labels), loss(3 * features, 2 * features.flip(1), labels)
    if not torch.allclose(one, other):
        raise FedVisageError(
            "a loss about a centre must compare cosines, and this one changes with the vectors' lengths"
        )
