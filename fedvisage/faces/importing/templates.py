"""The IJB families: templates of several images, verification pairs of templates, galleries and probes.

IJB-B and IJB-C come as loose crops with meta files: which images make a template and a media, five landmarks and a
detector score of each image, pairs of templates, and the templates of galleries and probes. IJB-A comes as photos with
a box of each face, in ten splits.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import UNLABELLED, Source, images_in, whole
from fedvisage.faces.importing.tree import Tree, safe_path, text_of
from fedvisage.faces.lists import Listing, SubjectList, TemplateList, TemplatePairs
from fedvisage.faces.records import Indices


def read_ijb(tree: Tree) -> Source:
    """IJB-B or IJB-C, as insightface distributes them."""
    meta = _one(tree, r".*_face_tid_mid\.txt")
    rows = _table(text_of(tree, meta), meta, 3)
    images = [safe_path(row[0], meta) for row in rows]
    templates = np.array([whole(row[1], meta) for row in rows], dtype=np.int64)
    media = np.array([whole(row[2], meta) for row in rows], dtype=np.int64)
    where = {path.rpartition("/")[2]: path for path in images_in(tree)}
    names = sorted(set(images))
    place = {name: number for number, name in enumerate(names)}
    image = np.array([place[name] for name in images], dtype=np.int64)
    subjects = _subjects(tree)
    person = {int(t): s for t, s in zip(subjects.template, subjects.subject, strict=True)}
    people = np.full(len(names), -1, dtype=np.int64)
    for number, template in zip(image.tolist(), templates.tolist(), strict=True):
        people[number] = person.get(template, people[number])
    numbers, labels = np.unique(people, return_inverse=True)

    def read(number: int) -> bytes:
        name = names[number].rpartition("/")[2]
        if name not in where:
            raise FedVisageError("there is no such file")
        return tree.read(where[name])

    who = tuple(UNLABELLED if number < 0 else f"subject-{number:05d}" for number in numbers.tolist())
    source = Source(who, labels.astype(np.int64), read, lambda number: names[number], keeps_duplicates=True)
    _landmarks(tree, source, place)

    def lists(kept: Indices) -> dict[str, Listing]:
        there = kept[image] >= 0
        if not there.all():
            source.notes.append(f"{int((~there).sum()):,} of {len(there):,} images of templates are not there")
        made: dict[str, Listing] = {"templates": TemplateList(kept[image][there], templates[there], media[there])}
        return made | _pairs_of_templates(tree) | _galleries(tree)

    source.lists = lists
    return source


def _landmarks(tree: Tree, source: Source, place: dict[str, int]) -> None:
    """Five points and a score per image; with them the loose crops are aligned."""
    path = _one(tree, r".*_name_5pts_score\.txt", required=False)
    if path is None:
        source.notes.append("there are no landmarks: images are taken as they are")
        return
    points = np.full((len(source), 5, 2), np.nan, np.float32)
    score = np.zeros(len(source), np.float32)
    for row in _table(text_of(tree, path), path, 12):
        number = place.get(safe_path(row[0], path))
        if number is not None:
            values = _floats(row[1:], path)
            points[number], score[number] = values[:10].reshape(5, 2), values[10]
    source.landmarks, source.score, source.aligns = points, score, True


def _pairs_of_templates(tree: Tree) -> dict[str, Listing]:
    path = _one(tree, r".*_template_pair_label\.txt", required=False)
    if path is None:
        return {}
    text = text_of(tree, path)
    if not text.strip():
        raise FedVisageError(f"{path} is empty: it should hold two templates and an answer per line")
    try:
        rows = np.loadtxt(io.StringIO(text), dtype=np.int64, ndmin=2, comments=None)
    except (ValueError, OverflowError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise FedVisageError(f"{path} should hold two templates and an answer per line")
    return {"verification": TemplatePairs(rows[:, 0], rows[:, 1], (rows[:, 2] > 0).astype(np.int64))}


_GALLERIES = {
    "gallery-1": r".*1N_gallery_[GS]1\.csv",
    "gallery-2": r".*1N_gallery_[GS]2\.csv",
    "probes": r".*1N_probe_mixed\.csv",
}


def _galleries(tree: Tree) -> dict[str, Listing]:
    found = {name: _one(tree, pattern, required=False) for name, pattern in _GALLERIES.items()}
    return {name: _subject_list(tree, path) for name, path in found.items() if path is not None}


def _subject_list(tree: Tree, path: str) -> SubjectList:
    """The templates of a CSV file with the person of each, once each."""
    pairs = dict.fromkeys(
        (whole(row["TEMPLATE_ID"], path), whole(row["SUBJECT_ID"], path)) for row in _csv(tree, path, _SUBJECT)
    )
    rows = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return SubjectList(rows[:, 0], rows[:, 1])


_SUBJECT = ("TEMPLATE_ID", "SUBJECT_ID")


def _subjects(tree: Tree) -> SubjectList:
    known = [rows for rows in _galleries(tree).values() if isinstance(rows, SubjectList)]
    empty = np.empty(0, np.int64)
    return SubjectList(
        np.concatenate([rows.template for rows in known] or [empty]),
        np.concatenate([rows.subject for rows in known] or [empty]),
    )


@dataclass
class _Faces:
    """Faces met so far in IJB-A's files: a file and a box each."""

    number: dict[tuple[str, tuple[float, ...]], int]
    subject: list[int]

    def of(self, row: dict[str, str], path: str) -> int:
        """The number of a row's face."""
        sides = _floats([row.get(name) or "nan" for name in _BOX], path)
        if (np.abs(sides) > LARGEST).any():
            raise FedVisageError(f"{path}: no image is so large that it holds a face at {sides.tolist()}")
        box = tuple(sides.tolist())
        key = (safe_path(row["FILE"], path), box if box[2] == box[2] else ())
        if key not in self.number:
            self.number[key] = len(self.number)
            self.subject.append(whole(row["SUBJECT_ID"], path))
        return self.number[key]


