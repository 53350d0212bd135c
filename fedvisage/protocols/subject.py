"""What protocols work on: a face set with its lists, and a model or an embeddings file, each image embedded once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation.files import About, EmbeddingsFile, is_embeddings_file, write_embeddings
from fedvisage.evaluation.streaming import Rows
from fedvisage.faces.faceset import Faces, FaceSet, Indices, open_faceset, sampled_digest
from fedvisage.faces.lists import Listing, list_names, open_list
from fedvisage.models import NO_CENTRE, OF_PAIRS, Backbone, open_model
from fedvisage.training import embed_images

L = TypeVar("L", bound=Listing)
BLOCK = 1024
CENTRE = "centre"
"""In an embeddings file: the centre that its embeddings are about."""
Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Told what is being done and how much there is of it, gives something to call with how much has been done."""


@dataclass(frozen=True)
class Data:
    """A face set and its folder."""

    folder: Path

    @cached_property
    def faces(self) -> FaceSet:
        """The images and what is known of each."""
        return open_faceset(self.folder)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @cached_property
    def digest(self) -> str:
        """Names the face set by its people and some of its images."""
        return sampled_digest(self.faces)

    @cached_property
    def left_out(self) -> list[str]:
        """What the import of this set says it left out."""
        try:
            report = json.loads((self.folder / "import.json").read_text("utf-8"))
            return [f"import: {text}" for text in report.get("notes", [])]
        except (OSError, ValueError, AttributeError, TypeError):
            return []

    @cached_property
    def lists(self) -> dict[str, str]:
        """The names of its lists, and their kinds."""
        return list_names(self.folder)

    def list(self, name: str, kind: type[L]) -> L:
        """The list `name`, which must be of this kind."""
        found = open_list(self.folder, name)
        if not isinstance(found, kind):
            kinds = f"a {type(found).__name__}, not a {kind.__name__}"
            raise FedVisageError(f"the list '{name}' of {self.folder} is {kinds}")
        return found

    def images(self, numbers: Indices, what: str) -> Indices:
        """Image numbers of a list, refused where the set has no such image."""
        outside = (numbers < 0) | (numbers >= len(self.faces))
        if outside.any():
            raise FedVisageError(
                f"{int(outside.sum())} of {len(numbers)} rows of {what} in {self.folder} name images that are missing, "
                f"first image {numbers[outside][0]}; the set has {len(self.faces):,}"
            )
        return numbers


@dataclass
class Subject:
    """A model or an embeddings file under evaluation. Embeddings of a face set are computed when first asked for."""

    name: str
    path: str
    file: EmbeddingsFile | None = None
    watch: Watch = lambda what, total: nullcontext(lambda count: None)
    centre: str = ""
    """The centre that embeddings are about, if they are about one."""
    _model: Backbone | None = None
    _made: dict[tuple[str, bool, str], tuple[NDArray[np.float32], NDArray[np.bool_]]] = field(default_factory=dict)
    """By set, flip and centre: the rows, and which of them have been filled."""

    @property
    def model(self) -> Backbone:
        """The network."""
        if self.file is not None:
            raise FedVisageError(f"{self.path} is a file of embeddings, and the model itself is needed here")
        if self._model is None:
            self._model = open_model(self.path)
        return self._model

    @property
    def backbone(self) -> str:
        """What made the embeddings."""
        return self.file.about.model if self.file is not None else self.model.metadata.name

    def use_centre(self, name: str | None) -> None:
        """Give embeddings about one of the model's centres; those of a file are about the one they were made with."""
        wanted = "" if name in (None, NO_CENTRE, OF_PAIRS) else name or ""
        if self.file is None:
            if self._model is not None or wanted:
                self.model.use_centre(wanted, self.path)
            self.centre = wanted
            return
        self.centre = self.file.about.more.get(CENTRE, "")
        if name is not None and self.centre != wanted:
            made = f"about the centre '{self.centre}'" if self.centre else "without a centre"
            raise FedVisageError(f"{self.path} was made {made}: leave --centre out, or embed again")

    def embeddings(self, data: Data, flip: bool, images: Indices | None = None) -> Rows:
        """Embeddings (N, d) of a set's images, not normalised; a file's are read as they are asked for.

        A model embeds those asked for (all, by default) that it has not embedded yet. The rows of the others are zero.
        """
        if self.file is not None:
            return self._from_file(self.file, data, flip)
        key = (str(data.folder.resolve()), flip, self.centre)
        if key not in self._made:
            rows = np.zeros((len(data.faces), self.model.metadata.embedding_size), np.float32)
            self._made[key] = rows, np.zeros(len(rows), np.bool_)
        rows, known = self._made[key]
        wanted = np.ones_like(known)
        if images is not None:
            wanted[:] = False
            wanted[images] = True
        missing = np.flatnonzero(wanted & ~known)
        for place, block in self.blocks(data, flip, missing):
            rows[place] = block
        known[missing] = True
        return rows

    def blocks(
        self, data: Data, flip: bool, images: Indices | None = None
    ) -> Iterator[tuple[Indices, NDArray[np.float32]]]:
        """Image numbers and their embeddings as the model makes them, block by block; by default of the whole set."""
        numbers = np.arange(len(data.faces)) if images is None else images
        if not len(numbers):
            return
        with self.watch(f"embeddings of {data.name}", len(numbers)) as step:
            for start in range(0, len(numbers), BLOCK):
                some = numbers[start : start + BLOCK]
                yield some, embed_images(self.model, Faces(data.faces, some), flip=flip)
                step(len(some))

    def chosen(self, data: Data, images: Indices, flip: bool) -> NDArray[np.float32]:
        """Embeddings (n, d) of some images, in their order."""
        return some_of(self.embeddings(data, flip, images), images)

    @staticmethod
    def _from_file(file: EmbeddingsFile, data: Data, flip: bool) -> EmbeddingsFile:
        if file.about.faces_digest != data.digest or not np.array_equal(file.labels, data.faces.labels):
            raise FedVisageError(
                f"{file.path} holds embeddings of {len(file):,} other images ('{file.about.faces}') than {data.folder}"
            )
        if file.about.flip != flip:
            kind = "with" if file.about.flip else "without"
            raise FedVisageError(
                f"{file.path} was made {kind} the mirrored images: {'say' if flip else 'do not say'} --no-flip, "
                "or embed again"
            )
        return file


