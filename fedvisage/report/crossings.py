"""What crossed between the server and the parties, summed up from the ledger one line at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.core.parcel import GROUPS, STATISTICS
from fedvisage.report.folder import damaged_line, read_lines

NOTHING = "nothing"
"""Stands for a parcel without tensors and numbers: a bare request, or an empty answer."""


Absent = Mapping[tuple[int, str, str], Sequence[str]]
"""Reasons for missing answers by (round, phase, party), as the metrics name them."""


@dataclass
class Crossing:
    """All parcels of one phase, direction and group. Memory grows with the parties, not with the rounds."""

    parcels: int = 0
    bytes: int = 0
    refused: int = 0
    names: set[str] = field(default_factory=set)
    """Of the numbers, where the group is `statistics`."""
    visits: int = 0
    """How many (party, round) there were."""
    latest: dict[str, int] = field(default_factory=dict)
    """Each party's latest round."""

    def add(self, party: str, round: int, size: int, refused: bool) -> None:
        """Count one parcel."""
        self.parcels += 1
        self.bytes += size
        self.refused += refused
        if self.latest.get(party) != round:
            self.visits += 1
            self.latest[party] = round

    @property
    def per_visit(self) -> float:
        """Bytes per party and round."""
        return self.bytes / self.visits


@dataclass
class Crossings:
    """The ledger of a run, summed up."""

    rows: dict[tuple[str, str, str], Crossing] = field(default_factory=dict)
    """By phase, direction and group, in the order of their first parcel."""
    left: dict[str, int] = field(default_factory=dict)
    """Bytes that left each party."""
    extra_refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    """By phase and reason: answers refused besides those the metrics already name (repeated, unasked or stale)."""
    attempts: int = 1

    @property
    def total_up(self) -> int:
        """Bytes that left the parties."""
        return sum(self.left.values())

    @property
    def most_up(self) -> int:
        """Bytes that left the party that sent the most."""
        return max(self.left.values(), default=0)

    def groups(self, direction: str) -> set[str]:
        """Groups that went `down` or `up`."""
        return {group for _, way, group in self.rows if way == direction}

    def never_left(self) -> list[str]:
        """Groups that never left a party."""
        return [group for group in GROUPS if group not in self.groups("up")]


def sum_up(path: Path, known: Absent) -> Crossings:
    """Stream a ledger; `known` are the missing answers that the metrics explain."""
    result = Crossings()
    last: tuple[Any, ...] = ()
    for number, row in read_lines(path):
        if "layout" in row:
            continue
        try:
            last = _add(result, row, known, last)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_line(path, number, ValueError(f"not a ledger line ({error})")) from None
    return result


def _add(result: Crossings, row: dict[str, Any], known: Absent, last: tuple[Any, ...]) -> tuple[Any, ...]:
    """Count one line; the lines of one refused parcel follow one another and count once."""
    party, round, phase, direction = row["party"], row["round"], row["phase"], row["direction"]
    size, reason = int(row["bytes"]), row.get("refused", "")
    names = row.get("names", ())
    group = NOTHING if row["group"] == STATISTICS and not names else row["group"]
    crossing = result.rows.get((phase, direction, group))
    if crossing is None:
        crossing = result.rows[(phase, direction, group)] = Crossing()
    crossing.add(party, round, size, bool(reason))
    crossing.names.update(names)
    result.attempts = max(result.attempts, int(row["attempt"]))
    if direction == "up":
        result.left[party] = result.left.get(party, 0) + size
    if not reason:
        return ()
    parcel = (round, phase, row["attempt"], party, reason)
    if parcel != last and reason not in known.get((round, phase, party), ()):
        result.extra_refusals[(phase, reason)] = result.extra_refusals.get((phase, reason), 0) + 1
    return parcel