LARGEST = 2**24
"""Pixels: the largest whole number that a box, which is kept in float32, tells from its neighbours."""
_BOX = ("FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")
_ROW = ("TEMPLATE_ID", "SUBJECT_ID", "FILE", "MEDIA_ID")


def read_ijba(tree: Tree) -> Source:
    """IJB-A's ten splits; each face is cut out of its photo by its box."""
    faces = _Faces({}, [])
    made: dict[str, tuple[Indices, Indices, Indices]] = {}
    plain: dict[str, Listing] = {}
    splits = sorted({int(m[1]) for p in tree.files if (m := re.fullmatch(r".*(?:metadata|gallery)_(\d{1,3})\.csv", p))})
    for split in splits:
        _read_split(tree, split, faces, made, plain)
    if not faces.number:
        raise FedVisageError(f"there are no split files of IJB-A in {tree.name}")
    keys = list(faces.number)
    where = {path: path for path in images_in(tree)} | {"/".join(p.split("/")[-2:]): p for p in images_in(tree)}
    numbers, labels = np.unique(faces.subject, return_inverse=True)

    def read(number: int) -> bytes:
        if keys[number][0] not in where:
            raise FedVisageError("there is no such file")
        return tree.read(where[keys[number][0]])

    def lists(kept: Indices) -> dict[str, Listing]:
        done: dict[str, Listing] = dict(plain)
        for name, (image, template, media) in made.items():
            there = kept[image] >= 0
            done[name] = TemplateList(kept[image][there], template[there], media[there])
        return done

    who = tuple(f"subject-{number:05d}" for number in numbers.tolist())
    source = Source(who, labels.astype(np.int64), read, lambda n: keys[n][0], keeps_duplicates=True, lists=lists)
    if all(key[1] for key in keys):
        source.boxes = np.array([key[1] for key in keys], dtype=np.float32)
    return source


