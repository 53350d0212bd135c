"""IJB-A: photos with a box of each face, in ten splits of verification and search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import Source, Tally, images_in, whole
from fedvisage.faces.importing.templates import (
    csv_rows,
    floats,
    one_file,
    tally_of,
    told_twice,
    with_images,
    without_twice,
)
from fedvisage.faces.importing.tree import Tree, safe_path, text_of
from fedvisage.faces.lists import Listing, SubjectList, TemplateList, TemplatePairs
from fedvisage.faces.records import Indices

LARGEST = 2**24
"""Pixels: the largest whole number that a box, which is kept in float32, tells from its neighbours."""
_BOX = ("FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")
_ROW = ("TEMPLATE_ID", "SUBJECT_ID", "FILE", "MEDIA_ID")


@dataclass
class _Faces:
    """Faces met so far: a photo and a box each.

    Splits print one box with different digits, and a frame may have two sightings of one face. So a face of a subject
    in a photo is known by its sighting, and by its box in whole pixels.
    """

    file: list[str] = field(default_factory=list)
    box: list[tuple[float, ...]] = field(default_factory=list)
    subject: list[int] = field(default_factory=list)
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, row: dict[str, str], where: str) -> int:
        """The number of a row's face."""
        sides = floats([row.get(name) or "nan" for name in _BOX], where)
        if (np.abs(sides) > LARGEST).any():
            raise FedVisageError(f"{where}: no image is so large that it holds a face at {sides.tolist()}")
        file, subject = safe_path(row["FILE"], where), whole(row["SUBJECT_ID"], where)
        boxed = bool(np.isfinite(sides).all())
        keys: list[tuple[object, ...]] = [(file, subject, *np.rint(sides).tolist())] if boxed else [(file, subject)]
        if sighting := (row.get("SIGHTING_ID") or "").strip():
            keys.append((file, subject, sighting))
        number = next((self._known[key] for key in keys if key in self._known), len(self.file))
        for key in keys:
            self._known.setdefault(key, number)
        if number == len(self.file):
            self.file.append(file)
            self.subject.append(subject)
            self.box.append(tuple(sides.tolist()))
        return number


def read_ijba(tree: Tree) -> Source:
    """IJB-A's ten splits; each face is cut out of its photo by its box."""
    faces = _Faces()
    listed: dict[str, TemplateList] = {}
    plain: dict[str, Listing] = {}
    twice: dict[str, Indices] = {}
    splits = sorted({int(m[1]) for p in tree.files if (m := re.fullmatch(r".*(?:metadata|gallery)_(\d{1,3})\.csv", p))})
    for split in splits:
        rows = _read_split(tree, split, faces, plain)
        listed[f"split-{split:02d}.templates"], twice[f"split {split}"] = without_twice(rows)
    if not faces.file:
        raise FedVisageError(f"there are no split files of IJB-A in {tree.name}")
    numbers, labels = np.unique(faces.subject, return_inverse=True)
    files, others = _files(tree, faces.file)

    def read(number: int) -> bytes:
        if not files[number]:
            raise FedVisageError("there is no such file")
        return tree.read(files[number])

    who = tuple(f"subject-{number:05d}" for number in numbers.tolist())
    source = Source(who, labels.astype(np.int64), read, lambda number: faces.file[number], keeps_duplicates=True)
    source.notes += told_twice(twice)
    if others:
        source.remarks.append(f"{others:,} photos are there under another ending than the lists say, such as .JPG")
    if all(np.isfinite(box).all() for box in faces.box):
        source.boxes = np.array(faces.box, dtype=np.float32)
    there = np.array([bool(file) for file in files], dtype=np.bool_)
    every = TemplateList(*(np.concatenate([getattr(rows, name) for rows in listed.values()]) for name in _COLUMNS))
    about = f"{len(faces.file):,} faces in {len(set(faces.file)):,} photos, {len(splits)} splits"

    def tally(readable: NDArray[np.bool_]) -> dict[str, Tally]:
        return {"splits": tally_of(tree.name, every, there & readable, faces.file, ("IJB-A", about))}

    source.tally = tally
    source.lists = lambda kept: with_images(kept, listed, plain, source.notes)
    return source


