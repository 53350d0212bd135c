"""The model-contrastive term: near the global model, away from the previous one (MOON, as FedFR's eq. 5 uses it).

For one image, f is the feature of the model in training, f_glob that of the global model the party received and f_prev
that of the party's own model at the end of its last round, both frozen:

    -log(e^{cos(f, f_glob)/τ} / (e^{cos(f, f_glob)/τ} + e^{cos(f, f_prev)/τ}))

or log(1 + e^{(cos(f, f_prev) - cos(f, f_glob))/τ}).
Where the two frozen models are one, as in a party's first round, it is log 2 and its gradient exactly zero.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import Reduction, full_precision, reduce, unit, without_autocast


def model_contrastive(
    features: Tensor,
    global_features: Tensor,
    previous_features: Tensor,
    temperature: float = 0.5,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """FedFR's eq. 5 of features, the global model's and the previous model's, each (N, d); only the first learn."""
    if (
        features.ndim != 2
        or 0 in features.shape
        or not features.shape == global_features.shape == previous_features.shape
    ):
        raise FedVisageError(
            "model_contrastive wants three feature tensors of one shape (N, d), not empty; got "
            f"{tuple(features.shape)}, {tuple(global_features.shape)} and {tuple(previous_features.shape)}"
        )
    if not 0 < temperature < math.inf:
        raise FedVisageError(f"temperature is {temperature}: it divides cosines and must be a positive number")
    with without_autocast(features):
        features, near = full_precision(features, global_features.detach())
        features, away = full_precision(features, previous_features.detach())
        direction = unit(away) - unit(near)  # exactly zero where both are one, and so then is the gradient
        return reduce(functional.softplus((unit(features) * direction).sum(dim=-1) / temperature), reduction)
