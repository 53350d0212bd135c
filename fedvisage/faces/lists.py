"""Lists that evaluation protocols go by, kept beside a face set: pairs of images or templates, galleries, probes.

A list is a table of whole numbers; images are named by their number in the set, templates, media and subjects by the
numbers of the protocol. In a face set's folder each list is `lists/<name>.npy`, and `lists/lists.json` says its kind.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.npy import load_array

Column = NDArray[np.int64]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Listing:
    """A table whose columns (n,) are the fields of its kind."""

    def __post_init__(self) -> None:
        for field in fields(self):
            column = np.asarray(getattr(self, field.name), dtype=np.int64)
            object.__setattr__(self, field.name, column)
        shapes = {getattr(self, field.name).shape for field in fields(self)}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            raise FedVisageError(f"the columns of a {type(self).__name__} must have one number per row")

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True)
class PairList(Listing):
    """Pairs of images, whether they show one person (1 or 0), and the fold each belongs to (0 where there are none)."""

    left: Column
    right: Column
    same: Column
    fold: Column


@dataclass(frozen=True)
class TemplateList(Listing):
    """Which images make a template; images of one `media` (a video, say) are averaged first."""

    image: Column
    template: Column
    media: Column


@dataclass(frozen=True)
class TemplatePairs(Listing):
    """Pairs of templates, and whether they show one person (1 or 0)."""

    left: Column
    right: Column
    same: Column


@dataclass(frozen=True)
class SubjectList(Listing):
    """Templates with the person each shows: a gallery or a set of probes."""

    template: Column
    subject: Column


@dataclass(frozen=True)
class ImageList(Listing):
    """Images with a number each: a query or gallery by person, or images to leave out."""

    image: Column
    subject: Column


KINDS: dict[str, type[Listing]] = {
    "pairs": PairList,
    "templates": TemplateList,
    "template-pairs": TemplatePairs,
    "subjects": SubjectList,
    "images": ImageList,
}


def write_lists(folder: Path, lists: dict[str, Listing]) -> None:
    """Write lists into a face set's folder, beside those that are there."""
    place = folder / "lists"
    kinds = {kind: name for name, kind in KINDS.items()}
    table = _table(place) if (place / "lists.json").exists() else {}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, rows in lists.items():
            if not _NAME.fullmatch(name):
                raise FedVisageError(f"'{name}' cannot name a list: lower-case letters, digits, dots and dashes only")
            columns = [getattr(rows, field.name) for field in fields(rows)]
            np.save(place / f"{name}.npy", np.stack(columns, axis=1))
            table[name] = kinds[type(rows)]
        write_atomically(place / "lists.json", [(json.dumps(table, indent=1) + "\n").encode()])
    except OSError as error:
        raise FedVisageError(f"cannot write the lists in {place}: {error.strerror or error}") from error


def list_names(folder: Path) -> dict[str, str]:
    """The lists of a face set's folder with their kinds; none where there are none."""
    place = folder / "lists"
    return _table(place) if (place / "lists.json").exists() else {}


def open_list(folder: Path, name: str) -> Listing:
    """The list `name` of a face set's folder."""
    table, path = list_names(folder), folder / "lists" / f"{name}.npy"
    if name not in table:
        raise FedVisageError(f"{folder} has no list '{name}': {nearest(name, table)}")
    kind = KINDS[table[name]]
    try:
        rows: NDArray[Any] = load_array(path)
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot read the list {path}: {error}") from None
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != len(fields(kind)):
        raise FedVisageError(f"{path} does not hold {table[name]}: int64 of shape (n, {len(fields(kind))})")
    return kind(*np.ascontiguousarray(rows.T))


def _table(place: Path) -> dict[str, str]:
    path = place / "lists.json"
    try:
        table = json.loads(path.read_text("utf-8"))
        if isinstance(table, dict) and all(_NAME.fullmatch(name) and kind in KINDS for name, kind in table.items()):
            return table
    except (OSError, ValueError, TypeError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    raise FedVisageError(f"{path} does not name lists and their kinds")
