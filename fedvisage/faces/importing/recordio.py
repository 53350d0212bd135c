"""InsightFace's training sets: `train.rec` with `.idx`, `.lst` and `property`, read and written without mxnet.

A record is a magic number, a word with its length (29 bits) and which part of a whole it is (3 bits), and its bytes,
padded to four. Content that holds the magic number on a boundary of four bytes is cut there into parts, and reading
puts the number back. A record's content is a header (flag, label, two ids), `flag` labels more if the flag is not 0,
and an image. Record 0 of InsightFace's sets holds no image: it says where the images end and people's records begin.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import MOST_BYTES
from fedvisage.faces.importing.source import Source
from fedvisage.faces.records import Indices

MAGIC = 0xCED7230A
_MAGIC = struct.pack("<I", MAGIC)
_HEADER = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LENGTH = (1 << 29) - 1


class RecordFile:
    """The records of a `.rec` file, read by their place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY)
            self.bytes = os.fstat(self._file).st_size
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
        while True:
            kind, length = self._head(offset)
            if kind not in ((_WHOLE, _FIRST) if not parts else (_MIDDLE, _LAST)):
                raise FedVisageError(f"{self.path}: the parts of the record at byte {offset:,} are out of order")
            wanted = min(length, most)
            data = os.pread(self._file, wanted, offset + 8)
            if len(data) != wanted or offset + 8 + length > self.bytes:
                raise FedVisageError(f"{self.path} is truncated: the record at byte {offset:,} is not all there")
            parts.append(data)
            offset += 8 + (length + 3) // 4 * 4
            if kind in (_WHOLE, _LAST):
                return _MAGIC.join(parts), offset
            if sum(map(len, parts)) > MOST_BYTES:
                raise FedVisageError(f"{self.path}: the record before byte {offset:,} is too large")

    def _head(self, offset: int) -> tuple[int, int]:
        head = os.pread(self._file, 8, offset) if 0 <= offset < 2**62 else b""
        if len(head) != 8:
            raise FedVisageError(f"{self.path} is truncated: no record at byte {offset:,}")
        magic, word = struct.unpack("<II", head)
        if magic != MAGIC:
            raise FedVisageError(f"{self.path}: no record begins at byte {offset:,}")
        return word >> 29, word & _LENGTH

    def scan(self) -> list[int]:
        """Where each record begins, found by walking through the file."""
        offsets, offset = [], 0
        while offset < self.bytes:
            offsets.append(offset)
            _, offset = self._read(offset, 0)
        return offsets


def unpack(content: bytes, where: str) -> tuple[tuple[float, ...], int]:
    """The labels of a record, and where its image begins."""
    if len(content) < _HEADER.size:
        raise FedVisageError(f"{where} is too short to have a header")
    flag, label, _, _ = _HEADER.unpack_from(content)
    end = _HEADER.size + 4 * flag
    if flag > 1_000_000 or end > len(content):
        raise FedVisageError(f"{where} is too short for its {flag:,} labels")
    return (struct.unpack_from(f"<{flag}f", content, _HEADER.size) if flag else (label,)), end


def read_recordio(path: Path) -> Source:
    """A source of the images of `path` (a `.rec` file, or the folder it is in)."""
    rec = _find(path)
    file = RecordFile(rec)
    offsets = _index(rec, file)
    first = unpack(file.read(offsets[0]), f"{rec}, record 0")[0] if offsets else ()
    places = np.array(offsets, dtype=np.int64)
    if len(first) >= 2 and 1 <= first[0] <= len(offsets) and len(file.read(offsets[0])) <= 64:
        places = places[1 : int(first[0])]
    if not len(places):
        raise FedVisageError(f"there are no images in {rec}")
    numbers = _labels(file, places)
    people, labels = np.unique(numbers, return_inverse=True)
    names, notes = _names(rec, people.tolist())

    def read(number: int) -> bytes:
        content = file.read(int(places[number]))
        return content[unpack(content, f"{rec}, image {number + 1}")[1] :]

    source = Source(names, labels.astype(np.int64), read, lambda number: f"{rec.name}, image {number + 1}")
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


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.glob("*.rec"))
    if len(found) != 1:
        names = ", ".join(entry.name for entry in found) or "none"
        raise FedVisageError(f"{path} should hold one .rec file and holds {names}: name the file")
    return found[0]


def _index(rec: Path, file: RecordFile) -> list[int]:
    """Where each record begins, in the order of their keys; by walking through the file where there is no index."""
    idx = rec.with_suffix(".idx")
    if not idx.exists():
        return file.scan()
    try:
        table = np.loadtxt(idx, dtype=np.int64, ndmin=2, comments=None) if idx.stat().st_size else np.empty((0, 2), int)
    except (OSError, ValueError, OverflowError) as error:
        raise FedVisageError(f"cannot read {idx}: {error}") from None
    if table.ndim != 2 or table.shape[1] != 2:
        raise FedVisageError(f"{idx} should hold a key and a place per line")
    if len(table) and not 0 <= table[:, 1].min() <= table[:, 1].max() < file.bytes:
        raise FedVisageError(f"{idx} names places beyond the end of {rec.name}: is one of them truncated?")
    order = np.argsort(table[:, 0], kind="stable")
    places: list[int] = table[order, 1].tolist()
    return places


def _labels(file: RecordFile, places: Indices) -> Indices:
    """The person of each record; only the headers are read."""
    labels = np.empty(len(places), np.int64)
    for number, place in enumerate(places.tolist()):
        content = file.read(place, 1024)
        label = unpack(content, f"{file.path}, image {number + 1}")[0][0]
        if not 0 <= label < 2**24 or label != int(label):
            raise FedVisageError(f"{file.path}, image {number + 1}: {label} is no number of a person")
        labels[number] = int(label)
    return labels


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
