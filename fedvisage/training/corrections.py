"""Corrections of gradients that several methods share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvisage.training.loop import Correct


def add_constant(addend: Mapping[str, Tensor], factor: float = 1.0) -> Correct:
    """A correction that adds factor * addend to the gradients, the same at every step of a round."""
    fixed: list[Tensor] = []

    def correct(parameters: Mapping[str, Tensor]) -> None:
        gradients = [gradient for name in addend if (gradient := parameters[name].grad) is not None]
        if not fixed:
            fixed.extend(value.to(g.device) for value, g in zip(addend.values(), gradients, strict=True))
        torch._foreach_add_(gradients, fixed, alpha=factor)

    return correct
