"""A loss by its name and options, as a recipe says it: `loss = "cosface"` with `scale` and `margin`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.registry import Registry
from fedvisage.losses.arcface import arcface
from fedvisage.losses.cosface import cosface
from fedvisage.losses.softmax import normalised_softmax, softmax

LOSSES: Registry[Callable[..., Tensor]] = Registry("loss")
LOSSES.register("softmax")(softmax)
LOSSES.register("normalised-softmax")(normalised_softmax)
LOSSES.register("cosface")(cosface)
LOSSES.register("arcface")(arcface)


def loss_options(name: str) -> dict[str, object]:
    """The options of a registered loss with their defaults."""
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    return {option.name: option.default for option in parameters if option.kind is option.KEYWORD_ONLY}


def margin_loss(name: str, **options: object) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The loss `name` with `options` fixed: a function of features (N, d), class embeddings (C, d) and labels (N,).

    The options are tried on a batch of one, so that a wrong one is refused here and not in the middle of a run.
    """
    known = loss_options(name)
    for option in options:
        if option not in known:
            raise FedVisageError(f"loss '{name}' has no option '{option}': {nearest(option, known)}")
    loss = functools.partial(LOSSES[name], **options)
    try:
        loss(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
        raise FedVisageError(f"loss '{name}' cannot use {given}: {error}") from None
    return loss
