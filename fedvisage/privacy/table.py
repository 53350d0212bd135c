"""What leaves a party under a method, from its declarations alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedvisage.core.assembly import Assembly
from fedvisage.core.method import Component, Weighting
from fedvisage.core.parcel import GROUPS, STATISTICS
from fedvisage.core.rule import rule_of


def declared_groups(components: Sequence[Component]) -> dict[str, dict[str, dict[str, str]]]:
    """Per phase, the groups that go `down` (to whom) and come `up` (reduced how)."""
    table: dict[str, dict[str, dict[str, str]]] = {}
    seen, watched = rule_of(components).needs == "individual", _watched(components)
    for phase in Assembly(components).phases.values():
        down: dict[str, str] = dict(phase.down)
        up: dict[str, str] = dict(phase.up)
        if phase.trains:
            up |= {group: f"{how}, each seen" for group, how in up.items() if group in watched}
        if seen:
            up |= {group: f"{how}, each seen" for group, how in phase.up.items() if how != "individual"}
        if phase.sends:
            down[STATISTICS] = ", ".join(phase.sends)
        if phase.reports or phase.may_report:
            up[STATISTICS] = ", ".join((*phase.reports, *phase.may_report))
        table[phase.name] = {"down": down, "up": up}
    return table


def seen_singly(components: Sequence[Component]) -> dict[str, list[str]]:
    """Per phase, the groups of which the server sees every party's own: not in a sum only."""
    watched, keeps_each = _watched(components), rule_of(components).needs == "individual"
    return {
        phase.name: [
            group
            for group, how in phase.up.items()
            if how == "individual" or keeps_each or (phase.trains and group in watched)
        ]
        for phase in Assembly(components).phases.values()
    }


def _watched(components: Sequence[Component]) -> set[str]:
    """Groups that a weighting needs one by one."""
    return {group for part in components if isinstance(part, Weighting) for group in part.individual}


def privacy_table(components: Sequence[Component]) -> list[dict[str, str]]:
    """One row per phase, direction and group, with what the group is."""
    return [
        {"phase": phase, "direction": direction, "group": group, "how": how, "what": GROUPS[group]}
        for phase, directions in declared_groups(components).items()
        for direction, groups in directions.items()
        for group, how in groups.items()
    ]
