"""A loss by its name and options, as a recipe says it: `loss = "cosface"` with `scale`, `margin` and `loss_options`.

A loss is a registered function of features (N, d), class embeddings (C, d) and labels (N,), with its options as
keyword-only parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.registry import Registry

LOSSES: Registry[Callable[..., Tensor]] = Registry("loss")


def loss_options(name: str) -> dict[str, object]:
    """The options of a registered loss with their defaults."""
    return LOSSES.options(name)


def margin_loss(name: str, **options: object) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The loss `name` with `options` fixed: a function of features (N, d), class embeddings (C, d) and labels (N,).

    The options are tried on a batch of one, so that a wrong one is refused here and not in the middle of a run.
    """
    loss = LOSSES.with_options(name, options)
    try:
        loss(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
        raise FedVisageError(f"loss '{name}' cannot use {given}: {error}") from None
    return loss
