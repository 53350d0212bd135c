"""Plain lists of images: a CSV or Parquet manifest (path, identity, domain, split), and MegaFace with FaceScrub."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.devkit import listed_images, megaface_lists
from fedvisage.faces.importing.source import UNLABELLED, Source, Tally, of_files
from fedvisage.faces.importing.tree import Folder, Tree, safe_path, text_of
from fedvisage.faces.lists import ImageList, Listing
from fedvisage.faces.records import Indices

COLUMNS = ("path", "identity", "domain", "split")
_SPLIT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def read_manifest(path: Path) -> Source:
    """The images that a manifest names, relative to its folder; each split becomes a list of images."""
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    paths = [safe_path(text, str(path)) for text in table["path"]]
    twice = [name for name, count in Counter(paths).items() if count > 1]
    if twice:
        raise FedVisageError(f"{path} names '{twice[0]}' twice")
    identities = [text.strip() or UNLABELLED for text in table.get("identity", [UNLABELLED] * len(paths))]
    source = of_files(Folder(path.parent), paths, identities)
    if any(table.get("domain", ())):
        domains = [text.strip() or "none" for text in table["domain"]]
        source.domains = tuple(sorted(set(domains)))
        source.domain = np.array([source.domains.index(name) for name in domains], dtype=np.int64)
    splits = [text.strip().lower() for text in table.get("split", ())]
    for name in sorted(set(splits) - {""}):
        if not _SPLIT.fullmatch(name):
            raise FedVisageError(f"{path}: '{name[:40]}' cannot name a split")
    if any(splits):
        source.lists = lambda kept: image_lists(kept, source.labels, splits)
        source.tally = lambda there: image_tallies(source, there, splits, str(path))
    return source


def image_tallies(source: Source, there: NDArray[np.bool_], parts: Sequence[str], where: str) -> dict[str, Tally]:
    """How many images of each list can be read."""
    names, tallies = np.array(parts), {}
    for name in sorted(set(parts) - {""}):
        own = np.flatnonzero(names == name)
        missing = own[~there[own]]
        first = f"'{source.called(int(missing[0]))}'" if len(missing) else ""
        tallies[name] = Tally(f"list {name} of {where}", len(own), len(own) - len(missing), "images", first)
    return tallies


def image_lists(kept: Indices, labels: Indices, parts: Sequence[str]) -> dict[str, Listing]:
    """A list of images per name, with the number of each one's person in the set."""
    lists: dict[str, Listing] = {}
    names = np.array(parts)
    for name in sorted(set(parts) - {""}):
        chosen = np.flatnonzero((names == name) & (kept >= 0))
        lists[name] = ImageList(kept[chosen], _set_labels(kept, labels)[kept[chosen]])
    return lists


def _set_labels(kept: Indices, labels: Indices) -> Indices:
    """The number that the person of each image of the set gets: people without images have none."""
    numbers, first = np.unique(kept, return_index=True)
    _, own = np.unique(labels[first[numbers >= 0]], return_inverse=True)
    return own.astype(np.int64)


def _csv(path: Path) -> dict[str, list[str]]:
    try:
        reader = csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline=""), strict=True)
        header = [name.strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    _check_header(header, path)
    known = [name for name in header if name in COLUMNS]
    wrong = next((n for n, row in enumerate(rows, 2) if None in row or any(row[c] is None for c in known)), None)
    if wrong is not None:
        raise FedVisageError(f"{path}, line {wrong} has another number of columns than the first")
    return {name: [row[name] for row in rows] for name in known}


def _parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise FedVisageError("Parquet needs pyarrow: pip install 'fedvisage[parquet]', or give a CSV file") from None
    try:
        table = parquet.read_table(path)
        columns = [
            (name.strip().lower(), ["" if value is None else str(value) for value in column.to_pylist()])
            for name, column in zip(table.column_names, table.columns, strict=True)
            if name.strip().lower() in COLUMNS
        ]
    except Exception as error:  # pyarrow has errors of its own for every way a file can be wrong
        raise FedVisageError(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from None
    _check_header([name for name, _ in columns], path)
    return dict(columns)


def _check_header(header: Sequence[str], path: Path) -> None:
    if "path" not in header:
        raise FedVisageError(f"{path} has no column 'path': the first line names columns ({', '.join(COLUMNS)})")
    if len(set(header)) < len(header):
        raise FedVisageError(f"{path} has two columns of one name")


def read_megaface(tree: Tree) -> Source:
    """MegaFace's distractors and FaceScrub's people by InsightFace's lists or the devkit's, with the lists of noise."""
    files = {path.rpartition("/")[2]: path for path in tree.files}
    listed = megaface_lists(tree, files)
    paths: list[str] = []
    parts: list[str] = []
    people: list[str] = []
    place = listed_images(tree)
    for part, one in listed.items():
        paths += place(one)
        parts += [part] * len(one.paths)
        people += one.people
    noise = {part: _noise(tree, files.get(name)) for part, name in _NOISE.items()}
    noisy = [
        bool(noise[part]) and _plain(path, part) in noise[part] for part, one in listed.items() for path in one.paths
    ]
    source = of_files(tree, paths, people)
    source.keeps_duplicates = True

    def lists(kept: Indices) -> dict[str, Listing]:
        both = image_lists(kept, source.labels, parts)
        chosen = np.flatnonzero(np.array(noisy, dtype=bool) & (kept >= 0))
        return both | {"noise": ImageList(kept[chosen], _set_labels(kept, source.labels)[kept[chosen]])}

    source.lists = lists
    known = set(tree.files)
    present = np.array([path in known for path in paths], dtype=bool)
    source.tally = lambda there: image_tallies(source, there & present, parts, tree.name)
    source.notes += [note for one in listed.values() for note in one.notes]
    for part, published in PUBLISHED_NOISE.items():
        if files.get(_NOISE[part]) and len(noise[part]) != published:
            said = f"{_NOISE[part]} names {len(noise[part]):,} images, and the published list {published:,}"
            source.notes.append(said)
    named = sum(map(len, noise.values()))
    if named != sum(noisy):
        source.notes.append(f"{named - sum(noisy):,} of {named:,} noisy images are not in the lists")
    return source


PUBLISHED_NOISE = {"probes": 605, "distractors": 707}
"""Images that InsightFace's lists of noise name."""
_NOISE: Mapping[str, str] = {"probes": "facescrub_noises.txt", "distractors": "megaface_noises.txt"}


def _noise(tree: Tree, path: str | None) -> set[str]:
    """FaceScrub's noise is named by file, MegaFace's by path; endings and spaces differ between copies."""
    if path is None:
        return set()
    part = "probes" if "facescrub" in path else "distractors"
    lines = [line.strip() for line in text_of(tree, path).splitlines()]
    return {_plain(line, part) for line in lines if line and not line.startswith("#")}


def _plain(path: str, part: str) -> str:
    own = path.rpartition("/")[2] if part == "probes" else "/".join(path.split("/")[-3:])
    return re.sub(r"[\s_]+", "", re.sub(r"\.(jpe?g|png)$", "", own, flags=re.IGNORECASE)).casefold()