def _read_split(
    tree: Tree,
    split: int,
    faces: _Faces,
    made: dict[str, tuple[Indices, Indices, Indices]],
    plain: dict[str, Listing],
) -> None:
    """One split: verification and search number their templates apart, so search's numbers follow the others."""
    name = f"split-{split:02d}"
    rows: list[tuple[int, int, int]] = []
    meta = _one(tree, rf".*verify_metadata_{split}\.csv", required=False)
    subject: dict[int, int] = {}
    if meta is not None:
        for row in _csv(tree, meta, _ROW):
            template = whole(row["TEMPLATE_ID"], meta)
            subject[template] = whole(row["SUBJECT_ID"], meta)
            rows.append((faces.of(row, meta), template, whole(row["MEDIA_ID"], meta)))
        pairs = _one(tree, rf".*verify_comparisons_{split}\.csv")
        plain[f"{name}.verification"] = _comparisons(text_of(tree, pairs), pairs, subject)
    offset = max(subject, default=-1) + 1
    for part, pattern in (("gallery", "search_gallery"), ("probes", "search_probe")):
        path = _one(tree, rf".*{pattern}_{split}\.csv", required=False)
        if path is None:
            continue
        found: dict[int, int] = {}
        for row in _csv(tree, path, _ROW):
            template = offset + whole(row["TEMPLATE_ID"], path)
            found[template] = whole(row["SUBJECT_ID"], path)
            rows.append((faces.of(row, path), template, whole(row["MEDIA_ID"], path)))
        plain[f"{name}.{part}"] = SubjectList(np.array(list(found)), np.array(list(found.values())))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    made[f"{name}.templates"] = (columns[0], columns[1], columns[2])


def _comparisons(text: str, path: str, subject: dict[int, int]) -> TemplatePairs:
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    if not all(len(row) == 2 for row in rows):
        raise FedVisageError(f"{path} should hold two templates per line")
    pairs = np.array([[whole(word, path) for word in row] for row in rows], dtype=np.int64).reshape(-1, 2)
    absent = sorted({int(template) for template in pairs.ravel()} - subject.keys())
    if absent:
        raise FedVisageError(f"{path} names template {absent[0]} that the metadata do not have")
    same = [int(subject[int(one)] == subject[int(other)]) for one, other in pairs]
    return TemplatePairs(pairs[:, 0], pairs[:, 1], np.array(same, dtype=np.int64))


def _one(tree: Tree, pattern: str, required: bool = True) -> str:
    """The file of this name; where it is not required and not there, None."""
    found = [path for path in tree.files if re.fullmatch(pattern, path)]
    if len(found) > 1:
        raise FedVisageError(f"{tree.name} holds both {found[0]} and {found[1]}: import one folder at a time")
    if not found and required:
        raise FedVisageError(f"{tree.name} has no file like {pattern.replace('.*', '*').replace(chr(92), '')}")
    return found[0] if found else None  # type: ignore[return-value]


def _table(text: str, path: str, columns: int) -> list[list[str]]:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    wrong = next((row for row in rows if len(row) != columns), None)
    if wrong is not None:
        raise FedVisageError(f"{path}: '{' '.join(wrong)[:60]}' has {len(wrong)} words, not {columns}")
    return rows


def _csv(tree: Tree, path: str, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file; its header must have these columns."""
    try:
        reader = csv.DictReader(io.StringIO(text_of(tree, path)))
        header = [name.strip().upper() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        rows = list(reader)
    except csv.Error as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    absent = [name for name in needed if name not in header]
    if absent:
        raise FedVisageError(f"{path} has no column {absent[0]}: it has {', '.join(header)[:120]}")
    wrong = next((number for number, row in enumerate(rows, 2) if any(row[name] is None for name in needed)), None)
    if wrong is not None:
        raise FedVisageError(f"{path}, line {wrong} has too few columns")
    return rows


def _floats(words: Sequence[str], path: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        return np.array([float(word) for word in words])
    except ValueError as error:
        raise FedVisageError(f"{path}: {error}") from None
