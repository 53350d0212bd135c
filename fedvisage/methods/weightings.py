"""How much each party's answer counts in the average."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from statistics import median
from typing import Annotated

from pydantic import Field

from fedvisage.core.codec import State
from fedvisage.core.method import WEIGHTINGS, Joined, Weighting


@WEIGHTINGS.register("samples")
class BySamples(Weighting):
    """In proportion to the party's number of training images, as fixed when it joined (McMahan et al., 2017).

    A party says itself how many images it has: beyond `cap` times the median, more of them count no more.
    """

    cap: Annotated[float, Field(ge=1)] = 50.0
    """Largest weight, in medians of the parties' numbers of images."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """n_k."""
        return float(joined.samples)

    def most(self, joined: Collection[Joined]) -> float:
        """The cap."""
        return self.cap * median(party.samples for party in joined) if joined else math.inf


@WEIGHTINGS.register("equal")
class Equal(Weighting):
    """Every party the same."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """1."""
        return 1.0
