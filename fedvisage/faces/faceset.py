"""Sets of face images with identities, and views of them.

Images live in memory, in an `.npy` file that is read row by row (never mapped: resident memory does not grow with the
set, and a truncated file is an error instead of a crash), or as encoded records (see `records`). A folder written by
`fedvisage data` holds `images.npy` (N, H, W, 3) uint8 or `images.bin` with `offsets.npy`, `labels.npy` (N,), a file for
each of the `COLUMNS` there are, and `faces.json` with the names of people and domains.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.npy import load_array, read_header
from fedvisage.faces.records import EncodedImages, without_folder
from fedvisage.faces.records import Indices as Indices
from fedvisage.faces.records import Pixels as Pixels

FORMAT = 1
SAMPLED = 32
DIGESTS = "digests.npy"


class ImageSource(Protocol):
    """Something that gives images by number.

    It may have an attribute `bare`: the same images by the same numbers, with no way from there to whom they show.
    """

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        ...


class Features(Protocol):
    """What the frozen stages of a network make of images, by number; `digest` names the network."""

    digest: str

    def read(self, images: Indices, mirrored: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Features (n, C, h, w), of the mirror images where it is said so."""
        ...


class ArrayImages:
    """Images in memory."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        return self.pixels[indices]

    @property
    def bare(self) -> ArrayImages:
        """Nothing but the pixels."""
        return ArrayImages(self.pixels)


class CopiedImages:
    """Some images of a source by its numbers, read once into memory: pixels, and nothing of the source."""

    def __init__(self, source: ImageSource, indices: Indices) -> None:
        self._count, self._numbers = len(source), np.unique(indices)
        self._pixels = source.read(self._numbers)

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        if not np.isin(indices, self._numbers).all():
            raise FedVisageError(
                f"only {len(self._numbers):,} of {self._count:,} images are at hand, and not all of these"
            )
        return self._pixels[np.searchsorted(self._numbers, indices)]


def bare_images(images: ImageSource, indices: Indices) -> ImageSource:
    """A source of these images that knows nothing but pixels; read into memory where the source has no such view."""
    bare: ImageSource | None = getattr(images, "bare", None)
    return CopiedImages(images, indices) if bare is None else bare


class FileImages:
    """Images in an `.npy` file, read when asked for."""

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        try:
            shape, fortran, dtype, self._offset, present = read_header(path)
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read images from {path}: {error}") from None
        if len(shape) != 4 or shape[3] != 3 or fortran or dtype != np.uint8:
            raise FedVisageError(f"{path} holds {dtype} of shape {shape}; expected uint8 images (N, H, W, 3)")
        self._count, self._shape = shape[0], shape[1:]
        self._row = math.prod(self._shape)
        if present < self._count * self._row:
            raise FedVisageError(f"{path} is truncated: it should hold {self._count:,} images")
        self._file = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        out = np.empty((len(indices), *self._shape), dtype=np.uint8)
        row: Any
        for row, index in zip(out, indices, strict=True):
            inside = 0 <= index < self._count
            if not inside or os.preadv(self._file, [row], self._offset + int(index) * self._row) != self._row:
                raise FedVisageError(f"{self._where}: image {index} of {self._count:,} cannot be read")
        return out

    @cached_property
    def bare(self) -> FileImages:
        """The same file without its folder, where the labels lie."""
        twin = copy(self)
        twin._file, twin._where = os.dup(self._file), without_folder(self._where)
        return twin


Scores = NDArray[np.float32]


@dataclass(frozen=True)
class FaceSet:
    """All images of a data set, with the identity of each, and more where the data set gives more."""

    images: ImageSource
    labels: Indices
    names: tuple[str, ...]
    domain: Indices | None = None
    """Which of `domains` each image is from (N,)."""
    domains: tuple[str, ...] = ()
    score: Scores | None = None
    """How sure the face detector was of each image (N,)."""
    landmarks: Scores | None = None
    """Eyes, nose and corners of the mouth, image left to right, as x and y in pixels (N, 5, 2)."""
    folders: tuple[tuple[Path, int], ...] = ()
    """The folders it was opened from, each with the number of its first image: where its lists are."""
    features: Features | None = None
    """Where a network's frozen stages need not run again (see `training.features`)."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise FedVisageError(f"{len(self.images):,} images but {len(self.labels):,} labels")
        for name, shape in COLUMNS.items():
            column = getattr(self, name)
            if column is not None and column.shape != (len(self.labels), *shape):
                raise FedVisageError(f"the {name} of {len(self.labels):,} images cannot have shape {column.shape}")
        if self.domain is not None and not _numbers_into(self.domain, self.domains):
            raise FedVisageError("the domains of the images are not all named")

    def __len__(self) -> int:
        return len(self.labels)

    def domain_of_people(self) -> Indices:
        """The domain that most images of each person are from (people,); 0 where there are no domains."""
        counts = np.zeros((len(self.names), max(1, len(self.domains))), np.int64)
        domain = self.domain if self.domain is not None else np.zeros_like(self.labels)
        np.add.at(counts.reshape(-1), self.labels * counts.shape[1] + domain, 1)
        return np.asarray(counts.argmax(axis=1), dtype=np.int64)


