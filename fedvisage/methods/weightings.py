"""How much each party's answer counts in the average."""

from __future__ import annotations

from collections.abc import Mapping

from fedvisage.core.codec import State
from fedvisage.core.method import WEIGHTINGS, Joined, Weighting


@WEIGHTINGS.register("samples")
class BySamples(Weighting):
    """In proportion to the party's number of training images, as fixed when it joined (McMahan et al., 2017)."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """n_k."""
        return float(joined.samples)


@WEIGHTINGS.register("equal")
class Equal(Weighting):
    """Every party the same."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """1."""
        return 1.0
