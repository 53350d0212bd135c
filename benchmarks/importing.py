"""Bringing faces in: import against bare decoding of the same files, and the cost of opening millions of records."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from simplejpeg import decode_jpeg

from benchmarks.common import Row, Scale, seconds, side_by_side
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_description
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.faces.records import cores
from fedvisage.faces.synthetic import SyntheticFaces

LIMIT_BYTES = 100
"""Memory that a record may take when a set is opened."""

OPEN = """
import resource, sys, time
from pathlib import Path
from fedvisage.faces.faceset import open_faceset
import numpy as np
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, begin = resident(), time.perf_counter()
faces = open_faceset(Path(sys.argv[1]))
took, after = time.perf_counter() - begin, resident()
print(took, (after - before) / len(faces))
"""


def measure(scale: Scale) -> list[Row]:
    people = {"smoke": 10, "normal": 300, "full": 1000}[scale]
    records = {"smoke": 10_000, "normal": 5_000_000, "full": 5_000_000}[scale]
    with TemporaryDirectory() as name:
        rows = [_import(Path(name), people, 2 if scale == "smoke" else 5)]
    with TemporaryDirectory() as name:
        rows += _open(Path(name), records)
    return rows


def _import(folder: Path, people: int, times: int) -> Row:
    """The same JPEG files of 112 pixels, twenty a person, with the same threads; both read them from disk."""
    source = SyntheticFaces(1, people, 20, 112)
    for start in range(0, len(source), 500):
        for index, pixels in enumerate(source.read(np.arange(start, min(start + 500, len(source)))), start):
            path = folder / "in" / f"p{index // 20:04d}" / f"{index % 20:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels))
    paths = [str(path) for path in sorted((folder / "in").rglob("*.jpg"))]
    threads = cores()

    def ours() -> float:
        shutil.rmtree(folder / "out", ignore_errors=True)

        def work() -> None:
            kind, found = read_source(folder / "in", None, None, {})
            write_source(found, folder / "out", Report("in", kind), Selection(threads=threads))

        return seconds(work)

    def decode_all(chunk: list[str]) -> None:
        for path in chunk:
            with open(path, "rb", buffering=0) as file:
                decode_jpeg(file.read())

    def bare() -> float:
        chunks = [paths[at : at + 32] for at in range(0, len(paths), 32)]
        with ThreadPoolExecutor(threads) as pool:
            return seconds(lambda: list(pool.map(decode_all, chunks)))

    ours_s, bare_s, ratio = side_by_side(ours, bare, times)
    each = 1e6 / len(paths)
    peer = f"reading and decoding them with simplejpeg, {threads} threads"
    return Row.of(
        f"import of {len(paths):,} JPEG files", ours_s * each, bare_s * each, "us each", peer, "<= 1.3", ratio
    )


def _open(folder: Path, count: int) -> list[Row]:
    """A set of that many records whose images are not there but for their place."""
    size, people = 4_000, max(1, count // 60)
    np.save(folder / "offsets.npy", np.arange(count + 1, dtype="<u8") * size)
    with (folder / "images.bin").open("wb") as file:
        file.truncate(count * size)
    labels = np.arange(count, dtype=np.int64) // 60 % people
    images = ArrayImages(np.broadcast_to(np.uint8(0), (count, 1, 1, 3)))
    names = tuple(f"{number:07d}" for number in range(people))
    write_description(folder, FaceSet(images, labels, names), (112, 112))
    command = [sys.executable, "-c", OPEN, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took, each = map(float, done.stdout.split())
    copy = seconds(lambda: [(folder / name).read_bytes() for name in ("offsets.npy", "labels.npy", "faces.json")])
    return [
        Row.of(f"opening {count:,} records", took, copy, "s", "reading the index files", "seconds"),
        Row.of(f"memory per record, {count:,} opened", each, LIMIT_BYTES, "bytes", "100 bytes", "< 1"),
    ]