def sampled_digest(faces: FaceSet) -> str:
    """SHA-256 over the identities, their names, and some of the images: enough to tell sets of one size apart."""
    digest = hashlib.sha256(faces.labels.astype("<i8").tobytes() + repr(faces.names).encode())
    for image in np.unique(np.linspace(0, max(0, len(faces) - 1), SAMPLED).astype(np.int64))[: len(faces)]:
        digest.update(faces.images.read(np.array([image])).tobytes())
    return digest.hexdigest()


COLUMNS: dict[str, tuple[int, ...]] = {"domain": (), "score": (), "landmarks": (5, 2)}
"""What there may be per image besides its identity, each in a file of its name, and the shape of one entry."""


def _numbers_into(column: NDArray[Any], names: tuple[str, ...]) -> bool:
    integers = column.ndim == 1 and column.dtype.kind in "iu"
    return integers and (not len(column) or bool(0 <= column.min() <= column.max() < len(names)))


class Faces:
    """Some images of a set under labels of their own: 0 to classes - 1 in the order of the set's identities.

    `like` takes the labels of another view, for further images of the same people. With `labelled=False` there are no
    labels to train on, and no way to reach them from here.
    """

    def __init__(
        self, whole: FaceSet, indices: Sequence[int] | Indices, labelled: bool = True, like: Faces | None = None
    ) -> None:
        self._images = whole.images
        self._indices = np.asarray(indices, dtype=np.int64)
        self.features = _SomeFeatures(whole.features, self._indices) if whole.features is not None else None
        self._identities = whole.labels[self._indices] if labelled else None
        self._names = whole.names if labelled else ()
        self._like = like

    @cached_property
    def people(self) -> Indices:
        """The set's numbers of the people shown, in order; nobody without labels."""
        if self._like is not None:
            return self._like.people
        return np.unique(self._identities) if self._identities is not None else np.empty(0, np.int64)

    @cached_property
    def labels(self) -> Indices | None:
        """Class of each image (N,), or None."""
        if self._identities is None:
            return None
        if self._like is not None and not np.isin(self._identities, self.people).all():
            raise FedVisageError("these images show people that the other view does not have")
        return np.searchsorted(self.people, self._identities).astype(np.int64)

    @property
    def classes(self) -> int:
        """Number of classes, 0 without labels."""
        return len(self.people)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each class's person; none without labels."""
        return tuple(self._names[person] for person in self.people)

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        return self._images.read(self._indices[indices])

    def all(self) -> Pixels:
        """Every image (N, H, W, 3)."""
        return self._images.read(self._indices)


class _SomeFeatures:
    """Features of some images, by their number in the view."""

    def __init__(self, whole: Features, indices: Indices) -> None:
        self._whole, self._indices, self.digest = whole, indices, whole.digest

    def read(self, images: Indices, mirrored: NDArray[np.bool_]) -> NDArray[np.float32]:
        return self._whole.read(self._indices[images], mirrored)


