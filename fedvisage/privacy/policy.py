"""A party's policy: what its operator lets leave, under which methods and for how long.

The policy speaks in the groups that methods declare (`core.parcel.GROUPS`). It is asked twice: before a run, with
everything the recipe would send, and before each answer leaves, with what the answer really holds. A demand that this
version cannot meet makes the party refuse; it is never ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedvisage.core.errors import FedVisageError, Kind, nearest
from fedvisage.core.method import Component
from fedvisage.core.parcel import BACKBONE, BUFFERS, GROUPS, OPTIMISER, PERSONAL, PUBLIC_EMBEDDINGS, STATISTICS, Parcel
from fedvisage.privacy.table import declared_groups

ANY = "*"
UNMET = {
    "differential-privacy": "differential privacy",
    "secure-aggregation": "secure aggregation",
}
"""Demands that may be written into a policy and that no run of this version can satisfy."""


class Refused(FedVisageError):
    """The party's policy does not allow this; nothing left."""

    kind: ClassVar[Kind] = Kind.POLICY


class Policy(BaseModel):
    """What may leave a party. By default everything but what shows a party's own people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...] = (ANY,)
    """Methods this party takes part in; `*` for all."""
    groups: tuple[str, ...] = (BACKBONE, BUFFERS, PUBLIC_EMBEDDINGS, OPTIMISER, STATISTICS)
    """Groups of state that may leave; templates of the party's people (`class_embeddings.private`) only if named."""
    rounds: Annotated[int, Field(ge=1)] = 1000
    """Most rounds of one run."""
    require: tuple[str, ...] = ()
    """Protections without which the party takes no part."""

    @field_validator("groups")
    @classmethod
    def _groups_exist(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        for group in groups:
            if group not in GROUPS:
                raise ValueError(f"no group '{group}': {nearest(group, GROUPS)}")
            if group == PERSONAL:
                raise ValueError(f"'{PERSONAL}' never leaves a party; take it out")
        return groups

    @field_validator("require")
    @classmethod
    def _demands_exist(cls, require: tuple[str, ...]) -> tuple[str, ...]:
        for demand in require:
            if demand not in UNMET:
                raise ValueError(f"unknown demand '{demand}': {nearest(demand, UNMET)}")
        return require

    def objections(self, method: str, components: Sequence[Component], rounds: int) -> list[str]:
        """Everything that speaks against taking part in a run; nothing where it may."""
        found = [f"it demands {UNMET[demand]}, which this version cannot give" for demand in self.require]
        if ANY not in self.methods and method not in self.methods:
            found.append(f"method '{method}' is not among {', '.join(self.methods) or 'none'}")
        if rounds > self.rounds:
            found.append(f"{rounds} rounds are more than {self.rounds}")
        for phase, directions in declared_groups(components).items():
            for group in self._forbidden(directions["up"]):
                found.append(f"{group} may not leave, and phase '{phase}' sends it")
        return found

    def check(self, parcel: Parcel) -> None:
        """Refuse an answer that holds something which may not leave."""
        self.check_groups([*parcel.tensors, *([STATISTICS] if parcel.statistics else [])])

    def check_groups(self, groups: Iterable[str]) -> None:
        """Refuse groups that may not leave."""
        forbidden = self._forbidden(groups)
        if forbidden:
            raise Refused(f"policy: {', '.join(forbidden)} may not leave this party; nothing was sent")

    def _forbidden(self, groups: Iterable[str]) -> list[str]:
        return [group for group in groups if group not in self.groups]
