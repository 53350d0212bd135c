"""From a source to a face set: every image is decoded once, in threads, and what is wrong with it goes in the report.

JPEG and PNG images that are of the wanted size and upright are kept as the bytes they came in; others are brought to it
and encoded anew (JPEG of quality 95, full colour; PNG where nothing had to be changed), or all are stored as pixels.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode, fit, may_be_turned, upright
from fedvisage.faces.faceset import DIGESTS, ArrayImages, FaceSet, open_faceset, write_description
from fedvisage.faces.importing.folds import Flags
from fedvisage.faces.importing.source import Source, Tally
from fedvisage.faces.lists import write_lists
from fedvisage.faces.records import BUFFER, Indices, Pixels, RecordWriter, cores
from fedvisage.faces.template import align

REPORT = "import.json"
_CHUNK = 512
_EACH = 32
"""Images prepared together, and by one thread in one go."""
_KEPT = frozenset({b"\xff\xd8", b"\x89P"})
"""How the formats begin that are stored as they are."""


@dataclass(frozen=True)
class Selection:
    """Who is imported, and how."""

    size: int | None = None
    """Width and height; by default as they are, if all are of one size."""
    store: Literal["records", "array"] = "records"
    min_images: int = 1
    max_images: int | None = None
    exclude: frozenset[str] = frozenset()
    threads: int = 0
    allow_missing: int = 0
    """Rows of a list that may be without their images, where that is more than one in a hundred."""


@dataclass
class Report:
    """What became of every image."""

    source: str
    format: str
    images: int = 0
    identities: int = 0
    found: int = 0
    """Images in the source."""
    size: tuple[int, int] = (0, 0)
    """Width and height."""
    unreadable: list[dict[str, str]] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    excluded: int = 0
    """Images of people on the exclusion list."""
    too_few: dict[str, int] = field(default_factory=dict)
    """People left out because they have fewer images than asked for, and how many they have."""
    beyond_cap: int = 0
    lists: dict[str, int] = field(default_factory=dict)
    """Rows of each list."""
    summary: dict[str, str] = field(default_factory=dict)
    """What was found of each list, and how that compares with what is published."""
    notes: list[str] = field(default_factory=list)
    """What every score on the set is told with."""
    remarks: list[str] = field(default_factory=list)
    """What was seen and is not part of the set."""

    def table(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))

    def lines(self) -> Iterator[str]:
        """What was left out, and why, for people."""
        yield f"{self.found:,} images found ({self.format})"
        for what, entries in (("unreadable", self.unreadable), ("duplicates", self.duplicates)):
            if entries:
                first = ", ".join(str(entry["image"]) for entry in entries[:3])
                yield f"{what}, left out: {len(entries):,} ({first}{', ...' if len(entries) > 3 else ''})"
        others = sum("of_person" in entry for entry in self.duplicates)
        if others:
            yield f"of the duplicates, {others:,} were under another name"
        if self.excluded:
            yield f"images of excluded people: {self.excluded:,}"
        if self.too_few:
            yield f"people with too few images, left out: {len(self.too_few):,}"
        if self.beyond_cap:
            yield f"images beyond the cap: {self.beyond_cap:,}"
        yield from self.summary.values()
        yield from (f"list {name}: {rows:,} rows" for name, rows in self.lists.items() if name not in self.summary)
        yield from self.notes
        yield from self.remarks


class _Made(NamedTuple):
    """One image, ready to be stored, or what is wrong with it."""

    data: bytes
    digest: int
    size: tuple[int, int]
    fault: str = ""


def write_source(
    source: Source, out: Path, report: Report, chosen: Selection, progress: Callable[[int], None] = lambda _: None
) -> Report:
    """Import a source into the folder `out`; where that fails, no new folder stays behind."""
    if not len(source):
        raise FedVisageError(f"there are no images in {report.source}")
    check_lists(source, report.source, chosen.allow_missing)
    before = out.exists()
    try:
        return _write(source, out, report, chosen, progress)
    except BaseException as error:
        if not before:
            shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, OSError):
            raise FedVisageError(f"cannot write faces to {out}: {error.strerror or error}") from error
        raise


def check_lists(source: Source, name: str, allowed: int = 0, there: Flags | None = None) -> dict[str, Tally]:
    """What there is of each list, given which images can be read; refused where too much is missing."""
    whole = np.ones(len(source), np.bool_)
    tallies = source.tally(whole if there is None else there) if source.tally is not None else {}
    for tally in tallies.values():
        tally.check(name, allowed)
    return tallies


def _write(source: Source, out: Path, report: Report, chosen: Selection, progress: Callable[[int], None]) -> Report:
    run = _Import(source, out, report, chosen)
    kept, numbers = run.write(progress)
    tallies = check_lists(source, report.source, chosen.allow_missing, run.there)
    report.summary = {name: tally.line for name, tally in tallies.items()}
    if source.boxes is None:
        np.save(out / DIGESTS, run.digests[kept])
    if source.lists is not None:
        lists = source.lists(numbers)
        report.lists = {name: len(rows) for name, rows in lists.items()}
        write_lists(out, lists)
    report.notes += source.notes
    report.remarks += source.remarks
    report.images, report.identities = len(kept), len(np.unique(source.labels[kept]))
    write_atomically(out / REPORT, [(json.dumps(report.table(), indent=1) + "\n").encode()])
    _describe(source, out, report, kept, chosen)
    return report


class _Import:
    """The pass over all images."""

    def __init__(self, source: Source, out: Path, report: Report, chosen: Selection) -> None:
        self.source, self.out, self.report, self.chosen = source, out, report, chosen
        self._seen = _Seen()
        self._count = np.zeros(len(source.names), np.int64)
        self._size: tuple[int, int] | None = None
        self.digests = np.zeros(len(source), np.uint64)
        """Of the images that were kept, as they came."""
        self.there = np.ones(len(source), np.bool_)
        """Images that can be read, or that nobody wanted to."""

    def write(self, progress: Callable[[int], None]) -> tuple[Indices, Indices]:
        """The source's numbers of the images that are in the set, and the set's number of each image of the source."""
        source, report, chosen = self.source, self.report, self.chosen
        report.found = len(source)
        candidates = self._candidates()
        numbers = np.full(len(source), -1, dtype=np.int64)
        kept: list[int] = []
        self.out.mkdir(parents=True, exist_ok=True)
        sink = RecordWriter(self.out) if chosen.store == "records" else _ArrayWriter(self.out)
        try:
            for index, made in self._prepared(candidates, progress):
                place = self._decide(index, made, numbers)
                if place is None:
                    numbers[index] = len(kept)
                    self.digests[index] = made.digest
                    kept.append(index)
                    sink.add(made.data)
        finally:
            sink.close()
        report.size = self._size or (0, 0)
        final, numbers = self._without_the_few(np.array(kept, dtype=np.int64), numbers)
        if not len(final):
            raise FedVisageError(f"no image of {report.source} can be used: {_why(report)}")
        if len(final) < len(kept):
            _shrink(self.out, np.flatnonzero(np.isin(kept, final)), chosen.store, report.size)
        return final, numbers

    def _candidates(self) -> Indices:
        """The images worth reading: of people who are wanted and have enough."""
        source, report, chosen = self.source, self.report, self.chosen
        wanted = np.array([name not in chosen.exclude for name in source.names], dtype=bool)
        report.excluded = int((~wanted[source.labels]).sum())
        counts = np.bincount(source.labels, minlength=len(source.names))
        few = wanted & (counts < chosen.min_images) & (counts > 0)
        report.too_few = {source.names[person]: int(counts[person]) for person in np.flatnonzero(few)}
        return np.flatnonzero((wanted & ~few)[source.labels])

    def _prepared(self, candidates: Indices, progress: Callable[[int], None]) -> Iterator[tuple[int, _Made]]:
        """Every image in order, made ready by threads a chunk ahead."""
        threads = self.chosen.threads or cores()
        with ThreadPoolExecutor(threads, "importing") as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            waiting: list[tuple[Indices, Any]] = []
            for start in range(0, len(candidates) + _CHUNK, _CHUNK):
                chunk = candidates[start : start + _CHUNK]
                parts = [chunk[at : at + _EACH] for at in range(0, len(chunk), _EACH)]
                waiting.append((chunk, pool.map(self._make_all, parts)))
                if len(waiting) > 1 or not len(chunk):
                    done, results = waiting.pop(0)
                    yield from zip(done.tolist(), (made for part in results for made in part), strict=True)
                    progress(len(done))

    def _make_all(self, indices: Indices) -> list[_Made]:
        return [self._make(index) for index in indices.tolist()]

    def _make(self, index: int) -> _Made:
        """Read, decode, and bring to size."""
        source, size = self.source, self.chosen.size
        try:
            data = source.read(index)
            pixels = upright(data)
            before = pixels
            if source.boxes is not None:
                pixels = _cropped(pixels, source.boxes[index])
            if source.aligns and source.landmarks is not None:
                pixels = align(pixels, source.landmarks[index], size or 112)
            elif size:
                pixels = fit(pixels, size)
            digest = int.from_bytes(sha256(data).digest()[:8], "little")
            shape = (pixels.shape[1], pixels.shape[0])
            if self.chosen.store == "array":
                return _Made(pixels.tobytes(), digest, shape)
            if pixels is not before or may_be_turned(data):
                return _Made(encode(pixels), digest, shape)
            return _Made(data if data[:2] in _KEPT else encode(pixels, "PNG"), digest, shape)
        except FedVisageError as error:
            return _Made(b"", 0, (0, 0), str(error))

    def _decide(self, index: int, made: _Made, numbers: Indices) -> str | None:
        """None where the image is to be kept; otherwise it is reported."""
        source, report = self.source, self.report
        if made.fault:
            self.there[index] = False
            report.unreadable.append({"image": source.called(index), "why": made.fault})
            return "unreadable"
        if self._size is None:
            self._size = made.size
        if made.size != self._size:
            (width, height), (w, h) = made.size, self._size
            raise FedVisageError(
                f"{source.called(index)} is {width}x{height}, but the images before are {w}x{h}: "
                "bring all to one size with --size"
            )
        person = int(source.labels[index])
        if self.chosen.max_images is not None and self._count[person] >= self.chosen.max_images:
            report.beyond_cap += 1
            return "beyond the cap"
        first = None if source.keeps_duplicates else self._seen.first(made.digest, index)
        if first is not None:
            numbers[index] = numbers[first]
            entry: dict[str, Any] = {"image": source.called(index), "of": source.called(first)}
            other = int(source.labels[first])
            report.duplicates.append(entry | ({"of_person": source.names[other]} if other != person else {}))
            return "duplicate"
        self._count[person] += 1
        return None

    def _without_the_few(self, kept: Indices, numbers: Indices) -> tuple[Indices, Indices]:
        """Leave out people who have too few images once the unusable ones are gone."""
        source = self.source
        few = (self._count < self.chosen.min_images) & (self._count > 0)
        self.report.too_few |= {source.names[person]: int(self._count[person]) for person in np.flatnonzero(few)}
        stays = ~few[source.labels[kept]] if len(kept) else np.zeros(0, bool)
        renumbered = np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)
        return kept[stays], renumbered[numbers]


class _Seen:
    """Content met before, as eight bytes each: recent ones in a table, older ones in a sorted array."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._old = np.empty(0, np.uint64)
        self._owner = np.empty(0, np.int64)

    def first(self, digest: int, index: int) -> int | None:
        """The image that had this content first; None where this one is."""
        if digest in self._recent:
            return self._recent[digest]
        place = int(np.searchsorted(self._old, np.uint64(digest))) if len(self._old) else 0
        if place < len(self._old) and int(self._old[place]) == digest:
            return int(self._owner[place])
        self._recent[digest] = index
        if len(self._recent) >= 500_000:
            digests = np.concatenate([self._old, np.fromiter(self._recent.keys(), np.uint64)])
            owners = np.concatenate([self._owner, np.fromiter(self._recent.values(), np.int64)])
            order = np.argsort(digests)
            self._old, self._owner, self._recent = digests[order], owners[order], {}
        return None


