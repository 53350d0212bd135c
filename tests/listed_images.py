"""Real lists of the field with drawn images at their paths: a tree that draws an image when it is asked for one."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
LISTS = DATA / "lists"
real = pytest.mark.skipif(not LISTS.is_dir(), reason=f"no real lists in {LISTS}")


@cache
def drawn(path: str, size: int = 16) -> bytes:
    """A JPEG that differs by its path."""
    colours = np.random.default_rng(crc32(path.encode())).integers(0, 256, (4, 4, 3))
    return encode(colours.repeat(size // 4, 0).repeat(size // 4, 1).astype(np.uint8))


class Drawn:
    """Texts, and images drawn at these paths."""

    def __init__(self, name: str, images: Iterable[str], texts: Mapping[str, bytes], size: int = 16) -> None:
        self.name, self.texts, self.size = name, texts, size
        self.files = sorted({*images, *texts})
        self._images = set(images)

    def read(self, path: str, most: int = 0) -> bytes:
        """A text, or an image."""
        if path in self.texts:
            return self.texts[path]
        if path not in self._images:
            raise FedVisageError(f"cannot read {path}: no such file")
        return drawn(path, self.size)


@cache
def ijba_texts() -> dict[str, bytes]:
    place = LISTS / "ijba"
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob("*.csv"))}


@cache
def ijbb_rows() -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader((LISTS / "ijbb" / "templates.csv").read_text().splitlines()))


def as_ijbb(rows: tuple[dict[str, str], ...]) -> dict[str, bytes]:
    """The meta files that insightface has of these templates: a frame's medium is its video."""
    faces, lists = {}, {"S1": "gallery_S1", "S2": "gallery_S2", "mixed": "probe_mixed"}
    subject = {row["TEMPLATE_ID"]: row["SUBJECT_ID"] for row in rows}
    for row in rows:
        medium = int(re.sub(r"\D", "", row["FILENAME"].split("_")[0]))
        faces[row["TEMPLATE_ID"], row["FILENAME"]] = f"{row['FILENAME']} {row['TEMPLATE_ID']} {medium}\n"
    texts = {"meta/ijbb_face_tid_mid.txt": "".join(faces.values()).encode()}
    first = {row["TEMPLATE_ID"] for row in rows if row["LIST"] != "mixed"}
    pairs = [f"{a} {b} {int(subject[a] == subject[b])}\n" for a in sorted(first) for b in sorted(set(subject) - first)]
    texts["meta/ijbb_template_pair_label.txt"] = "".join(pairs).encode()
    for name, file in lists.items():
        own = [f"{row['TEMPLATE_ID']},{row['SUBJECT_ID']},{row['FILENAME']}\n" for row in rows if row["LIST"] == name]
        texts[f"meta/ijbb_1N_{file}.csv"] = ("TEMPLATE_ID,SUBJECT_ID,FILENAME\n" + "".join(own)).encode()
    return texts