def some_of(rows: Rows, images: Indices) -> NDArray[np.float32]:
    """Rows (n, d) of an array or a file by number, in the order asked for."""
    if isinstance(rows, np.ndarray):
        some: NDArray[np.float32] = rows[images]
        return some
    wanted, back = np.unique(images, return_inverse=True)
    found = np.empty((len(wanted), rows.shape[1]), np.float32)
    for start in range(0, rows.shape[0], BLOCK):
        first, last = np.searchsorted(wanted, (start, start + BLOCK))
        if last > first:
            found[first:last] = rows[start : start + BLOCK][wanted[first:last] - start]
    return found[back]


class Listed:
    """The embeddings of listed images, in the list's order, read a block at a time where the list ascends."""

    def __init__(self, subject: Subject, data: Data, images: Indices, flip: bool) -> None:
        self.rows, self.images = subject.embeddings(data, flip, images), images
        self.shape = (len(images), self.rows.shape[1])
        if (np.diff(images) <= 0).any():
            self.rows = some_of(self.rows, images)
            self.images = np.arange(len(images))

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        images = self.images[part]
        if isinstance(self.rows, np.ndarray):
            some: NDArray[Any] = self.rows[images]
            return some
        first, last = int(images[0]), int(images[-1]) + 1
        if last - first == len(images):
            return self.rows[first:last]
        pieces = np.split(images, np.flatnonzero(np.diff(images) != 1) + 1)
        return np.concatenate([self.rows[int(piece[0]) : int(piece[-1]) + 1] for piece in pieces])


def open_subject(path: str) -> Subject:
    """A model's name, a model file, a run's or a party's folder, or an embeddings file."""
    if is_embeddings_file(Path(path)):
        return Subject(Path(path).name, path, EmbeddingsFile(Path(path)))
    subject = Subject(path, path)
    subject.model  # noqa: B018 - a mistake in the name is found before any work is done
    return subject


def embed_to_file(subject: Subject, data: Data, out: Path, flip: bool) -> About:
    """Write the embeddings of every image of a set, block by block, with the model's digest."""
    model, faces = subject.model, data.faces
    more = {CENTRE: subject.centre} if subject.centre else {}
    about = About(model.metadata.name, model_digest(model), flip, data.name, data.digest, faces.names, more)
    blocks = (block for _, block in subject.blocks(data, flip))
    write_embeddings(out, blocks, (len(faces), model.metadata.embedding_size), faces.labels, about)
    return about


def model_digest(model: Backbone) -> str:
    """SHA-256 over the network's name and its tensors."""
    digest = hashlib.sha256(model.metadata.name.encode())
    tensors: dict[str, Any] = dict(model.state_dict())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
