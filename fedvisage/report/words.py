"""Numbers and outcomes as words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedvisage.report.folder import Score

UNRESOLVED = "not resolvable"
LEVEL = 0.05
"""Differences that print as 0.0 points."""


@dataclass(frozen=True)
class Model:
    """A scored model and how the page speaks of it."""

    name: str
    label: str
    note: str
    tone: str
    """CSS class that colours it everywhere."""
    score: Score
    versus: str
    """How it reads after 'above' or 'below'."""


def percent(value: float | None, digits: int = 2) -> str:
    """A share as a percentage."""
    if value is None:
        return "–"
    return f"{100 * value:.{digits}f}%" if math.isfinite(value) else UNRESOLVED


def number(value: float) -> str:
    """A count, or an average of counts, with thousands apart."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def decimal(value: float) -> str:
    """Two decimals and a proper minus."""
    return f"{value:.2f}".replace("-", "−")


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if round(count, 1) < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def plural(count: int, one: str, many: str = "") -> str:
    """`3 parties`, `1 party`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def headline(score: Score) -> tuple[str, float] | None:
    """The number a model is judged by: accuracy, else TAR at the strictest FAR that can be resolved."""
    if score.accuracy is not None and math.isfinite(score.accuracy):
        return "accuracy", score.accuracy
    resolved = [far for far, tar in score.tar.items() if math.isfinite(tar)]
    if not resolved:
        return None
    far = min(resolved, key=float)
    return far, score.tar[far]


def outcome(subject: str, own: Score, others: Sequence[Model]) -> str:
    """One sentence on how the method did against the others, true whichever is better; '' without a score."""
    judged = headline(own)
    if judged is None:
        return ""
    what, value = judged
    if what == "accuracy":
        lead = f"{subject} verifies {percent(value, 1)} of unseen pairs correctly"
    else:
        lead = f"{subject} accepts {percent(value, 1)} of genuine pairs at a false accept rate of {what}"
    parts: list[str] = []
    unit = " points"
    for other in others:
        theirs = other.score.accuracy if what == "accuracy" else other.score.tar.get(what)
        if theirs is None or not math.isfinite(theirs):
            continue
        difference = 100 * (value - theirs)
        if abs(difference) < LEVEL:
            parts.append(f"level with {other.versus}")
            continue
        parts.append(f"{abs(difference):.1f}{unit} {'above' if difference > 0 else 'below'} {other.versus}")
        unit = ""
    return f"{lead}: {listed(parts)}." if parts else f"{lead}."


def caution(accuracy: float | None, pairs: int, identities: int) -> str:
    """How much of an accuracy is chance, by the number of pairs alone."""
    if accuracy is None or not pairs:
        return ""
    error = 100 * math.sqrt(max(accuracy * (1 - accuracy), 0) / pairs)
    return (
        f"Measured on {plural(pairs, 'pair')} of {plural(identities, 'person', 'people')} nobody trained on: "
        f"each accuracy carries a standard error of at least {error:.1f} points, so smaller differences say little."
    )
