"""Aggregation rules besides the mean, two of which stand some parties that send anything (Yin et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.core.parcel import Parcel, Tensors
from fedvisage.core.rule import RULES, Block, Rule, Vectors, middle


class Coordinates(Rule):
    """The mean of every coordinate's middle values; every party counts the same."""

    needs: ClassVar[Literal["sum", "individual"]] = "individual"

    def cut(self, parties: int) -> int:
        """How many values are left out at each end."""
        raise TypeError(f"{type(self).__name__} does not say how many values it leaves out")

    def reduce(self, answers: Vectors, weights: Sequence[float], sent: Vectors) -> Tensor:
        """Coordinate by coordinate."""
        cut = self.cut(len(answers))

        def mean(block: Block) -> Block:
            found: Block = torch.from_numpy(middle(block, cut)).mean(dim=0).numpy()
            return found

        return answers.by_coordinate(mean)


@RULES.register("median")
class Median(Coordinates):
    """The coordinate-wise median; that of an even number is the mean of the middle two."""

    def cut(self, parties: int) -> int:
        """All but one or two."""
        return (parties - 1) // 2


@RULES.register("trimmed-mean")
class TrimmedMean(Coordinates):
    """The coordinate-wise mean without the smallest and the largest values."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the parties that is left out at each end."""

    def cut(self, parties: int) -> int:
        """Rounded down; one value is always left."""
        return min(int(self.trim * parties), (parties - 1) // 2)


@RULES.register("norm-clipping")
class NormClipping(Rule):
    """The mean of updates that are shortened to a norm."""

    clip: Annotated[float, Field(gt=0)]
    """Largest norm of a backbone's update; an answer with a larger one is moved towards what went down."""

    def contribution(self, answer: dict[str, Tensors], sent: Parcel, norm: float) -> dict[str, Tensors]:
        """The part of the way from what went down that is as long as allowed; groups that did not go down stay."""
        if norm <= self.clip:
            return answer
        return {group: _part(sent.get(group), tensors, self.clip / norm) for group, tensors in answer.items()}


def _part(start: Tensors, values: Tensors, share: float) -> Tensors:
    return {n: torch.lerp(start[n], value, share) if n in start else value for n, value in values.items()}
