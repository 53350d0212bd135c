"""InsightFace's training sets: `train.rec` with `.idx`, `.lst` and `property`, read and written without mxnet.

A record is a magic number, a word with its length (29 bits) and which part of a whole it is (3 bits), and its bytes,
padded to four. Content that holds the magic number on a boundary of four bytes is cut there into parts, and reading
puts the number back. A record's content is a header (flag, label, two ids), `flag` labels more if the flag is not 0,
and an image. Record 0 of InsightFace's sets is no image: it says where the images end and people's records begin;
FedFR's scripts leave an image in it. Where there is no `.idx`, the first id of a header is the record's number.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import MOST_BYTES
from fedvisage.faces.importing.source import Source
from fedvisage.faces.importing.tree import refuse_pointer
from fedvisage.faces.records import Indices

MAGIC = 0xCED7230A
_MAGIC = struct.pack("<I", MAGIC)
_HEADER = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LENGTH = (1 << 29) - 1
_HEAD = 4096
"""Bytes of a record that are read for its labels."""
_NO_IMAGE = 32
"""Bytes behind the labels that are no image yet."""


class RecordFile:
    """The records of a `.rec` file, read by their place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY)
            self.bytes = os.fstat(self._file).st_size
            refuse_pointer(path, os.pread(self._file, 64, 0))
        except OSError as error:
            raise FedVisageError(f"cannot read {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, offset: int, most: int = MOST_BYTES) -> bytes:
        """The content of the record that begins here; its first `most` bytes at least, where it has them."""
        data, _ = self._read(offset, most)
        return data

    def _read(self, offset: int, most: int) -> tuple[bytes, int]:
        """The content, and where the next record begins."""
        parts: list[bytes] = []
        taken = 0
        while True:
            kind, length = self._head(offset)
            if kind not in ((_WHOLE, _FIRST) if not parts else (_MIDDLE, _LAST)):
                raise FedVisageError(f"{self.path}: the parts of the record at byte {offset:,} are out of order")
            wanted = min(length, most)
            data = os.pread(self._file, wanted, offset + 8)
            if len(data) != wanted or offset + 8 + length > self.bytes:
                raise FedVisageError(f"{self.path} is truncated: the record at byte {offset:,} is not all there")
            parts.append(data)
            taken += wanted + len(_MAGIC)
            offset += 8 + (length + 3) // 4 * 4
            if kind in (_WHOLE, _LAST):
                return _MAGIC.join(parts), offset
            if taken > MOST_BYTES:
                raise FedVisageError(f"{self.path}: the record before byte {offset:,} is too large")

    def _head(self, offset: int) -> tuple[int, int]:
        head = os.pread(self._file, 8, offset) if 0 <= offset < 2**62 else b""
        if len(head) != 8:
            raise FedVisageError(f"{self.path} is truncated: no record at byte {offset:,}")
        magic, word = struct.unpack("<II", head)
        if magic != MAGIC:
            raise FedVisageError(f"{self.path}: no record begins at byte {offset:,}")
        return word >> 29, word & _LENGTH

    def end(self, offset: int) -> int:
        """Where the record that begins here ends, and the next one begins."""
        return self._read(offset, 0)[1]

    def scan(self) -> list[int]:
        """Where each record begins, found by walking through the file."""
        offsets, offset = [], 0
        while offset < self.bytes:
            offsets.append(offset)
            offset = self.end(offset)
        return offsets


def unpack(content: bytes, where: str) -> tuple[tuple[float, ...], int]:
    """The labels of a record, and where its image begins."""
    if len(content) < _HEADER.size:
        raise FedVisageError(f"{where} is too short to have a header")
    flag, label, _, _ = _HEADER.unpack_from(content)
    end = _HEADER.size + 4 * flag
    if flag > 1_000_000 and content[:1] == b"\n":
        raise FedVisageError(f"{where} is one of SageMaker's protobuf records, and only MXNet's records are read")
    if flag > 1_000_000 or end > len(content):
        raise FedVisageError(f"{where} is too short for its {flag:,} labels")
    return (struct.unpack_from(f"<{flag}f", content, _HEADER.size) if flag else (label,)), end


@dataclass(frozen=True)
class RecordImages:
    """The images of a `.rec` file: where each one's record begins, and the number of its person."""

    file: RecordFile
    places: Indices
    people: Indices
    said: tuple[float, ...]
    """The labels of record 0, where it is no image."""

    def read(self, number: int) -> bytes:
        """An image as it is encoded."""
        content = self.file.read(int(self.places[number]))
        return content[unpack(content, f"{self.file.path}, image {number + 1}")[1] :]

    def called(self, number: int) -> str:
        """What an image is called in the report."""
        return f"{self.file.path.name}, image {number + 1}"


def open_images(rec: Path) -> RecordImages:
    """The images of a `.rec` file by its index, or by walking through it; only headers are read."""
    file = RecordFile(rec)
    keys, places = _index(rec, file)
    said: tuple[float, ...] = ()
    if len(keys):
        chosen, said = _of_images(file, keys, places)
        places = places[chosen]
    if not len(places):
        raise FedVisageError(f"there are no images in {rec}")
    return RecordImages(file, places, _labels(file, places), said)


def read_recordio(path: Path) -> Source:
    """A source of the images of `path` (a `.rec` file, or a folder that has one in it or below)."""
    rec = _find(path)
    images = open_images(rec)
    people, labels = np.unique(images.people, return_inverse=True)
    names, notes = _names(rec, people.tolist())
    source = Source(names, labels.astype(np.int64), images.read, images.called)
    source.notes += notes + _compare_with_property(rec, len(people))
    others = sorted(entry.name for entry in rec.parent.glob("*.bin"))
    if others:
        source.notes.append(f"beside it are verification sets, to be imported one by one: {', '.join(others)}")
    return source


def write_recordio(folder: Path, images: Iterable[tuple[int, bytes]], size: int = 112, name: str = "train") -> None:
    """Write encoded images with the number of each one's person as InsightFace does; people's images in a row."""
    ordered = sorted(images, key=lambda image: image[0])
    people = [person for person, _ in ordered]
    starts = [place for place in range(len(people)) if place == 0 or people[place] != people[place - 1]]
    ends = [*starts[1:], len(people)]
    records = [_HEADER.pack(2, 0.0, 0, 0) + struct.pack("<2f", len(people) + 1, len(people) + 1 + len(starts))]
    records += [_HEADER.pack(0, float(person), place + 1, 0) + data for place, (person, data) in enumerate(ordered)]
    records += [
        _HEADER.pack(2, 0.0, len(people) + 1 + place, 0) + struct.pack("<2f", begin + 1, end + 1)
        for place, (begin, end) in enumerate(zip(starts, ends, strict=True))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    offset = 0
    with (folder / f"{name}.rec").open("wb") as rec, (folder / f"{name}.idx").open("w") as idx:
        for number, content in enumerate(records):
            idx.write(f"{number}\t{offset}\n")
            offset += rec.write(frame(content))
    lines = [f"{place + 1}\t{person}\t{person:05d}/{place + 1}.jpg\n" for place, person in enumerate(people)]
    (folder / f"{name}.lst").write_text("".join(lines))
    (folder / "property").write_text(f"{len(starts)},{size},{size}\n")


def frame(content: bytes) -> bytes:
    """A record as it is in the file: cut into parts where the content holds the magic number on a boundary."""
    cuts = [at.start() for at in re.finditer(re.escape(_MAGIC), content) if at.start() % 4 == 0]
    edges = [-4, *cuts, len(content)]
    parts = [content[begin + 4 : end] for begin, end in itertools.pairwise(edges)]
    out = b""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        kind = _WHOLE if len(parts) == 1 else _FIRST if number == 0 else _LAST if last else _MIDDLE
        if len(part) > _LENGTH:
            raise FedVisageError(f"a record of {len(part):,} bytes is too large")
        out += _MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + b"\0" * (-len(part) % 4)
    return out


def refuse_archive(path: Path) -> None:
    """Refuse a zip archive, in which records cannot be read by their place."""
    if path.suffix.lower() == ".zip" and path.is_file():
        said = f"unzip '{path}' -d '{path.with_suffix('')}'"
        raise FedVisageError(f"{path}: records are not read inside an archive. Unpack it: {said}")


def _find(path: Path) -> Path:
    refuse_archive(path)
    if path.is_file():
        return path
    found = sorted(path.glob("*.rec")) or sorted(path.rglob("*.rec"))
    if len(found) != 1:
        names = ", ".join(str(entry.relative_to(path)) for entry in found[:5]) or "none"
        more = f" and {len(found) - 5:,} more" if len(found) > 5 else ""
        raise FedVisageError(f"{path} should hold one .rec file and holds {names}{more}: name the file")
    return found[0]


def _index(rec: Path, file: RecordFile) -> tuple[Indices, Indices]:
    """The number of each record, ascending, and where it begins; by walking through the file where no index is."""
    idx = rec.with_suffix(".idx")
    if file.bytes:
        unpack(file.read(0, _HEAD), f"{rec}, record 0")
    if not idx.exists():
        return _walk(file)
    try:
        with idx.open("rb") as head:
            refuse_pointer(idx, head.read(64))
        table = np.loadtxt(idx, dtype=np.int64, ndmin=2, comments=None) if idx.stat().st_size else np.empty((0, 2), int)
    except (OSError, ValueError, OverflowError) as error:
        raise FedVisageError(f"cannot read {idx}: {error}") from None
    if table.ndim != 2 or table.shape[1] != 2:
        raise FedVisageError(f"{idx} should hold a key and a place per line")
    if len(table) and not 0 <= table[:, 1].min() <= table[:, 1].max() < file.bytes:
        raise FedVisageError(f"{idx} names places beyond the end of {rec.name}: is one of them truncated?")
    begins = np.unique(table[:, 1])
    ends = np.array([file.end(place) for place in begins.tolist()], np.int64)
    wrong = np.flatnonzero(np.append(begins, file.bytes) != np.append(0, ends))
    if len(table) and (len(wrong) or len(begins) < len(table)):
        place = np.append(0, ends)[wrong[0]] if len(wrong) else _first_twice(table[:, 1])
        said = f"{idx} does not name the record of {rec.name} at byte {place:,} once: is one of them truncated?"
        raise FedVisageError(f"{said} Without {idx.name}, all records are read")
    table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0], table[:, 1]


def _first_twice(places: Indices) -> int:
    found, count = np.unique(places, return_counts=True)
    return int(found[count > 1][0])


def _walk(file: RecordFile) -> tuple[Indices, Indices]:
    """Records by their ids, or in their order in the file where the ids tell nothing."""
    places = np.array(file.scan(), dtype=np.int64)
    keys = np.empty(len(places), np.int64)
    for number, place in enumerate(places.tolist()):
        head = file.read(place, _HEADER.size)
        if len(head) < _HEADER.size:
            raise FedVisageError(f"{file.path}, record {number:,} is too short to have a header")
        keys[number] = min(_HEADER.unpack_from(head)[2], 2**62)
    if len(np.unique(keys)) < len(keys):
        return np.arange(len(places)), places
    order = np.argsort(keys)
    return keys[order], places[order]


def _of_images(file: RecordFile, keys: Indices, places: Indices) -> tuple[NDArray[np.bool_], tuple[float, ...]]:
    """Which records are images, and the labels of record 0 where it and those behind the images are not.

    Record 0 says where the images end if it has two labels or more and either no image or more labels than record 1.
    """
    everything = np.ones(len(keys), bool)
    content = file.read(int(places[0]), _HEAD)
    labels, start = unpack(content, f"{file.path}, record {keys[0]}")
    if keys[0] != 0 or len(labels) < 2:
        return everything, ()
    if len(content) - start > _NO_IMAGE:
        next_labels = (
            unpack(file.read(int(places[1]), _HEAD), f"{file.path}, record {keys[1]}")[0] if len(keys) > 1 else ()
        )
        if not 0 < len(next_labels) < len(labels):
            return everything, ()
    chosen = (keys >= 1) & (keys < labels[0])
    if not 1 <= labels[0] <= keys[-1] + 1 or chosen.sum() != int(labels[0]) - 1:
        said = f"its record 0 speaks of {labels[0] - 1:,.0f} images, and there are {chosen.sum():,} of them"
        raise FedVisageError(f"{file.path}: {said}. Is it or its .idx truncated?")
    return chosen, labels


def _labels(file: RecordFile, places: Indices) -> Indices:
    """The person of each record; only the headers are read."""
    labels = np.empty(len(places), np.int64)
    for number, place in enumerate(places.tolist()):
        some = unpack(file.read(place, _HEAD), f"{file.path}, image {number + 1}")[0]
        if _is_detection(some):
            raise FedVisageError(f"{file.path}, image {number + 1}: its labels are boxes of objects, and not a person")
        label = some[0]
        if not 0 <= label < 2**24 or label != int(label):
            raise FedVisageError(f"{file.path}, image {number + 1}: {label} is no number of a person")
        labels[number] = int(label)
    return labels


def _is_detection(labels: tuple[float, ...]) -> bool:
    """Whether labels are MXNet's for detection: widths of their header and of an object, and objects of that width."""
    if len(labels) < 7 or not all(2 <= width < 1000 and width == int(width) for width in labels[:2]):
        return False
    header, width = int(labels[0]), int(labels[1])
    return width >= 5 and len(labels) > header and (len(labels) - header) % width == 0


def _names(rec: Path, people: list[int]) -> tuple[tuple[str, ...], list[str]]:
    """People's names: the folders their images came from where the list tells one for each, else their numbers."""
    width = max(5, len(str(people[-1])))
    numbers = tuple(f"{person:0{width}d}" for person in people)
    folders: dict[int, set[str]] = {}
    lst = rec.with_suffix(".lst")
    try:
        with lst.open(encoding="utf-8") as file:
            for line in file:
                person, folder = _listed(line)
                folders.setdefault(person, set()).add(folder)
    except FileNotFoundError:
        return numbers, []
    except (OSError, ValueError, OverflowError) as error:
        return numbers, [f"{lst.name} was not used: {error}"]
    found = [folders.get(person, set()) for person in people]
    if any(len(each) != 1 for each in found) or len(set.union(*found)) != len(people) or "" in set.union(*found):
        return numbers, [f"{lst.name} was not used: it does not name one folder for each person"]
    return tuple(folder for each in found for folder in each), []


def _listed(line: str) -> tuple[int, str]:
    """Number and folder of a line: `key, label, path` as mxnet has it, or `aligned, path, label` as InsightFace."""
    fields = line.rstrip("\n").split("\t")
    if len(fields) < 3:
        raise ValueError(f"no list of images: {line[:60]!r}")
    label, path = (fields[1], fields[-1]) if _is_number(fields[1]) else (fields[2], fields[1])
    return int(float(label)), Path(path).parent.name


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _compare_with_property(rec: Path, people: int) -> list[str]:
    path = rec.with_name("property")
    try:
        classes = int(path.read_text("utf-8").split(",")[0])
    except (OSError, ValueError):
        return []
    return [] if classes == people else [f"property says {classes:,} people; the records show {people:,}"]
