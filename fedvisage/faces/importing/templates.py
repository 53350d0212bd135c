"""IJB-B and IJB-C: templates of several images, verification pairs of templates, galleries and probes.

They come as loose crops with meta files: which images make a template and a media, five landmarks and a detector score
of each image, pairs of templates, and the templates of galleries and probes.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import UNLABELLED, Source, Tally, images_in, whole
from fedvisage.faces.importing.tree import MOST_TEXT, Tree, safe_path, text_of
from fedvisage.faces.lists import Listing, SubjectList, TemplateList, TemplatePairs
from fedvisage.faces.records import Indices


def read_ijb(tree: Tree) -> Source:
    """IJB-B or IJB-C, as insightface distributes them."""
    meta = one_file(tree, r".*_face_tid_mid\.txt")
    rows = table_rows(text_of(tree, meta), meta, 3)
    images = [safe_path(row[0], meta) for row in rows]
    templates = np.array([whole(row[1], meta) for row in rows], dtype=np.int64)
    media = np.array([whole(row[2], meta) for row in rows], dtype=np.int64)
    where = {path.rpartition("/")[2]: path for path in images_in(tree)}
    names = sorted(set(images))
    place = {name: number for number, name in enumerate(names)}
    image = np.array([place[name] for name in images], dtype=np.int64)
    plain: dict[str, Listing] = _pairs_of_templates(tree) | _galleries(tree)
    for name, listing in plain.items():
        _check_templates(listing, templates, f"{tree.name}: the list '{name}'", meta)
    people = _people_of(len(names), image, templates, plain)
    numbers, labels = np.unique(people, return_inverse=True)
    files = [where.get(name.rpartition("/")[2], "") for name in names]

    def read(number: int) -> bytes:
        if not files[number]:
            raise FedVisageError("there is no such file")
        return tree.read(files[number])

    who = tuple(UNLABELLED if number < 0 else f"subject-{number:05d}" for number in numbers.tolist())
    source = Source(who, labels.astype(np.int64), read, lambda number: names[number], keeps_duplicates=True)
    _landmarks(tree, source, place)
    listed, twice = without_twice(TemplateList(image, templates, media))
    source.notes += told_twice({"": twice})
    about = _published(meta, len(np.unique(templates)), plain)
    there = np.array([bool(file) for file in files], dtype=np.bool_)

    def tally(readable: NDArray[np.bool_]) -> dict[str, Tally]:
        return {"templates": tally_of(meta, listed, there & readable, names, about)}

    source.tally = tally
    source.lists = lambda kept: with_images(kept, {"templates": listed}, plain, source.notes)
    return source


def _people_of(images: int, image: Indices, templates: Indices, plain: Mapping[str, Listing]) -> Indices:
    """The subject of each image (N,) by the templates of galleries and probes; -1 where they do not say."""
    known = [rows for rows in plain.values() if isinstance(rows, SubjectList)]
    person = {t: s for rows in known for t, s in zip(rows.template.tolist(), rows.subject.tolist(), strict=True)}
    people = np.full(images, -1, dtype=np.int64)
    for number, template in zip(image.tolist(), templates.tolist(), strict=True):
        people[number] = person.get(template, people[number])
    return people


def tally_of(
    where: str, rows: TemplateList, there: NDArray[np.bool_], names: Sequence[str], about: tuple[str, str]
) -> Tally:
    """How many images of templates can be read."""
    found = there[rows.image]
    first = ""
    if not found.all():
        row = int(np.argmin(found))
        first = f"'{names[rows.image[row]]}' of template {rows.template[row]}"
    name, text = about
    return Tally(where, len(found), int(found.sum()), "images of templates", first, "", name, text)


def without_twice(rows: TemplateList) -> tuple[TemplateList, Indices]:
    """The rows with every image once in a template, and the templates (n,) of the rows that are left out."""
    _, first = np.unique(np.stack([rows.template, rows.image]), axis=1, return_index=True)
    once = np.zeros(len(rows), np.bool_)
    once[first] = True
    return TemplateList(rows.image[once], rows.template[once], rows.media[once]), rows.template[~once]


def told_twice(left_out: Mapping[str, Indices]) -> list[str]:
    """What to say of images that templates list more than once, by the part of the protocol."""
    templates = [f"template {t}{f' of {part}' if part else ''}" for part, ts in left_out.items() for t in np.unique(ts)]
    rows = sum(map(len, left_out.values()))
    named = ", ".join(templates[:3]) + (f" and {len(templates) - 3:,} more" if len(templates) > 3 else "")
    return [f"{rows:,} rows list an image that its template has already, and count once ({named})"] if rows else []


PUBLISHED = {"ijbb": ("IJB-B", 12115, 8010270), "ijbc": ("IJB-C", 23124, 15658489)}
"""By the beginning of the meta files' names: the benchmark, its templates, and its pairs of templates."""


