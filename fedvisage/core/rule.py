"""Aggregation rules: what the server makes of the groups that a phase declares as sums or means.

A rule is named by the recipe's `[aggregation]` table and composes with every method whose sums are averages of answers.
One word says what it needs. A rule that needs the `sum` sees one answer at a time and what remains is a running sum.
A rule that needs answers `individual` sees all of them, coordinate by coordinate or as vectors, and the server keeps
every party's answer in a file until then: plan, policy and the table of what leaves a party say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

from numpy.typing import NDArray
from torch import Tensor

from fedvisage.core.method import Component
from fedvisage.core.parcel import Parcel, Tensors
from fedvisage.core.registry import Registry

Block = NDArray[Any]


class Vectors(Protocol):
    """Vectors of equal length, which need not be in memory: all groups of an answer side by side."""

    size: int
    """Numbers of one vector."""

    def __len__(self) -> int: ...

    def block(self, start: int, stop: int) -> Block:
        """Numbers `start` to `stop` of all vectors (n, stop - start)."""
        ...

    def by_coordinate(self, reduce: Callable[[Block], Block]) -> Tensor:
        """One vector (size,): what `reduce` makes of blocks (n, m), each (m,), a few megabytes at a time."""
        ...


class Rule(Component):
    """How answers become one. Subclasses register under a name in `RULES`."""

    needs: ClassVar[Literal["sum", "individual"]] = "sum"

    def contribution(self, answer: dict[str, Tensors], sent: Parcel, norm: float) -> dict[str, Tensors]:
        """What of one answer is summed, by group; `norm` is that of the backbone's update. For rules that need sums."""
        return answer

    def reduce(self, answers: Vectors, weights: Sequence[float], sent: Vectors) -> Tensor:
        """One vector (size,) for all answers, from what was `sent` down (zeros where nothing was).

        For rules that need answers individually.
        """
        raise TypeError(f"{type(self).__name__} does not say what it makes of single answers")


RULES: Registry[type[Rule]] = Registry("aggregation rule")


@RULES.register("mean")
class Mean(Rule):
    """The weighted mean of the answers; the only rule under which control variates and momenta are sums."""


def rule_of(components: Sequence[Component]) -> Rule:
    """The rule of a run: the mean unless one of its components is another."""
    return next((component for component in components if isinstance(component, Rule)), Mean())


def middle(block: Block, cut: int) -> Block:
    """The values of every column (n, m) without the `cut` smallest and largest, in order; the block is overwritten."""
    last = len(block) - cut - 1
    block.partition(sorted({cut, last}), axis=0)
    kept = block[cut : last + 1]
    if len(kept) > 2:
        kept.sort(axis=0)
    return kept
