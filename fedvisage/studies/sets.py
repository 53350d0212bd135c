"""Face sets that studies name: found at the data root, imported when first used, or drawn.

A set written `@name` is the folder `name` below the data root, imported at the recipe's size; `@name:5-20` takes people
with at least 5 images, and at most 20 of each, and `@name@64` (`@name:5-20@64`) imports it at 64 pixels instead, for
recipes that scale faces when they are read. `@synthetic-webcam`, or any other domain of the generator, is made: 120
people with 20 images each. `@name+templates` has the lists of a stand-in, see `standins`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedvisage.config import Recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import FaceSet, write_faceset
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.faces.lists import list_names
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.studies.cells import Cell
from fedvisage.studies.definition import Measure, load_study
from fedvisage.studies.drawn import PLANS, PREFIX, draw_set, set_name
from fedvisage.studies.standins import FEW, add_lists

SYNTHETIC = "synthetic-"


def data_root() -> Path:
    """Where real face sets are looked for."""
    return Path(os.environ.get("FEDVISAGE_DATA", "../shared/data"))


def located(recipe: Recipe, imported: Path, data: Path) -> Recipe:
    """The recipe with every face set `@name` replaced by a folder, imported from the data root unless it is there.

    What frozen stages make of the faces is kept beside them for the other cells.
    """
    sources = recipe.faces.source
    several = (sources,) if isinstance(sources, str) else sources
    folders = tuple(located_set(source, recipe.faces.size, imported, data) for source in several)
    found = folders[0] if isinstance(sources, str) else folders
    kept = str(imported / "features") if recipe.backbone.train_from and recipe.backbone.cache else recipe.backbone.cache
    parts = {
        "faces": recipe.faces.model_copy(update={"source": found}),
        "backbone": recipe.backbone.model_copy(update={"cache": kept}),
    }
    return recipe.model_copy(update=parts)


def located_set(source: str, size: int, imported: Path, data: Path) -> str:
    """The folder of a set that a recipe or a column names."""
    if not source.startswith("@"):
        return source
    who, _, own = source[1:].partition("@")
    size = int(own) if own.isdecimal() else size
    name, _, bounds = who.partition(":")
    name, _, standin = name.partition("+")
    drawn = name.startswith(PREFIX)
    name = name.removeprefix(PREFIX)
    folder = imported / ("drawn" if drawn else "") / str(size) / f"{standin}{bounds}" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(f"{name}.lock")):
        listed = not standin or standin.removeprefix(FEW) in list_names(folder)
        if not listed or not (folder / "faces.json").exists():
            part = folder.with_name(f"{name}.part")
            for unfinished in (part, folder):
                shutil.rmtree(unfinished, ignore_errors=True)
            _import(data / name, size, bounds, part, drawn)
            if standin:
                add_lists(part, standin)
            part.rename(folder)
    return str(folder)


def _import(source: Path, size: int, bounds: str, folder: Path, drawn: bool) -> None:
    least, _, most = bounds.partition("-")
    if source.name.startswith(SYNTHETIC):
        _make(source.name.removeprefix(SYNTHETIC), size, folder)
        return
    if drawn:
        draw_set(source.name, size, int(least or 1), int(most) if most else None, folder)
        return
    if not source.is_dir():
        where = f"{source.parent}: say where it is with --data, or in FEDVISAGE_DATA"
        raise FedVisageError(f"no face set '{source.name}' in {where}")
    kind, found = read_source(source, None, None, {})
    people = Selection(size, "array", int(least or 1), int(most) if most else None)
    write_source(found, folder, Report(source.name, kind), people)


def _make(domain: str, size: int, folder: Path) -> None:
    """Synthetic faces of a domain."""
    faces = SyntheticFaces(0, 120, 20, size, domain)
    names = tuple(f"person-{number:03d}" for number in range(120))
    write_faceset(folder, FaceSet(faces, np.asarray(faces.labels), names))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While no other process of this machine holds the file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def absent_sets(cells: Iterable[Cell], results: Path, data: Path | None = None) -> list[str]:
    """Face sets that cells would train on and that are not at the data root; of finished cells none."""
    needed: set[str] = set()
    for cell in cells:
        sources = cell.recipe.faces.source
        names = {set_name(one) for one in ((sources,) if isinstance(sources, str) else sources)}
        absent = {name for name in names & PLANS.keys() if not ((data or data_root()) / name).is_dir()}
        if absent and cell.finished(results) is None:
            needed |= absent
    return sorted(needed)


def left_out(cells: Iterable[Cell], results: Path, data: Path | None = None) -> dict[str, str]:
    """By column: the face set that is not at hand, so that cells which are not scored on it yet leave it open."""
    found: dict[str, str] = {}
    for cell in cells:
        study = load_study(cell.study, cell.home)
        heads = {column.name: column.head(cell.scale) for column in study.measured(cell.scale)}
        for name, measure in study.measures(cell.scale, cell.row).items():
            if not is_at_hand(measure, data or data_root()) and not _is_scored(cell, measure, results):
                found[heads[name]] = measure.data
    return found


def _is_scored(cell: Cell, measure: Measure, results: Path) -> bool:
    try:
        result = cell.finished(results)
    except FedVisageError:
        return False
    return result is not None and (bool(result.get("diverged")) or measure.key in result["scores"])


def is_at_hand(measure: Measure, data: Path) -> bool:
    """Whether a column can be measured here; a face set that is not there leaves it open, to be measured later."""
    if not measure.data:
        return True
    name = set_name(measure.data)
    made = name.startswith((PREFIX, SYNTHETIC))
    return made or (data / name if name else Path(measure.data)).exists()
