"""Drawn people in the place of the small real face sets, for those who do not have them.

A study's `synthetic` scale is its `laptop` scale with people of the built-in generator for every set at a data root: in
as many folds, with as many images or nearly so. Nothing of it goes by the name of the set that it stands in for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.faces.lists import PairList, write_lists
from fedvisage.faces.synthetic import SyntheticFaces

LAPTOP, DRAWN = "laptop", "synthetic"
PREFIX = "drawn-"
"""Before the name of a set that people are drawn in the place of."""


@dataclass(frozen=True)
class Plan:
    """Whom to draw for a set."""

    domain: str
    people: Mapping[int, int]
    """By number of images: how many people of a fold have so many."""
    folds: int = 1


PLANS = {
    "lfw112-dev": Plan("daylight", {20: 8, 10: 10, 5: 24, 4: 16, 3: 31, 2: 72, 1: 60}, folds=7),
    "bollywood112-dev": Plan("lamplight", {40: 60}),
    "orl": Plan("infrared", {10: 40}),
}


def set_name(source: str) -> str:
    """The name of a set at a data root, `@name` with what is asked of it behind; empty for other sources."""
    return re.split("[:+@]", source[1:])[0] if source.startswith("@") else ""


def draw_set(name: str, size: int, least: int, most: int | None, folder: Path) -> None:
    """Write the people who stand in for a set, those with `least` images at least and `most` of each at most."""
    if name not in PLANS:
        raise FedVisageError(f"nobody is drawn in the place of '{name}': {nearest(name, PLANS)}")
    plan = PLANS[name]
    images = np.repeat([*plan.people], [*plan.people.values()])
    count, fold = np.tile(images, plan.folds), np.repeat(np.arange(1, plan.folds + 1), len(images))
    kept = count >= least
    count, fold = np.minimum(count[kept], most or count.max()), fold[kept]
    faces = SyntheticFaces([*PLANS].index(name), len(count), int(count.max()), size, plan.domain)
    place = np.arange(len(count) * count.max()).reshape(len(count), -1)
    chosen = np.concatenate([own[:some] for own, some in zip(place, count, strict=True)])
    labels = np.repeat(np.arange(len(count)), count)
    names = tuple(f"person-{number:04d}" for number in range(len(count)))
    write_faceset(folder, FaceSet(ArrayImages(faces.read(chosen)), labels, names))
    first = np.cumsum(count) - count
    write_lists(folder, {"pairs": _pairs(first, count, fold)})


def _pairs(first: np.ndarray[Any, Any], count: np.ndarray[Any, Any], fold: np.ndarray[Any, Any]) -> PairList:
    """A genuine pair of everybody with two images, and everybody beside the next of the fold."""
    two = count > 1
    following = np.roll(first, -1)
    same_fold = np.roll(fold, -1) == fold
    left, right = np.concatenate([first[two], first[same_fold]]), np.concatenate([first[two] + 1, following[same_fold]])
    same = np.concatenate([np.ones(two.sum(), np.int64), np.zeros(same_fold.sum(), np.int64)])
    return PairList(left, right, same, np.concatenate([fold[two], fold[same_fold]]))


def with_drawn_people(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a study with a `synthetic` scale beside each `laptop` one, if that has real people."""
    laptop = table.get("scales", {}).get(LAPTOP, {})
    if _drawn(laptop) == laptop:
        return dict(table)
    found = dict(table) | {"scales": _beside(table["scales"])}
    if LAPTOP in table.get("tries", {}):
        rates = {key: own for key, own in table["tries"][LAPTOP].items() if key in ("rates", "by")}
        found["tries"] = table["tries"] | {DRAWN: rates | {"alone": True}}
    found["columns"] = [column | {"by": _named_anew(column)} for column in table.get("columns", ())]
    found["rows"] = [
        row | {part: _beside(row[part]) for part in ("at", "shown") if part in row} for row in table.get("rows", ())
    ]
    return found


def _beside(scales: Mapping[str, Any]) -> dict[str, Any]:
    return dict(scales) | ({DRAWN: _drawn(scales[LAPTOP])} if LAPTOP in scales else {})


def _named_anew(column: Mapping[str, Any]) -> dict[str, Any]:
    """What a column is measured by, with drawn people under a name of their own."""
    by = _beside(column["by"])
    if DRAWN in by:
        head = by[DRAWN].get("name") or column["name"]
        by[DRAWN] |= {"name": f"drawn for: {head}", "what": f"drawn people in the place of {by[DRAWN]['what']}"}
    return by


def _drawn(part: Any) -> Any:
    """A table with drawn people for every set at a data root, and as many of them for people who are named."""
    if isinstance(part, str):
        return f"@{PREFIX}{part[1:]}" if set_name(part) in PLANS else part
    if isinstance(part, list | tuple):
        return [_drawn(one) for one in part]
    if not isinstance(part, Mapping):
        return part
    kept = {key: _drawn(value) for key, value in part.items() if key not in ("names", "exclude")}
    return kept | ({"count": len(part["names"])} if "names" in part else {})
