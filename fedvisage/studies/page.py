"""The page of a study: the paper's numbers beside ours, its orderings, its figure redrawn, and what it cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedvisage.core.method import METHODS
from fedvisage.core.phase import VALIDATOR
from fedvisage.core.plugins import load_plugins
from fedvisage.report.rendering import write_page
from fedvisage.report.results import Figure
from fedvisage.report.words import listed, number, plural, size
from fedvisage.studies.alike import ALIKE, drawn_alike
from fedvisage.studies.definition import Column, Row, Study, load_study
from fedvisage.studies.figures import Numbers, learning_curves, redrawn
from fedvisage.studies.numbers import Entry, Ordering, agreement, ordered, orderings, table, uneven
from fedvisage.studies.results import diverging, load_results, seeds_of
from fedvisage.studies.running import is_of_a_round
from fedvisage.studies.tries import Choice, choices, chosen_cells
from fedvisage.studies.weightings import KINDS, drawn_weightings

MINUS = "−"
DIVERGED = "diverged"
PAPER = "paper"
"""The scale that has the paper's own data."""
RATE = re.compile("accuracy|rank|tar@|tpir@", re.IGNORECASE)
"""Metrics that a column is told by, beside what they are measured on."""
FEW, MANY = 12, 30
"""Orderings that are shown in one table; orderings that hold and are shown at once."""


@dataclass(frozen=True)
class TableRow:
    """A line of the table: for every column the paper's number, ours, what it is a mean of, and at the chosen round."""

    label: str
    note: str
    first_of_group: bool
    entries: Sequence[tuple[str, str, str, str]]


def write_study(name: str, scale: str, results: Path, path: Path, folder: Path | None = None) -> Path:
    """Write the page of a study from its finished cells."""
    return write_page(path, "study.html.j2", contents(name, scale, results, folder))


def contents(name: str, scale: str, results: Path, folder: Path | None = None) -> dict[str, Any]:
    """What the template is filled with."""
    study = load_study(name, folder).at_scale(scale)
    finished = load_results(name, scale, results, folder=folder)
    numbers = table(study, scale, finished)
    found = orderings(study, scale, finished, np.random.default_rng(0))
    columns = study.measured(scale)
    seeds = seeds_of(finished)
    diverged = diverging(study, scale, finished)
    wanted = chosen_cells(name, scale, seeds, results, folder)
    keys = {cell.key for cell in wanted if cell.row not in diverged}
    done, asked = len(keys & _scored(study, scale, finished)), len(keys)
    chosen = [any(not math.isnan(of[column.name].chosen) for of in numbers.values()) for column in columns]
    return {
        "name": name,
        "shares": any(column.unit == "percent" for column in columns),
        "scale": scale,
        "study": study,
        "summary": summary(study, scale, found, bool(finished)),
        "facts": _facts(study, finished, seeds if finished else [], done, asked),
        "columns": columns,
        "papers": [_in_paper(study.rows, column) for column in columns],
        "heads": [column.head(scale) for column in columns],
        "measured": [explained(study, column, scale) for column in columns],
        "rows": _rows(study, columns, numbers, diverged),
        "tries": _tries(study, choices(name, scale, results, seeds, folder)),
        "by": _judged_by(study, scale),
        "chosen": chosen,
        "unchosen": "" if any(chosen) or not finished else unchosen(study, scale, finished),
        "compares_chosen": any(not math.isnan(one.chosen) for one in found),
        "figures": _figures(study, scale, finished, numbers),
        "curves": learning_curves(study, scale, finished),
        "unmatched": any(one.sets > 1 for one in found),
        "variants": len(study.variants),
        "orderings": [
            (kind, [_ordering(study, scale, one) for one in some], folded) for kind, some, folded in _grouped(found)
        ],
        "costs": _costs(study, finished),
        "missing": _missing(study, scale),
        "disagreements": study.disagreements.get(scale, ()),
        "seeds": max(seeds),
        "environments": _environments(finished),
    }


