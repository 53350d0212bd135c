"""Damaged and random bytes for every binary reader: each input must end in a result or in one of our errors.

Each batch runs in a process of its own, so that a crash, a hang or an error that is not ours is seen and counted.
`python -m benchmarks fuzzing --full` takes a million inputs.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from benchmarks.common import Row, Scale
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode, upright
from fedvisage.faces.faceset import FileImages
from fedvisage.faces.importing.bins import parse_bin
from fedvisage.faces.importing.recordio import frame, read_recordio
from fedvisage.faces.importing.tree import Archive
from fedvisage.faces.lists import PairList, open_list, write_lists
from fedvisage.faces.records import EncodedImages

INPUTS = {"smoke": 400, "normal": 20_000, "full": 1_000_000}
BATCH = 50_000
SLOWEST = 5.0
"""Seconds after which an input counts as a hang."""


def measure(scale: Scale) -> list[Row]:
    total, done, wrong = INPUTS[scale], 0, 0
    for seed, start in enumerate(range(0, total, BATCH)):
        count = min(BATCH, total - start)
        command = [sys.executable, "-m", "benchmarks.fuzzing", str(count), str(seed)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 + count)
        if run.returncode:
            wrong += 1
            print(f"fuzzing, batch {seed}: exit code {run.returncode}\n{run.stderr[-2000:]}", file=sys.stderr)
            continue
        result = json.loads(run.stdout.splitlines()[-1])
        done, wrong = done + result["inputs"], wrong + len(result["wrong"])
        for line in result["wrong"]:
            print(f"fuzzing, batch {seed}: {line}", file=sys.stderr)
    name = f"crashes, hangs and foreign errors in {done:,} fuzzed inputs"
    return [Row.of(name, wrong, done, "inputs", "none", "0", ratio=float(wrong))]


class Readers:
    """Each binary reader with a few good inputs to damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pixels = np.random.default_rng(1).integers(0, 256, (12, 14, 3), dtype=np.uint8)
        jpeg, png = encode(pixels), encode(pixels, "PNG")
        others = []
        for kind, mode in (("BMP", "RGB"), ("PPM", "L"), ("WEBP", "RGB"), ("JPEG", "CMYK"), ("PNG", "P")):
            out = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(out, kind)
            others.append(out.getvalue())
        header = struct.pack("<IfQQ", 0, 3.0, 1, 0)
        first = struct.pack("<IfQQ", 2, 0.0, 0, 0) + struct.pack("<2f", 3, 4)
        records = b"".join(map(frame, (first, header + jpeg, header + png, first)))
        columns = [np.frombuffer(data, np.uint8)[:, None] for data in (jpeg, png)]
        sets = (([jpeg, png], [True]), (columns, [np.True_]), ([bytearray(jpeg), png], np.array([True])))
        pickled = [pickle.dumps(one, protocol) for protocol in range(6) for one in sets]
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a/1.jpg", jpeg)
            packed.writestr("b/2.png", png * 4)
        np.save(folder / "images.npy", pixels[None])
        np.save(folder / "offsets.npy", np.array([0, len(jpeg), len(jpeg) + len(png)], "<u8"))
        (folder / "images.bin").write_bytes(jpeg + png)
        write_lists(folder, {"pairs": PairList(*np.arange(12).reshape(4, 3))})
        self.index = (folder / "offsets.npy").read_bytes()
        self.all: list[tuple[Callable[[bytes], object], list[bytes]]] = [
            (upright, [jpeg, png, *others]),
            (parse_bin, pickled),
            (self.recordio, [records]),
            (self.recordio_index, [b"0\t0\n1\t44\n2\t700\n"]),
            (self.archive, [archive.getvalue()]),
            (self.array, [(folder / "images.npy").read_bytes()]),
            (self.offsets, [self.index]),
            (self.records, [jpeg + png]),
            (self.listing, [(folder / "lists" / "pairs.npy").read_bytes()]),
        ]
        self.good = records

    def recordio(self, data: bytes) -> None:
        (self.folder / "train.idx").unlink(missing_ok=True)
        (self.folder / "train.rec").write_bytes(data)
        self._images()

    def recordio_index(self, data: bytes) -> None:
        (self.folder / "train.rec").write_bytes(self.good)
        (self.folder / "train.idx").write_bytes(data)
        self._images()

    def _images(self) -> None:
        source = read_recordio(self.folder)
        for number in range(min(4, len(source))):
            source.read(number)

    def archive(self, data: bytes) -> None:
        (self.folder / "a.zip").write_bytes(data)
        tree = Archive(self.folder / "a.zip")
        for path in tree.files:
            tree.read(path, 1_000_000)

    def array(self, data: bytes) -> None:
        (self.folder / "images.npy").write_bytes(data)
        FileImages(self.folder / "images.npy").read(np.array([0]))

    def offsets(self, data: bytes) -> None:
        (self.folder / "offsets.npy").write_bytes(data)
        EncodedImages(self.folder, (12, 14)).read(np.array([1, 0]))

    def records(self, data: bytes) -> None:
        (self.folder / "offsets.npy").write_bytes(self.index)
        (self.folder / "images.bin").write_bytes(data)
        EncodedImages(self.folder, (12, 14)).read(np.array([1, 0]))

    def listing(self, data: bytes) -> None:
        (self.folder / "lists" / "pairs.npy").write_bytes(data)
        open_list(self.folder, "pairs")


def damage(data: bytes, chance: random.Random) -> bytes:
    """The bytes with some changed, cut off, put in, swapped or replaced by noise."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(len(out) + 1)
        match chance.randrange(7):
            case 0:
                del out[place:]
            case 1 if place < len(out):
                out[place] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            case 2:
                out[place : place + 4] = struct.pack("<I", chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 65_536)))
            case 3:
                out[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                del out[place : place + chance.randrange(1, 9)]
            case 5:
                out[place:place] = out[chance.randrange(len(out) + 1) :][:64]
            case 6 if chance.random() < 0.1:
                out[:] = chance.randbytes(chance.randrange(200))
    return bytes(out)


def fuzz(count: int, seed: int) -> dict[str, object]:
    """Try that many inputs; what went wrong is described."""
    chance, wrong = random.Random(seed), []
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - libraries complain about damaged files there
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        readers = Readers(Path(name))
        for number in range(count):
            read, good = readers.all[number % len(readers.all)]
            data = damage(chance.choice(good), chance)
            begin = time.perf_counter()
            try:
                read(data)
            except FedVisageError:
                pass
            except BaseException as error:
                wrong.append(f"{read.__name__} of {data[:200]!r}: {type(error).__name__}: {error}")
            if time.perf_counter() - begin > SLOWEST:
                wrong.append(f"{read.__name__} of {data[:200]!r} took more than {SLOWEST} s")
    return {"inputs": count, "wrong": wrong[:20]}


if __name__ == "__main__":
    print(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