class _ArrayWriter:
    """Pixels one image after another; the header is written when the number of images is known."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "pixels.part").open("wb", BUFFER)

    def add(self, data: bytes) -> None:
        """One more image."""
        self._file.write(data)

    def close(self) -> None:
        """No more images."""
        self._file.close()


def _cropped(pixels: Pixels, box: np.ndarray[Any, np.dtype[np.float32]]) -> Pixels:
    """The square around a face, as far as the photo has it."""
    if not np.isfinite(box).all() or box[2] <= 0 or box[3] <= 0:
        raise FedVisageError("the box of the face is none")
    height, width = pixels.shape[:2]
    side = int(min(max(box[2], box[3]), height, width))
    left = int(np.clip(box[0] + (box[2] - side) / 2, 0, width - side))
    top = int(np.clip(box[1] + (box[3] - side) / 2, 0, height - side))
    if side < 1:
        raise FedVisageError("the box of the face is empty")
    return pixels[top : top + side, left : left + side]


def _shrink(out: Path, places: Indices, store: str, size: tuple[int, int]) -> None:
    """Drop all but the images at these places."""
    if store == "records":
        offsets = np.load(out / "offsets.npy")
        data = (out / "images.bin").open("rb")
        (out / "images.bin").unlink()
        writer = RecordWriter(out)
        with data:
            for place in places.tolist():
                data.seek(int(offsets[place]))
                writer.add(data.read(int(offsets[place + 1] - offsets[place])))
        writer.close()
        return
    row = size[0] * size[1] * 3
    with (out / "pixels.part").open("rb") as data, (out / "pixels.less").open("wb") as less:
        for place in places.tolist():
            data.seek(place * row)
            less.write(data.read(row))
    (out / "pixels.less").replace(out / "pixels.part")


def _describe(source: Source, out: Path, report: Report, kept: Indices, chosen: Selection) -> None:
    """Write what the folder holds; with this it is a face set."""
    people, labels = np.unique(source.labels[kept], return_inverse=True)
    height, width = report.size[1], report.size[0]
    images = ArrayImages(np.broadcast_to(np.uint8(0), (len(kept), 1, 1, 3)))
    faces = FaceSet(
        images,
        labels.astype(np.int64),
        tuple(source.names[person] for person in people),
        source.domain[kept] if source.domain is not None else None,
        source.domains,
        source.score[kept] if source.score is not None else None,
        source.landmarks[kept] if source.landmarks is not None and not source.aligns and not chosen.size else None,
    )
    if chosen.store == "array":
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(kept), height, width, 3)}
        with (out / "images.npy").open("wb") as file, (out / "pixels.part").open("rb") as pixels:
            np.lib.format.write_array_header_1_0(file, header)
            while block := pixels.read(1 << 24):
                file.write(block)
        (out / "pixels.part").unlink()
    write_description(out, faces, None if chosen.store == "array" else (height, width))
    open_faceset(out)


def _why(report: Report) -> str:
    if report.unreadable:
        return (
            f"{len(report.unreadable):,} cannot be read, the first ({report.unreadable[0]['image']}): "
            + (report.unreadable[0]["why"])
        )
    return f"{report.excluded:,} are of excluded people, {len(report.too_few):,} people have too few"