def summary(study: Study, scale: str, found: Sequence[Ordering], begun: bool) -> str:
    """The outcome in a sentence; of some rows no paper says which is better, and some figures have no order."""
    if not begun:
        return "No cell of this study is finished yet."
    if not study.claims and not any(row.paper for row in study.rows):
        return "" if study.draws in KINDS else "The paper does not say which of these rows is better."
    if not any(True for column in study.measured(scale) for _ in ordered(study, column)):
        return (
            "There is nothing to compare with: the paper gives neither numbers nor words on what this scale measures."
        )
    if not found:
        return "Too few cells are finished to compare rows."
    counts = agreement(found)
    holds = "holds" if 1 in (counts["agree"], counts["orderings"]) else "hold"
    said = f"{counts['agree']} of {plural(counts['orderings'], 'ordering')} {holds} in our means"
    if all(math.isnan(one.confidence) for one in found):
        return f"{said}; what chance does to them is not known."
    said += f", {counts['clear']} of them beyond chance"
    if counts["by_seeds"]:
        some = f"{counts['by_seeds']} of these " if counts["by_seeds"] < counts["clear"] else ""
        said += f" ({some}by the spread over seeds alone)"
    if all(one.seeds == 1 for one in found):
        said += " (of people only: there is one seed)"
    said += f"; {plural(counts['level'], 'is', 'are')} level" if counts["level"] else ""
    against = counts["against"]
    return said + (f"; {plural(against, 'is', 'are')} clearly reversed." if against else "; none is clearly reversed.")


def _scored(study: Study, scale: str, finished: Mapping[str, Sequence[Any]]) -> set[str]:
    """Cells with every score that the study shows of them."""
    keys = {column.by[scale].key for column in study.measured(scale)}
    return {result["recipe"] for of in finished.values() for result in of if keys <= result["scores"].keys()}


def _judged_by(study: Study, scale: str) -> str:
    """The score that chooses rates and rounds, as the page calls it."""
    by = study.chooses_by(scale)
    heads = {column.by[scale].metric: column.head(scale) for column in study.measured(scale)}
    return heads.get(by, _metric(by))


def _metric(name: str) -> str:
    """A metric without the domain before it, such as `TAR@0.1`."""
    last = name.split()[-1] if name else ""
    return last.replace("tar@", "TAR@") if last.startswith(("tar@", "accuracy", "rank-1")) else name


def _figures(study: Study, scale: str, finished: Mapping[str, Sequence[Any]], numbers: Numbers) -> list[Figure]:
    """The paper's figure, from what cells keep of it, or from the table's numbers."""
    if study.draws in KINDS:
        return drawn_weightings(study, finished)
    return (drawn_alike(study, finished) if study.draws == ALIKE else []) + redrawn(study, scale, numbers)


