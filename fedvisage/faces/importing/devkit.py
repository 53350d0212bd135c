"""The lists of MegaFace and FaceScrub: InsightFace's, a path per line, and those of MegaFace's devkit, in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import UNLABELLED, images_in, is_image
from fedvisage.faces.importing.tree import Tree, safe_path, text_of

PROBES, DISTRACTORS = "facescrub_lst", "megaface_lst"
DEVKIT_PROBES = "facescrub_features_list.json"
DEVKIT_DISTRACTORS = re.compile(r"megaface_features_list\.json_([1-9][0-9]{0,7})_([1-9][0-9]?)")
"""Number of distractors, and which of several draws of so many."""


@dataclass(frozen=True)
class Listed:
    """The images of a list, as it calls them, and who is in each."""

    file: str
    paths: Sequence[str]
    people: Sequence[str]
    notes: Sequence[str] = ()


def megaface_lists(tree: Tree, files: Mapping[str, str]) -> dict[str, Listed]:
    """The lists `probes` and `distractors`; `files` are paths by their file's name.

    Of several lists of distractors in the devkit, the largest one's first draw is taken.
    """
    draws = [(int(found[1]), -int(found[2]), name) for name in files if (found := DEVKIT_DISTRACTORS.fullmatch(name))]
    if PROBES not in files and DEVKIT_PROBES not in files:
        raise FedVisageError(f"there is no {PROBES} and no {DEVKIT_PROBES} in {tree.name}")
    if DISTRACTORS not in files and not draws:
        raise FedVisageError(f"there is no {DISTRACTORS} and no megaface_features_list.json_1000000_1 in {tree.name}")
    probes = _lines(tree, files[PROBES], 2) if PROBES in files else _devkit(tree, files[DEVKIT_PROBES], 2)
    if DISTRACTORS in files:
        return {"probes": probes, "distractors": _lines(tree, files[DISTRACTORS], 3)}
    size, _, name = max(draws)
    notes = [f"distractors are those of {name}; {len(draws) - 1} other lists of them are there"] * (len(draws) > 1)
    return {"probes": probes, "distractors": _devkit(tree, files[name], 3, size, notes)}


def listed_images(tree: Tree) -> Callable[[Listed], list[str]]:
    """A function that gives the file of each image of a list: by its path's last two names, whatever its ending."""
    where: dict[str, list[str]] = {}
    stems: dict[str, list[str]] = {}
    for path in images_in(tree):
        where.setdefault(_last_two(path), []).append(path)

    def place(listed: Listed) -> list[str]:
        absent = [path for path in listed.paths if _last_two(path) not in where]
        if absent and not stems:
            for path in where:
                stems.setdefault(_stem(path), []).extend(where[path])
        found = [where.get(_last_two(path)) or stems.get(_stem(_last_two(path)), []) for path in listed.paths]
        twice = next((files for files in found if len(files) > 1), None)
        if twice is not None:
            raise FedVisageError(
                f"{listed.file} may mean {twice[0]} or {twice[1]} of {tree.name}: keep one of them there"
            )
        return [files[0] if files else path for files, path in zip(found, listed.paths, strict=True)]

    return place


def _last_two(path: str) -> str:
    """The last two names of a path, which are enough to tell an image: Flickr's users are in one folder only."""
    return "/".join(path.rsplit("/", 2)[-2:])


def _stem(path: str) -> str:
    return path[: path.rfind(".")] if is_image(path) else path


def _lines(tree: Tree, file: str, depth: int) -> Listed:
    """A list of a path per line, or of fields between tabs; of each path the last `depth` names count."""
    lines = [line for line in text_of(tree, file).splitlines() if line.strip()]
    fields = (next((one for one in line.split("\t") if is_image(one.strip())), line) for line in lines)
    return _listed(file, list(fields), depth)


def _devkit(tree: Tree, file: str, depth: int, size: int | None = None, notes: Sequence[str] = ()) -> Listed:
    """A list of the devkit: `path` and, for people who are known, `id`."""
    try:
        table = json.loads(text_of(tree, file))
    except (ValueError, RecursionError) as error:
        raise FedVisageError(f"cannot read {file}: {str(error)[:80]}. Is it truncated?") from None
    paths = table.get("path") if isinstance(table, dict) else None
    people = table.get("id") if isinstance(table, dict) else None
    if not _texts(paths) or not (people is None or (_texts(people) and len(people) == len(paths))):
        raise FedVisageError(f"{file} should hold a list 'path' and, for people, a list 'id' of the same length")
    if size is not None and len(paths) != size:
        raise FedVisageError(f"{file} holds {len(paths):,} paths, and should hold the {size:,} of its name")
    return _listed(file, paths, depth, people, notes)


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) and one.isprintable() for one in value)


def _listed(
    file: str, lines: Sequence[str], depth: int, people: Sequence[str] | None = None, notes: Sequence[str] = ()
) -> Listed:
    if not lines:
        raise FedVisageError(f"{file} is empty")
    paths = [safe_path("/".join(line.replace("\\", "/").split("/")[-depth:]), file) for line in lines]
    short = next((path for path in paths if path.count("/") != depth - 1), None)
    if short is not None:
        raise FedVisageError(f"{file}: '{short[:80]}' should be {depth - 1} folders and a file")
    people = people or [path.split("/")[0] if depth == 2 else UNLABELLED for path in paths]
    once: dict[str, str] = {}
    for path, person in zip(paths, people, strict=True):
        once.setdefault(path, person)
    if len(once) < len(paths):
        notes = [*notes, f"{file} names {len(paths) - len(once):,} images more than once; each counts once"]
    return Listed(file, list(once), list(once.values()), notes)
