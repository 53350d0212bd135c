"""The page's tables of parties, parcels, people and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedvisage.core.parcel import GROUPS, PRIVATE_EMBEDDINGS
from fedvisage.report.absences import absences
from fedvisage.report.crossings import NOTHING, Crossings
from fedvisage.report.folder import RunFiles
from fedvisage.report.results import ALONE, RANK_TONES, RANKS
from fedvisage.report.words import listed, number, percent, plural, size

SHOWN = 50
"""At most this many rows of a table of parties or reasons."""
NAMED = 3
"""At most this many parties are named in a cell."""
DOWN_UP = {"down": "to parties", "up": "from parties"}

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Cell:
    """Text, with a bar of this share of the column where one is drawn."""

    text: str
    bar: float | None = None
    tone: str = ""


@dataclass(frozen=True)
class PartyTable:
    """Per-party rows, at most `SHOWN` of them, and how all parties are spread."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    summary: Sequence[tuple[str, Sequence[Cell]]]
    total: int
    chosen: str
    """Which rows are shown, where not all are."""
    round: int = 0


@dataclass(frozen=True)
class Column:
    """A number per party."""

    label: str
    values: Numbers
    share: bool = False
    tone: str = "tone-start"

    def cell(self, value: float | None, bar: bool = False) -> Cell:
        """One number as it is shown; `bar` draws it too."""
        if value is None:
            return Cell("–")
        if self.share:
            return Cell(percent(value, 1), min(1.0, max(0.0, value)) if bar else None, self.tone)
        least, most = min(self.values.values()), max(self.values.values())
        return Cell(number(value), value / most if bar and 0 <= least < most else None, self.tone)


def _spread(columns: Sequence[Column]) -> list[tuple[str, list[Cell]]]:
    kinds: dict[str, Callable[[Sequence[float]], float]] = {
        "Mean": fmean,
        "Lowest": min,
        "Median": median,
        "Highest": max,
    }
    return [
        (name, [column.cell(reduce(list(column.values.values()))) for column in columns])
        for name, reduce in kinds.items()
    ]


def _table(parties: Sequence[str], columns: Sequence[Column], order: Column | None, round: int = 0) -> PartyTable:
    """At most `SHOWN` parties: the lowest by `order`, else the first by name."""
    columns = [column for column in columns if column.values]
    shown, chosen = list(parties), ""
    if len(parties) > SHOWN and order and order.values:
        shown = sorted((p for p in parties if p in order.values), key=lambda p: (order.values[p], p))[:SHOWN]
        chosen = f"the {len(shown)} lowest by “{order.label}”"
    elif len(parties) > SHOWN:
        shown, chosen = list(parties[:SHOWN]), f"the first {SHOWN}"
    rows = [(party, [column.cell(column.values.get(party), True) for column in columns]) for party in shown]
    summary = _spread(columns) if len(parties) > 1 else []
    return PartyTable([column.label for column in columns], rows, summary, len(parties), chosen, round)


def party_results(run: RunFiles) -> PartyTable | None:
    """Each party's numbers: rank 1 on its own held-out images, its own model's test accuracy, and its size."""
    metrics = run.metrics
    ranks = [
        Column(f"{label}, rank 1", _pick(metrics.evaluated, name), True, RANK_TONES[name])
        for name, label in RANKS.items()
    ]
    lone = run.evaluation.models.get(ALONE)
    alone = {} if lone is None or lone.parties is None else lone.parties
    accuracy = {party: score.accuracy for party, score in alone.items() if score.accuracy is not None}
    scores = [
        column for column in (*ranks, Column("Alone, test accuracy", accuracy, True, "tone-alone")) if column.values
    ]
    if not scores:
        return None
    sizes = [
        Column("Identities", _pick(metrics.joined, "classes")),
        Column("Training images", _pick(metrics.joined, "samples")),
    ]
    parties = sorted(set(metrics.joined) | set(metrics.evaluated) | set(accuracy))
    return _table(parties, [*scores, *sizes], scores[0], metrics.evaluated_round)


def _pick(table: Mapping[str, Numbers], name: str) -> dict[str, float]:
    return {party: numbers[name] for party, numbers in table.items() if name in numbers}


@dataclass(frozen=True)
class People:
    """The partition in numbers."""

    rows: Sequence[tuple[str, str, str, str]]
    """Who, what for, identities, images."""
    parties: PartyTable