_COLUMNS = ("image", "template", "media")


def _files(tree: Tree, named: Sequence[str]) -> tuple[list[str], int]:
    """The file of each face's photo, empty where there is none, and how many photos have another ending than named."""
    images = images_in(tree)
    exact = {"/".join(path.split("/")[-2:]): path for path in images} | {path: path for path in images}
    loose = {_stem(path): path for path in reversed(images)}
    files = [
        exact.get(name) or exact.get("/".join(name.split("/")[-2:])) or loose.get(_stem(name), "") for name in named
    ]
    others = {
        name for name, file in zip(named, files, strict=True) if file and file.split("/")[-1] != name.split("/")[-1]
    }
    return files, len(others)


def _stem(path: str) -> str:
    """Folder and name of a photo without its ending, in small letters."""
    return "/".join(path.split("/")[-2:]).rpartition(".")[0].lower()


def _read_split(tree: Tree, split: int, faces: _Faces, plain: dict[str, Listing]) -> TemplateList:
    """One split: verification and search number their templates apart, so search's numbers follow the others."""
    name = f"split-{split:02d}"
    rows: list[tuple[int, int, int]] = []
    meta = one_file(tree, rf".*verify_metadata_{split}\.csv", required=False)
    subject: dict[int, int] = {}
    if meta is not None:
        _read_rows(tree, meta, 0, faces, rows, subject)
        pairs = one_file(tree, rf".*verify_comparisons_{split}\.csv")
        plain[f"{name}.verification"] = _comparisons(text_of(tree, pairs), pairs, subject, meta)
    offset = max(subject, default=-1) + 1
    for part, pattern in (("gallery", "search_gallery"), ("probes", "search_probe")):
        path = one_file(tree, rf".*{pattern}_{split}\.csv", required=False)
        if path is not None:
            found: dict[int, int] = {}
            _read_rows(tree, path, offset, faces, rows, found)
            plain[f"{name}.{part}"] = SubjectList(np.array(list(found)), np.array(list(found.values())))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return TemplateList(columns[0], columns[1], columns[2])


def _read_rows(
    tree: Tree, path: str, offset: int, faces: _Faces, rows: list[tuple[int, int, int]], subject: dict[int, int]
) -> None:
    """The faces of a file's templates, numbered from `offset`, and each template's subject."""
    for where, row in csv_rows(tree, path, _ROW):
        template = offset + whole(row["TEMPLATE_ID"], where)
        person = whole(row["SUBJECT_ID"], where)
        if subject.setdefault(template, person) != person:
            raise FedVisageError(
                f"{where}: template {row['TEMPLATE_ID']} is of subject {subject[template]}, not {person}"
            )
        rows.append((faces.of(row, where), template, whole(row["MEDIA_ID"], where)))


def _comparisons(text: str, path: str, subject: dict[int, int], meta: str) -> TemplatePairs:
    """The pairs of templates to compare, and whether they show one subject."""
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("\t", ",").split(",")
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if len(words) != 2:
            raise FedVisageError(f"{where}: '{line.strip()[:60]}' should be two templates")
        one, other = (whole(word, where) for word in words)
        absent = {one, other} - subject.keys()
        if absent:
            raise FedVisageError(f"{where} names template {min(absent)} that {meta} does not have: is one cut off?")
        pairs.append((one, other))
    if not pairs:
        raise FedVisageError(f"{path} holds no pairs of templates")
    same = [int(subject[one] == subject[other]) for one, other in pairs]
    left, right = np.array(pairs, dtype=np.int64).T
    return TemplatePairs(left, right, np.array(same, dtype=np.int64))