def _facts(
    study: Study, finished: Mapping[str, Sequence[Any]], seeds: Sequence[int], done: int, wanted: int
) -> list[tuple[str, str]]:
    unique = {result["recipe"]: result for of in finished.values() for result in of}.values()
    return [
        ("Rows", number(len(study.rows))),
        ("Seeds", ", ".join(map(str, seeds)) or "none"),
        ("Cells finished", f"{done} of {wanted}"),
        ("Moved between server and parties", size(sum(result["bytes"] for result in unique if _exchanges(result)))),
        ("Computing time of the rows shown", duration(sum(result["seconds"] for result in unique))),
    ]


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _rows(
    study: Study, columns: Sequence[Column], numbers: Mapping[str, Mapping[str, Entry]], diverged: Set[str]
) -> list[TableRow]:
    rows, group = [], None
    beside = {column.name: uneven(numbers, column.name) for column in columns}
    for row in study.rows:
        none = DIVERGED if row.name in diverged else "–"
        entries = [
            (
                _number(row.paper.get(column.name)) + ("*" if column.name in row.errata else ""),
                *_ours(numbers.get(row.name, {}).get(column.name), none, beside[column.name]),
            )
            for column in columns
        ]
        errata = [f"* {erratum.words}" for erratum in row.errata.values()]
        note = "; ".join([row.note, *errata] if row.note else errata)
        rows.append(TableRow(row.label, note, group not in (None, row.group), entries))
        group = row.group
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _tries(study: Study, made: Mapping[str, Choice]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """By row: its learning rates, what validation people said of each, and which runs take it."""
    return [
        (row.label, [(times(rate), _said(score), _taken(of, rate)) for rate, score in of.scores.items()])
        for row in study.rows
        if (of := made.get(row.name))
    ]


def _taken(choice: Choice, rate: float) -> str:
    """Which runs take a rate; nothing where none does or nothing is chosen yet."""
    count, runs = choice.counts[rate], len(choice.taken)
    if not choice.made or not count:
        return ""
    return "taken" if count == runs else f"taken by {count} of {runs}"


def rate_words(choice: Choice) -> str:
    """The rate that a row takes, or which of its runs take which."""
    if not choice.made:
        return "tries not finished"
    taken = {rate: count for rate, count in choice.counts.items() if count}
    if len(taken) == 1:
        return times(*taken)
    said = listed([f"{times(rate)} in {count}" for rate, count in taken.items()])
    return f"{said} of {len(choice.taken)} runs"


def times(rate: float) -> str:
    """A multiple of a learning rate in words."""
    return "as it is" if rate == 1 else f"× {rate:.3g}"


def _said(score: float | None) -> str:
    return "–" if score is None else DIVERGED if math.isnan(score) else f"{100 * score:.2f}"


def unchosen(study: Study, scale: str, finished: Mapping[str, Sequence[Any]]) -> str:
    """Why no round was chosen."""
    if not any(is_of_a_round(column.by[scale]) for column in study.measured(scale)):
        return "No round is chosen: these columns are of training as a whole, not of a round's model."
    followed = any(result["rounds"].get("validation") for of in finished.values() for result in of)
    what = "these columns were measured" if followed else "the runs were scored"
    return f"No round was chosen on validation people: {what} at the end only."


def _ours(entry: Entry | None, none: str, beside: bool) -> tuple[str, str, str]:
    """Mean with its spread, what it is a mean of where that differs, and the mean at the chosen rounds."""
    if entry is None or math.isnan(entry.mean):
        return none, "", ""
    spread = "" if math.isnan(entry.spread) else f" ± {entry.spread:.2f}"
    chosen = "" if math.isnan(entry.chosen) else f"{entry.chosen:.2f}"
    return f"{entry.mean:.2f}{spread}", entry.over if beside else "", chosen


def _grouped(found: Sequence[Ordering]) -> list[tuple[str, list[Ordering], bool]]:
    """Orderings in the order of interest, many of them by kind, and what is long and says little folded away."""
    ranked = sorted(found, key=_interest)
    if len(ranked) <= FEW:
        return [("", ranked, False)] if ranked else []
    reversed_, held = ([one for one in ranked if one.clear and one.agrees == agrees] for agrees in (False, True))
    rest = [one for one in ranked if not one.clear]
    kinds = [("Reversed", reversed_, False), ("Hold", held, len(held) > MANY), ("Within chance", rest, True)]
    return [kind for kind in kinds if kind[1]]


def _interest(one: Ordering) -> tuple[int, str]:
    """Reversed orderings first, then those that chance may have made, then those that hold."""
    kinds = ("is reversed", "disagrees", "level", "agrees", "holds")
    return kinds.index(one.verdict.partition(",")[0]), one.column


def explained(study: Study, column: Column, scale: str) -> tuple[str, str]:
    """A column's head, and what it is measured by."""
    head, measure = column.head(scale), column.by[scale]
    metric = _metric(measure.metric)
    told = metric.lower().replace("-", " ") in head.lower() or not RATE.match(metric)
    stands = head != column.name and _in_paper(study.rows, column)
    return head, ("" if told else f"{metric}: ") + measure.what + (
        f"; beside the paper's {column.name}" if stands else ""
    )


def _ordering(study: Study, scale: str, one: Ordering) -> dict[str, str]:
    labels = {row.name: row.label for row in study.rows}
    heads = {column.name: column.head(scale) for column in study.measured(scale)}
    spread = "" if math.isnan(one.spread) else f" ± {one.spread:.2f}"
    return {
        "column": heads[one.column],
        "words": f"{labels[one.high]} above {labels[one.low]}",
        "paper": "said" if one.paper is None else f"{one.paper:+.2f}",
        "ours": f"{one.ours:+.2f}".replace("-", MINUS) + spread,
        "chosen": "–" if math.isnan(one.chosen) else f"{one.chosen:+.2f}".replace("-", MINUS),
        "confidence": _share(one.confidence),
        "rests": _rests(study, one),
        "verdict": one.verdict,
        "tone": {"holds": "good", "is reversed": "bad"}.get(one.verdict, "unsure"),
    }


def _rests(study: Study, one: Ordering) -> str:
    """What a confidence rests on."""
    parts = [plural(one.seeds, "seed")]
    if one.variants > 1:
        parts.append(f"{one.variants} {study.variants_are}")
    if not one.sets:
        parts.append("chance of people not known")
    elif one.people:
        several = f" in {one.sets} sets" if one.sets > 1 else ""
        parts.append(("at least " if several else "") + plural(one.people, "person", "people") + several)
    return ", ".join(parts)


def _share(confidence: float) -> str:
    if math.isnan(confidence):
        return "not known"
    if confidence > 0.999:
        return "> 99.9%"
    return "< 0.1%" if confidence < 0.001 else f"{100 * confidence:.1f}%"


def _costs(study: Study, finished: Mapping[str, Sequence[Any]]) -> list[tuple[str, str, str, str]]:
    """Label, runs, bytes and seconds of a run."""
    return [
        (
            row.label,
            str(len(finished[row.name])),
            _moved(finished[row.name]),
            duration(fmean(result["seconds"] for result in finished[row.name])),
        )
        for row in study.rows
        if row.name in finished
    ]


def _moved(results: Sequence[Any]) -> str:
    """What crossed in a run: where training was central every image, with a single party nothing."""
    if all(map(_exchanges, results)):
        return size(fmean(result["bytes"] for result in results))
    return "every image, once" if any(map(_pools, results)) else "nothing"


def _exchanges(result: Mapping[str, Any]) -> bool:
    """Whether parcels went between a server and several parties, or to validators."""
    settings = result["settings"]
    share = settings["partition"]
    trainers = [group for group in share["groups"].values() if group["role"] != VALIDATOR]
    single = [part.get("parties") for part in trainers or [share]] == [1]
    return not _pools(result) and (not single or settings["weighting"]["name"] == "fv")


def _pools(result: Mapping[str, Any]) -> bool:
    load_plugins(result["settings"].get("plugins", ()))
    return METHODS[result["settings"]["method"]["name"]].pools


def _missing(study: Study, scale: str) -> list[str]:
    """What the paper has and this page has not, and why."""
    papers = [column for column in study.columns if PAPER in column.by or _in_paper(study.rows, column)]
    unmeasured = [column.name for column in papers if scale not in column.by]
    found = [*study.missing, *study.missing_at.get(scale, ())]
    if unmeasured:
        found.append(f"{listed(unmeasured)}: no face set stands in for {_them(unmeasured)} at {scale} scale.")
    if scale != PAPER and not study.is_ours:
        found.append(
            f"The paper's values: people, network and schedule are those of {scale} scale, so that only the order of "
            "rows can be compared."
        )
    return found


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _in_paper(rows: Sequence[Row], column: Column) -> bool:
    return any(column.name in row.paper for row in rows)


def _environments(finished: Mapping[str, Sequence[Any]]) -> list[str]:
    """Where the cells were run, each kind of place once."""
    found = []
    for of in finished.values():
        for result in of:
            place = result["environment"]
            said = f"{place['processor']}, {place['cores']} cores, Python {place['python']}"
            said += "".join(f", {name} {version}" for name, version in place["packages"].items())
            if said not in found:
                found.append(said)
    return found