def partition(run: RunFiles) -> People:
    """Identities and images of the public, of the test and of each party."""
    split = run.partition
    rows = []
    if split.public.images:
        rows.append(("Public", "known to all", split.public.identities, len(split.public.images)))
    roles = sorted({share.role for share in split.parties.values()})
    for role in roles:
        shares = [share for share in split.parties.values() if share.role == role]
        people = tuple({name for share in shares for name in share.identities})
        images = sum(len(share.train) + len(share.held_out) for share in shares)
        count = plural(len(shares), "party", "parties")
        rows.append((f"{count} ({role})" if len(roles) > 1 else count, "private", people, images))
    if split.test.images:
        rows.append(("Test", "nobody trains on them", split.test.identities, len(split.test.images)))
    columns = [
        Column("Identities", {name: len(share.identities) for name, share in split.parties.items()}),
        Column("Training images", {name: len(share.train) for name, share in split.parties.items()}),
    ]
    if any(share.held_out for share in split.parties.values()):
        columns.append(Column("Held out", {name: len(share.held_out) for name, share in split.parties.items()}))
    table = _table(sorted(split.parties), columns, None)
    return People([(who, why, number(len(names)), number(count)) for who, why, names, count in rows], table)


@dataclass(frozen=True)
class Exchanges:
    """What the ledger says, in words and as a table."""

    lead: str
    templates_left: bool
    rows: Sequence[Sequence[str]]
    """Phase, direction, group, what it is, parcels, bytes in total, per party and round, refused."""
    any_refused: bool
    never: Sequence[tuple[str, str]]
    missing: Sequence[Sequence[str]]
    """Phase, reason, answers, parties with the share of their answers that counted."""
    more_reasons: int
    attempts: int


def exchanges(run: RunFiles, crossings: Crossings) -> Exchanges:
    """Everything that crossed, everything that never did, and every answer that did not count."""
    left = [group for group in GROUPS if group in crossings.groups("up")]
    lead = (
        f"In the whole run {size(crossings.total_up)} left {plural(len(crossings.left), 'party', 'parties')}, "
        f"at most {size(crossings.most_up)} each: {listed(left) or 'nothing'}."
    )
    rows = [
        [
            phase,
            DOWN_UP.get(direction, direction),
            group,
            _what(group, direction, sorted(crossing.names)),
            number(crossing.parcels),
            size(crossing.bytes),
            size(crossing.per_visit),
            number(crossing.refused),
        ]
        for (phase, direction, group), crossing in crossings.rows.items()
    ]
    missing = _missing(run, crossings)
    return Exchanges(
        lead,
        PRIVATE_EMBEDDINGS in left,
        rows,
        any(crossing.refused for crossing in crossings.rows.values()),
        [(group, GROUPS[group]) for group in crossings.never_left()],
        missing[:SHOWN],
        max(0, len(missing) - SHOWN),
        crossings.attempts,
    )


def _what(group: str, direction: str, names: Sequence[str]) -> str:
    if group == NOTHING:
        return "a bare request" if direction == "down" else "an empty answer"
    return ", ".join(names) or GROUPS.get(group, "")


def _missing(run: RunFiles, crossings: Crossings) -> list[list[str]]:
    """Phase, reason, how many answers, and whose, with the share of theirs that counted; the most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    for (_, phase, party), reasons in run.metrics.absent.items():
        for reason in reasons:
            found.setdefault((phase, reason), []).append(party)
    counts = {key: len(parties) for key, parties in found.items()}
    for key, count in crossings.extra_refusals.items():
        counts[key] = counts.get(key, 0) + count
    shares = {(one.phase, one.party): f"{percent(one.share, 0)} counted" for one in absences(run.metrics)}
    rows = []
    for (phase, reason), count in sorted(counts.items(), key=lambda item: -item[1]):
        parties = [f"{party} ({shares[phase, party]})" for party in sorted(set(found.get((phase, reason), ())))]
        more = f" and {len(parties) - NAMED:,} more" if len(parties) > NAMED else ""
        rows.append([phase, reason, number(count), ", ".join(parties[:NAMED]) + more])
    return rows


def environment(run: RunFiles) -> list[tuple[str, str]]:
    """What results may depend on besides the recipe, as pairs of words."""
    return [(key.replace("_", " ").capitalize(), _plain(value)) for key, value in run.environment.items()]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return str(value)