def write_faceset(folder: Path, faces: FaceSet, block: int = 64) -> None:
    """Write a face set as a folder that `open_faceset` reads; needs memory for one block of images only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shape = faces.images.read(np.arange(min(1, len(faces)))).shape[1:]
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(faces), *shape)}
        with (folder / "images.npy").open("wb") as file:
            npy.write_array_header_1_0(file, header)
            for start in range(0, len(faces), block):
                file.write(faces.images.read(np.arange(start, min(start + block, len(faces)))).tobytes())
    except OSError as error:
        raise FedVisageError(f"cannot write faces to {folder}: {error.strerror or error}") from error
    write_description(folder, faces)


def write_description(folder: Path, faces: FaceSet, encoded: tuple[int, int] | None = None) -> None:
    """Write what a face set's folder holds besides the images; last, so that a folder half written is none."""
    table: dict[str, Any] = {"format": FORMAT, "names": faces.names}
    if faces.domain is not None:
        table["domains"] = faces.domains
    if encoded:
        table["encoded"] = {"height": encoded[0], "width": encoded[1]}
    columns = {name: getattr(faces, name) for name in COLUMNS if getattr(faces, name) is not None}
    try:
        np.save(folder / "labels.npy", _narrow(faces.labels, len(faces.names)))
        for name, column in columns.items():
            np.save(folder / f"{name}.npy", _narrow(column, len(faces.domains)) if name == "domain" else column)
        text = json.dumps(table | {"columns": list(columns)}, indent=1) + "\n"
        (folder / "faces.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedVisageError(f"cannot write faces to {folder}: {error.strerror or error}") from error


def open_faceset(folder: Path) -> FaceSet:
    """The face set in a folder."""
    description = folder / "faces.json"
    if not description.is_file():
        raise FedVisageError(
            f"no faces in {folder}: {'faces.json is missing' if folder.is_dir() else 'no such folder'}"
        )
    try:
        table = json.loads(description.read_text("utf-8"))
        names, version = tuple(str(name) for name in table["names"]), table["format"]
        domains, encoded = tuple(map(str, table.get("domains", ()))), table.get("encoded")
        size = (int(encoded["height"]), int(encoded["width"])) if encoded else None
        present = [name for name in COLUMNS if name in table.get("columns", ())]
        labels = load_array(folder / "labels.npy")
        columns: dict[str, Any] = {name: load_array(folder / f"{name}.npy") for name in present}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedVisageError(f"cannot read the faces in {folder}: {error}") from None
    if version != FORMAT:
        raise FedVisageError(f"{folder} has format {version}; this version reads format {FORMAT}")
    if not _numbers_into(labels, names):
        raise FedVisageError(f"{folder / 'labels.npy'} does not hold one identity number per image")
    for name, column in columns.items():
        if column.dtype.kind not in ("iu" if name == "domain" else "f"):
            raise FedVisageError(f"{folder / name}.npy holds {column.dtype}, no {name} of images")
        columns[name] = column.astype(np.int64 if name == "domain" else np.float32)
    images = EncodedImages(folder, size) if size else FileImages(folder / "images.npy")
    return FaceSet(images, labels.astype(np.int64), names, domains=domains, folders=((folder, 0),), **columns)


def read_digests(folder: Path, count: int) -> NDArray[np.uint64] | None:
    """What names each image of a folder by its content (N,), where its import wrote that."""
    path = folder / DIGESTS
    if not path.exists():
        return None
    try:
        found: NDArray[np.uint64] = load_array(path)
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    if found.dtype != np.uint64 or found.shape != (count,):
        raise FedVisageError(f"{path} does not name {count:,} images: import them again")
    return found


def _narrow(column: Indices, count: int) -> NDArray[Any]:
    """The numbers as the smallest type that holds them: millions of images, one label each."""
    return column.astype(np.min_scalar_type(max(0, count - 1)))