def _published(meta: str, templates: int, plain: Mapping[str, Listing]) -> tuple[str, str]:
    """The benchmark's name, and how its counts compare with the published ones."""
    pairs = len(plain["verification"]) if "verification" in plain else 0
    name, known, listed = PUBLISHED.get(meta.rpartition("/")[2][:4].lower(), ("", 0, 0))
    text = f"{templates:,} templates, {pairs:,} pairs of them"
    if not known:
        return "", text
    same = (templates, pairs) == (known, listed)
    return name, text + (", as published" if same else f"; published are {known:,} and {listed:,}")


def _templates_of(listing: Listing) -> list[Indices]:
    """The columns that name templates."""
    names = ("left", "right") if isinstance(listing, TemplatePairs) else ("template",)
    return [getattr(listing, name) for name in names]


def _check_templates(listing: Listing, templates: Indices, what: str, meta: str) -> None:
    """Refuse a list of templates that no image belongs to."""
    for side in _templates_of(listing):
        known = np.isin(side, templates)
        if not known.all():
            row = int(np.argmin(known))
            raise FedVisageError(
                f"{what} names template {side[row]} in row {row + 1}, and {meta} has no such template: is one cut off?"
            )


def with_images(
    kept: Indices, listed: Mapping[str, TemplateList], plain: Mapping[str, Listing], notes: list[str]
) -> dict[str, Listing]:
    """Lists by the set's image numbers; images that are not there, and templates without any, are left out with a note.

    `plain` are lists of templates, each by those of the list `templates` before the same dot.
    """
    made: dict[str, Listing] = {}
    left: dict[str, Indices] = {}
    lost = total = 0
    for name, rows in listed.items():
        there = kept[rows.image] >= 0
        lost, total = lost + int((~there).sum()), total + len(there)
        made[name] = TemplateList(kept[rows.image][there], rows.template[there], rows.media[there])
        left[name] = np.unique(rows.template[there])
    if lost:
        notes.append(f"{lost:,} of {total:,} images of templates are not there")
    gone: dict[str, list[int]] = {}
    for name, listing in plain.items():
        known = left[f"{name.rpartition('.')[0]}.templates".lstrip(".")] if lost else None
        made[name] = listing if known is None else _among(listing, known)
        part = gone.setdefault(name.rpartition(".")[2], [0, 0])
        part[0], part[1] = part[0] + len(listing) - len(made[name]), part[1] + len(listing)
    for name, (rows_lost, rows_all) in gone.items():
        if rows_lost:
            notes.append(f"{rows_lost:,} of {rows_all:,} rows of {name} are left out: a template has no image")
    return made


def _among(listing: Listing, templates: Indices) -> Listing:
    """The rows whose templates are all among these."""
    columns = [getattr(listing, field.name) for field in fields(listing)]
    there = np.logical_and.reduce([np.isin(side, templates) for side in _templates_of(listing)])
    return type(listing)(*(column[there] for column in columns))


