"""A party's policy: what its operator lets leave, under which methods and for how long.

The policy speaks in the groups that methods declare (`core.parcel.GROUPS`). It is asked twice: before a run, with
everything the recipe would send, and before each answer leaves, with what the answer really holds. A demand that this
version cannot meet makes the party refuse; it is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedvisage.core.errors import FedVisageError, Kind, nearest
from fedvisage.core.method import Component
from fedvisage.core.parcel import BACKBONE, BUFFERS, GROUPS, OPTIMISER, PERSONAL, PUBLIC_EMBEDDINGS, STATISTICS, Parcel
from fedvisage.privacy.table import declared_groups, seen_singly

ANY = "*"
UNMET = {
    "differential-privacy": "differential privacy",
    "secure-aggregation": "secure aggregation",
}
"""Demands that may be written into a policy and that no run of this version can satisfy."""


Seen = Literal["sum", "individual"]
"""How a group may be seen by the server: in a sum with other parties' only, or singly, too."""
SUM: Seen = "sum"
INDIVIDUAL: Seen = "individual"
DEFAULT: Mapping[str, Seen] = {
    BACKBONE: SUM,
    BUFFERS: SUM,
    PUBLIC_EMBEDDINGS: SUM,
    OPTIMISER: SUM,
    STATISTICS: INDIVIDUAL,
}
"""Numbers are reported party by party. Nothing else is seen singly unless the party's operator writes it."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Refused(FedVisageError):
    """The party's policy does not allow this; nothing left."""

    kind: ClassVar[Kind] = Kind.POLICY


class Policy(BaseModel):
    """What may leave a party. By default everything but what shows a party's own people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...] = (ANY,)
    """Methods this party takes part in; `*` for all."""
    groups: Mapping[str, Seen] = DEFAULT
    """Groups of state that may leave, and whether in a sum with other parties only or to be seen singly, too.

    Templates of the party's people (`class_embeddings.private`) leave only if named. A list names groups, too: those
    above with their defaults, others to be seen singly.
    """
    rounds: Annotated[int, Field(ge=1)] = 1000
    """Most rounds of one run."""
    plugins: dict[str, Digest] = {}
    """Code from outside the package that may run here: its name in recipes, and the SHA-256 of its file."""
    require: tuple[str, ...] = ()
    """Protections without which the party takes no part."""

    @field_validator("groups", mode="before")
    @classmethod
    def _a_list_names_groups(cls, groups: Any) -> Any:
        if isinstance(groups, list | tuple):
            return {str(group): DEFAULT.get(str(group), INDIVIDUAL) for group in groups}
        return groups

    @field_validator("groups")
    @classmethod
    def _groups_exist(cls, groups: Mapping[str, Seen]) -> Mapping[str, Seen]:
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

    def plugin_objections(self, names: Iterable[str], digest: Callable[[str], str]) -> list[str]:
        """What speaks against a run's plug-ins, before any of them is imported; `digest` reads the file found here."""
        found = []
        for name in names:
            if name not in self.plugins:
                found.append(f"plug-in '{name}' is not allowed")
            elif digest(name) != self.plugins[name]:
                found.append(f"plug-in '{name}' is not the file that is allowed")
        return found

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
        for phase, groups in seen_singly(components).items():
            for group in groups:
                if self.groups.get(group, INDIVIDUAL) == SUM:
                    found.append(
                        f"{group} may leave in a sum only, and phase '{phase}' shows it to the server singly "
                        f'(groups."{group}" = "{INDIVIDUAL}" allows that)'
                    )
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
