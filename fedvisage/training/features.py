"""What the frozen stages of a network make of images, computed once per image and once per mirror image.

With `backbone.train_from` in a recipe the stages before it never change, so a party runs them once and trains on what
they gave. The file holds a row per image and one per mirror image, 32-bit floats that are read when asked for and never
held; its name carries the digests of the frozen weights and of the face set, some of its pixels included. Frozen stages
see a fixed number of images at a time in either case (see `models.backbone`), so training from the file gives the same
bits as training from the images, at the same number of threads.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Images
from fedvisage.faces.faceset import FaceSet, Features, Indices, sampled_digest
from fedvisage.models import Backbone
from fedvisage.models.backbone import CHUNK

Floats = NDArray[np.float32]

BLOCK = 4 * CHUNK


class FeatureFile:
    """Features (C, h, w) of some images of a face set and of their mirror images.

    One file, so that it is replaced as a whole: a line of JSON, the numbers of the images, and the features.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest
        try:
            self._file = os.open(path, os.O_RDONLY)
            with os.fdopen(os.dup(self._file), "rb") as file:
                about = json.loads(file.readline(1000))
                self.images = np.frombuffer(file.read(8 * int(about["images"])), "<i8")
                self._start = file.tell()
            self._order = np.argsort(self.images)
            self._shape: tuple[int, ...] = tuple(about["shape"])
            self._row = 4 * math.prod(self._shape)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedVisageError(
                f"cannot read the features {path}: {error}; remove it, and it is computed again"
            ) from None
        size = self._start + 2 * len(self.images) * self._row
        if len(self.images) != about["images"] or os.fstat(self._file).st_size != size:
            raise FedVisageError(f"{path} is truncated: remove it, and it is computed again")

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __contains__(self, images: Indices) -> bool:
        return bool(np.isin(images, self.images).all())

    def read(self, images: Indices, mirrored: NDArray[np.bool_]) -> Floats:
        """Features (n, C, h, w) of images of the set, by number, mirrored where it is said so."""
        places = np.searchsorted(self.images, images, sorter=self._order)
        rows = self._order[np.minimum(places, len(self._order) - 1)]
        if not np.array_equal(self.images[rows], images):
            raise FedVisageError(f"{self.path} lacks some of these images")
        out = np.empty((len(rows), *self._shape), np.float32)
        row: Any
        for row, number in zip(out, 2 * rows + mirrored, strict=True):
            if os.preadv(self._file, [row], self._start + int(number) * self._row) != self._row:
                raise FedVisageError(f"{self.path} is truncated: remove it, and it is computed again")
        return out

    def copy_to(self, file: BinaryIO) -> None:
        """Write all features to another file."""
        with os.fdopen(os.dup(self._file), "rb") as own:
            own.seek(self._start)
            shutil.copyfileobj(own, file, 1 << 20)


def with_features(model: Backbone, faces: FaceSet, images: Sequence[int] | Indices, folder: Path) -> FaceSet:
    """The face set with the features of these images at hand, computed into `folder` as far as they are not there."""
    wanted = np.unique(np.asarray(images, dtype=np.int64))
    path = folder / f"features-{model.frozen_digest[:16]}-{sampled_digest(faces)[:16]}.bin"
    known = None
    if path.exists():
        known = FeatureFile(path, model.frozen_digest)
        if wanted in known:
            return replace(faces, features=known)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, model, faces, wanted, known)
    except OSError as error:
        raise FedVisageError(f"cannot write the features {path}: {error.strerror or error}") from error
    return replace(faces, features=FeatureFile(path, model.frozen_digest))


def features_for(model: Backbone, images: Images) -> Features | None:
    """The features of these images, where they are at hand and are those of this very network."""
    features: Features | None = getattr(images, "features", None)
    fits = features is not None and model.cut > 0 and features.digest == model.frozen_digest
    return features if fits else None


def _write(path: Path, model: Backbone, faces: FaceSet, wanted: Indices, known: FeatureFile | None) -> None:
    """Write the features of these images after those that are known."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    before = known.images if known is not None else np.empty(0, np.int64)
    images = np.setdiff1d(wanted, before)
    blocks = _computed(model, faces, images)
    first = next(blocks, np.empty((0, 2), np.float32))
    about = {"shape": first.shape[2:], "images": len(before) + len(images)}
    try:
        with temporary.open("wb") as file:
            file.write(json.dumps(about).encode() + b"\n" + np.concatenate([before, images]).astype("<i8").tobytes())
            if known is not None:
                known.copy_to(file)
            for block in itertools.chain([first], blocks):
                file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _computed(model: Backbone, faces: FaceSet, images: Indices) -> Iterator[Floats]:
    """Features (n, 2, C, h, w) block by block; as many blocks at a time as there are cores for the present threads."""
    threads = torch.get_num_threads()
    workers = max(1, (os.cpu_count() or 1) // threads) if model.device.type == "cpu" else 1
    blocks = [images[start : start + BLOCK] for start in range(0, len(images), BLOCK)]

    def compute(block: Indices) -> Floats:
        pixels = faces.images.read(block)
        with torch.no_grad():
            both = [model.to_cut(model.preprocess(p)).cpu().numpy() for p in (pixels, pixels[:, :, ::-1])]
        return np.stack(both, axis=1)

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        for start in range(0, len(blocks), 2 * workers):
            yield from pool.map(compute, blocks[start : start + 2 * workers])
