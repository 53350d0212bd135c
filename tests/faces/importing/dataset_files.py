"""Small data sets on disk for the readers' tests."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import FaceSet, open_faceset
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.faces.importing.recordio import frame

MUTATIONS = 50 * int(os.environ.get("FEDVISAGE_CASES", "1"))
"""Damaged copies of each real list; FEDVISAGE_CASES=20 makes a thousand."""


def image(number: int, size: int = 24) -> bytes:
    """A JPEG that differs by its number: one colour."""
    colour = (number * 37 % 251, number * 91 % 241, number // 250 * 40 % 250)
    return encode(np.broadcast_to(np.array(colour, np.uint8), (size, size, 3)).copy())


def colour_of(number: int) -> tuple[int, ...]:
    return (number * 37 % 251, number * 91 % 241, number // 250 * 40 % 250)


def put(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def bring_in(
    source: Path, out: Path, kind: str | None = None, pairs: Path | None = None, **options: Any
) -> tuple[FaceSet, Report]:
    domains = options.pop("domains", {})
    name, found = read_source(source, kind, pairs, domains)
    report = write_source(found, out, Report(str(source), name), Selection(**options))
    return open_faceset(out), report


def shows(faces: FaceSet, index: int, number: int) -> bool:
    """Whether an image of the set is the one made with this number."""
    pixels = faces.images.read(np.array([index]))[0].astype(int)
    return bool(np.abs(pixels - np.array(colour_of(number))).max() <= 3)


def damage(data: bytes, chance: random.Random) -> bytes:
    """The file cut off, with other bytes, or with line ends as a careless copy has them."""
    place = chance.randrange(len(data))
    match chance.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
        case 2:
            return data[:place] + data[place + chance.randrange(1, 9) :]
        case 3:
            return data.replace(b"\n", b"\r\n") if chance.random() < 0.5 else b"\xef\xbb\xbf" + data
        case _:
            return data[:place] + chance.randbytes(chance.randrange(1, 9)) + data[place:]


def record(labels: tuple[float, ...], key: int, data: bytes) -> bytes:
    """As MXNet packs it: one label stands in the header, several behind it."""
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], key, 0) + data
    return struct.pack("<IfQQ", len(labels), 0.0, key, 0) + struct.pack(f"<{len(labels)}f", *labels) + data


def put_records(folder: Path, records: dict[int, bytes], index: bool = True) -> Path:
    """Records in this order in the file."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, lines = b"", ""
    for key, content in records.items():
        lines += f"{key}\t{len(whole)}\n"
        whole += frame(content)
    (folder / "train.rec").write_bytes(whole)
    if index:
        (folder / "train.idx").write_text(lines)
    return folder
