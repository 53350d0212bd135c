"""Sets of face images with identities, and views of them.

Images live in memory or in an `.npy` file that is read row by row (never mapped: resident memory does not grow with
the set, and a truncated file is an error instead of a crash). A folder written by `fedvisage data synth` holds
`images.npy` (N, H, W, 3) uint8, `labels.npy` (N,) int64 and `faces.json` with the identities' names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError

Indices = NDArray[np.int64]
Pixels = NDArray[np.uint8]

FORMAT = 1


class ImageSource(Protocol):
    """Something that gives images by number."""

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
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


class FileImages:
    """Images in an `.npy` file, read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                version = npy.read_magic(file)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, fortran, dtype = read(file)
                self._offset = file.tell()
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read images from {path}: {error}") from None
        if len(shape) != 4 or min(shape) < 0 or shape[3] != 3 or fortran or dtype != np.uint8:
            raise FedVisageError(f"{path} holds {dtype} of shape {shape}; expected uint8 images (N, H, W, 3)")
        self._count, self._shape = shape[0], shape[1:]
        self._row = int(np.prod(self._shape))
        if path.stat().st_size < self._offset + self._count * self._row:
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
                raise FedVisageError(f"{self.path}: image {index} of {self._count:,} cannot be read")
        return out


@dataclass(frozen=True)
class FaceSet:
    """All images of a data set, with the identity of each."""

    images: ImageSource
    labels: Indices
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise FedVisageError(f"{len(self.images):,} images but {len(self.labels):,} labels")

    def __len__(self) -> int:
        return len(self.labels)


class Faces:
    """Some images of a set under labels of their own: 0 to classes - 1 in the order of the set's identities.

    `like` takes the labels of another view, for further images of the same people. With `labelled=False` there are no
    labels to train on, and no way to reach them from here.
    """

    def __init__(
        self, whole: FaceSet, indices: Sequence[int] | Indices, labelled: bool = True, like: Faces | None = None
    ) -> None:
        self._images, self._names = whole.images, whole.names
        self._indices = np.asarray(indices, dtype=np.int64)
        self._identities = whole.labels[self._indices] if labelled else None
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
        if not np.isin(self._identities, self.people).all():
            raise FedVisageError("these images show people that the other view does not have")
        return np.searchsorted(self.people, self._identities).astype(np.int64)

    @property
    def classes(self) -> int:
        """Number of classes, 0 without labels."""
        return len(self.people)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each class's person, nobody without labels."""
        return tuple(self._names[person] for person in self.people)

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        return self._images.read(self._indices[indices])

    def all(self) -> Pixels:
        """Every image (N, H, W, 3)."""
        return self._images.read(self._indices)


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
        np.save(folder / "labels.npy", faces.labels)
        (folder / "faces.json").write_text(json.dumps({"format": FORMAT, "names": faces.names}, indent=1) + "\n")
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
        labels = np.load(folder / "labels.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedVisageError(f"cannot read the faces in {folder}: {error}") from None
    if version != FORMAT:
        raise FedVisageError(f"{folder} has format {version}; this version reads format {FORMAT}")
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or (len(labels) and not 0 <= labels.min() <= labels.max() < len(names))
    ):
        raise FedVisageError(f"{folder / 'labels.npy'} does not hold one identity number per image")
    return FaceSet(FileImages(folder / "images.npy"), labels.astype(np.int64), names)
