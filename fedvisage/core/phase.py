"""Phases: who takes part in an exchange, when, and what crosses in each direction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedvisage.core.parcel import (
    BUFFERS,
    GROUPS,
    OPTIMISER,
    PERSONAL,
    PRIVATE_EMBEDDINGS,
    PUBLIC_EMBEDDINGS,
    STATISTICS,
)

Audience = Literal["all", "owner"]
"""Who gets a group that goes down: every party the same, or each party its own."""

Reduction = Literal["weighted_sum", "mean", "individual"]
"""How a group that comes up is reduced: summed by the weighting, averaged equally, or seen party by party."""

TRAINER, SOURCE, TARGET, VALIDATOR = "trainer", "source", "target", "validator"
ROLES: Mapping[str, str] = {
    TRAINER: "trains on its own labelled people",
    SOURCE: "the labelled party of domain adaptation",
    TARGET: "an unlabelled party of domain adaptation",
    VALIDATOR: "scores candidate models on its own pairs",
}
LARGEST: Mapping[str, float] = {BUFFERS: 1e4, PRIVATE_EMBEDDINGS: 1e3, PUBLIC_EMBEDDINGS: 1e3, OPTIMISER: 1e4}
"""Largest size of what comes up in a group: the length of a class embedding, otherwise a number.

Variances among the buffers may be as large as the square.
"""
LARGEST_NUMBER = 1e6
"""Largest number that comes up, where the phase does not say otherwise."""
MOST_IMAGES = 1e9
"""For numbers that count images."""

LEARNERS = frozenset({TRAINER, SOURCE, TARGET})

_NAME = re.compile(r"[a-z][a-z_]*")


@dataclass(frozen=True)
class Phase:
    """One exchange of a component. What comes up under a group's name is the new value, never a difference."""

    name: str
    when: Literal["start", "round", "end"] = "round"
    every: int = 1
    """In `round` phases: every how many rounds."""
    also_last: bool = True
    """Whether it comes in the last round, too, whatever `every` says."""
    repeats: int = 1
    """Exchanges in a row; plan and absorb see which one in `context.repeat`."""
    beside: str = ""
    """The phase of the next round that other parties are busy with meanwhile; in the last round it comes in its place.

    What it changes on the server counts from then on, but neither for what that phase sends nor for how it weighs.
    """
    roles: frozenset[str] = LEARNERS
    sampled: bool = True
    """Whether participation sampling applies; if not, everybody of the roles takes part."""
    always: frozenset[str] = frozenset()
    """Roles of which everybody takes part even when sampling."""
    down: Mapping[str, Audience] = field(default_factory=dict)
    up: Mapping[str, Reduction] = field(default_factory=dict)
    sends: tuple[str, ...] = ()
    """Numbers that go down."""
    reports: tuple[str, ...] = ()
    """Numbers that come up from every party."""
    may_report: tuple[str, ...] = ()
    """Numbers that come up where the party can compute them."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """Largest size of what comes up, by group or number, where a method knows better than `LARGEST`."""
    trains: bool = False
    """Whether it is local training: the norm bound, a party's own BatchNorm and `keep_local` belong to such phases."""
    keeps_state: bool = True
    """Whether the party's private state can change."""
    counts: bool = False
    """Whether the `samples` and `classes` it reports fix the party's counts from then on."""

    def __post_init__(self) -> None:
        travelling = set(GROUPS) - {PERSONAL, STATISTICS}
        for group in (*self.down, *self.up):
            if group not in travelling:
                raise ValueError(f"phase '{self.name}' declares '{group}', no group of tensors that may travel")
        if not _NAME.fullmatch(self.name) or self.every < 1 or self.repeats < 1 or not self.roles <= set(ROLES):
            raise ValueError(f"phase '{self.name}' is malformed: a lower-case name, known roles, counts from 1")
        if self.beside and (self.when != "round" or self.counts or self.trains):
            raise ValueError(f"phase '{self.name}' cannot run beside another: it belongs to no round, counts or trains")
