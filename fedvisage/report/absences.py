"""Whose answers did not count, in how many of a party's exchanges, and why; read from the metrics of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedvisage.report.folder import Metrics, read_metrics
from fedvisage.report.words import percent, plural

LINES = 10
"""Parties that a summary names."""


@dataclass(frozen=True)
class Absence:
    """A party some of whose answers in a phase did not count."""

    party: str
    phase: str
    counted: int
    asked: int
    reasons: dict[str, int]
    """How often each reason was given."""
    kinds: dict[str, int]
    """How often it was of each kind; nothing in runs of versions that told no kinds."""
    method: str = ""
    """The method that the run was compared with, if it was in its rounds."""

    @property
    def share(self) -> float:
        """Share of its answers that counted."""
        return self.counted / self.asked

    def __str__(self) -> str:
        reason, often = max(self.reasons.items(), key=lambda item: item[1])
        more = f" ({often} times, and {plural(len(self.reasons) - 1, 'other reason')})" if len(self.reasons) > 1 else ""
        place = f"{self.method}: {self.phase}" if self.method else self.phase
        counts = f"{self.counted} of {plural(self.asked, 'answer')} counted ({percent(self.share, 0)})"
        return f"{self.party}, {place}: {counts}; {reason}{more}"

    def table(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"share": round(self.share, 6)}


def absences(metrics: Metrics, method: str = "") -> list[Absence]:
    """By party and phase, those who missed the most first."""
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for (_, phase, party), given in metrics.absent.items():
        reasons.setdefault((phase, party), Counter()).update(given)
    found = [
        Absence(
            party,
            phase,
            metrics.counted[phase, party],
            metrics.counted[phase, party] + why.total(),
            dict(why),
            dict(metrics.kinds.get((phase, party), {})),
            method,
        )
        for (phase, party), why in reasons.items()
    ]
    return sorted(found, key=lambda one: (one.counted - one.asked, one.phase, one.party))


def run_absences(folder: Path) -> list[Absence]:
    """Those of a run's own rounds and of the methods that it is compared with."""
    found = absences(read_metrics(folder / "metrics.jsonl"))
    for path in sorted((folder / "compare").glob("*/metrics.jsonl")):
        found += absences(read_metrics(path), path.parent.name)
    return found


def absence_lines(found: Sequence[Absence]) -> list[str]:
    """What a summary says of them; nothing where every answer counted."""
    if not found:
        return []
    missing = sum(one.asked - one.counted for one in found)
    lines = [f"{plural(missing, 'answer')} did not count:", *(f"  {one}" for one in found[:LINES])]
    return [*lines, f"  and {plural(len(found) - LINES, 'more line')}: see the report"] if len(found) > LINES else lines
