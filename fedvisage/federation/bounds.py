"""Bounds on the norm of a party's update, from what was accepted before and from the model that went down.

A bound never depends on other answers of the same exchange, so that the verdict on one cannot depend on another's
arrival. Norms are in proportion to the learning rate, so they are remembered as multiples of it. They are compared per
local step, since a party with a hundred times the steps moves the model further, and within a role, since a labelled
source and its unlabelled targets do different work. How the norm grows with the steps lies between not at all and in
proportion; a role's usual update at a number of steps is therefore a range, and a party's own earlier updates say where
in that range it belongs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from fedvisage.config import Guard as Rules

KEPT = 3
"""Exchanges that are remembered."""
OWN = 0.4
"""A party's own updates vary less than those of a role: they are multiplied by this share of the multiple.

In the federations of benchmarks/honest.py an update was at most 4.3 times the least of the party's last three.
"""
SHARE = 0.25
"""At least this share of the multiple of what is usual is accepted.

A party that did next to nothing so far, such as one with a single person, may come up to it.
"""


@dataclass
class History:
    """Norms accepted in the last exchanges of a phase, divided by the learning rate."""

    roles: dict[str, list[list[float]]] = field(default_factory=dict)
    """By role and exchange: the median norm, and the median norm per local step."""
    parties: dict[str, list[float]] = field(default_factory=dict)
    """By party: its norms."""

    def add(self, role: str, norms: Mapping[str, float], steps: Mapping[str, int], floor: float) -> None:
        """Remember the norms of a role's parties in one exchange.

        What is usual is told by updates above the floor: parties whose loss is zero must not speak for the others.
        """
        told = {party: norm for party, norm in norms.items() if norm > floor} or dict.fromkeys(norms, floor)
        usual = [median(told.values()), median(norm / steps[party] for party, norm in told.items())]
        self.roles[role] = [*self.roles.get(role, []), usual][-KEPT:]
        for party, norm in norms.items():
            self.parties[party] = [*self.parties.get(party, []), norm][-KEPT:]

    def usual(self, role: str, steps: int) -> tuple[float, float] | None:
        """The least and the most that is usual in a role for this many local steps, if anything is known."""
        if role not in self.roles:
            return None
        norm, rate = (median(values) for values in zip(*self.roles[role], strict=True))
        return min(norm, steps * rate), max(norm, steps * rate)


@dataclass(frozen=True)
class Sender:
    """A party as far as the size of its update goes."""

    party: str
    role: str
    steps: int
    """Local steps, from the counts fixed at joining."""
    rate: float
    """Learning rate of the round."""
    alone: bool
    """No other party has its role."""


def bound(rules: Rules, history: History, sender: Sender, model: float) -> tuple[float, str]:
    """Largest norm that is accepted of a party's update, and what it comes from; `model` is the norm of what went down.

    That is the recipe's number if there is one. Otherwise it is a multiple of earlier norms and never more than a
    multiple of the model, which alone bounds the first round; but what is tiny beside the model always passes.
    """
    if rules.norm_bound is not None:
        return rules.norm_bound, "the recipe's norm_bound"
    most, why = math.inf, ""
    if rules.model_multiple is not None:
        most, why = rules.model_multiple * model, f"{rules.model_multiple:g} times the model that went down"
    share, reference, whose = _reference(history, sender)
    if rules.norm_multiple is not None and reference is not None:
        multiple = share * rules.norm_multiple
        if multiple * reference * sender.rate < most:
            most, why = multiple * reference * sender.rate, f"{multiple:g} times {whose}"
    floor = rules.norm_floor * model
    return (most, why) if most > floor else (floor, f"{rules.norm_floor:g} times the model that went down")


def _reference(history: History, sender: Sender) -> tuple[float, float | None, str]:
    """What share of the multiple goes for an earlier norm, that norm, and whose it is."""
    norms, usual = history.parties.get(sender.party), history.usual(sender.role, sender.steps)
    mine = "its own earlier updates"
    if sender.alone or usual is None:
        return OWN, median(norms) if norms else None, mine
    whose = f"what is usual for a {sender.role} of {sender.steps} local steps"
    own = min(norms) if norms else math.inf
    if OWN * own > usual[1]:
        return 1.0, usual[1], whose
    if OWN * own < SHARE * usual[0]:
        return SHARE, usual[0], whose
    return OWN, own, mine