def _landmarks(tree: Tree, source: Source, place: dict[str, int]) -> None:
    """Five points and a score per image; with them the loose crops are aligned."""
    path = one_file(tree, r".*_name_5pts_score\.txt", required=False)
    if path is None:
        source.notes.append("there are no landmarks: images are taken as they are")
        return
    points = np.full((len(source), 5, 2), np.nan, np.float32)
    score = np.zeros(len(source), np.float32)
    for row in table_rows(text_of(tree, path), path, 12):
        number = place.get(safe_path(row[0], path))
        if number is not None:
            values = floats(row[1:], path)
            points[number], score[number] = values[:10].reshape(5, 2), values[10]
    source.landmarks, source.score, source.aligns = points, score, True


def _pairs_of_templates(tree: Tree) -> dict[str, Listing]:
    path = one_file(tree, r".*_template_pair_label\.txt", required=False)
    if path is None:
        return {}
    data = tree.read(path, MOST_TEXT).removeprefix(codecs.BOM_UTF8)
    if not data or data.isspace():
        raise FedVisageError(f"{path} is empty: it should hold two templates and an answer per line")
    try:
        rows = np.loadtxt(io.BytesIO(data), dtype=np.int64, ndmin=2, comments=None, encoding="utf-8")
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
    found = {name: one_file(tree, pattern, required=False) for name, pattern in _GALLERIES.items()}
    return {name: _subject_list(tree, path) for name, path in found.items() if path is not None}


def _subject_list(tree: Tree, path: str) -> SubjectList:
    """The templates of a CSV file with the person of each, once each."""
    subjects: dict[int, int] = {}
    for where, row in csv_rows(tree, path, _SUBJECT):
        own = whole(row["SUBJECT_ID"], where)
        if subjects.setdefault(template := whole(row["TEMPLATE_ID"], where), own) != own:
            raise FedVisageError(f"{where}: template {template} is of subject {subjects[template]}, not {own}")
    return SubjectList(np.array(list(subjects), np.int64), np.array(list(subjects.values()), np.int64))


_SUBJECT = ("TEMPLATE_ID", "SUBJECT_ID")


def one_file(tree: Tree, pattern: str, required: bool = True) -> str:
    """The file of this name; where it is not required and not there, None."""
    found = [path for path in tree.files if re.fullmatch(pattern, path)]
    if len(found) > 1:
        raise FedVisageError(f"{tree.name} holds both {found[0]} and {found[1]}: import one folder at a time")
    if not found and required:
        raise FedVisageError(f"{tree.name} has no file like {pattern.replace('.*', '*').replace(chr(92), '')}")
    return found[0] if found else None  # type: ignore[return-value]


def table_rows(text: str, path: str, columns: int) -> list[list[str]]:
    """The words of each line that has any; each must have so many."""
    rows = [line.split() for line in text.splitlines()]
    wrong = next((number for number, row in enumerate(rows, 1) if row and len(row) != columns), None)
    if wrong is not None:
        row = rows[wrong - 1]
        raise FedVisageError(f"{path}, line {wrong}: '{' '.join(row)[:60]}' has {len(row)} words, not {columns}")
    return [row for row in rows if row]


def csv_rows(tree: Tree, path: str, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with the words for where it is; the header must have these columns."""
    reader = csv.DictReader(line.strip() for line in text_of(tree, path).splitlines())
    try:
        header = [name.strip().upper() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        absent = [name for name in needed if name not in header]
        if absent:
            there = ", ".join(header)[:120] or "nothing"
            raise FedVisageError(f"{path}, line 1 has no column {absent[0]}, only {there}: is the file cut off?")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if any(row[name] is None for name in needed):
                raise FedVisageError(f"{where} has too few columns: is the file cut off?")
            yield where, row
    except csv.Error as error:
        raise FedVisageError(f"cannot read {path}, line {reader.line_num}: {error}") from None


def floats(words: Sequence[str], path: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Words as numbers."""
    try:
        return np.array([float(word) for word in words])
    except ValueError as error:
        raise FedVisageError(f"{path}: {error}") from None
