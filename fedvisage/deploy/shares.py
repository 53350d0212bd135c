"""A recipe's partition as folders of faces, one per party: for trying a federation with faces that are all here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedvisage.build import open_faces
from fedvisage.config import Recipe
from fedvisage.core.codec import write_atomically
from fedvisage.core.randomness import Streams
from fedvisage.deploy.folder import Deployment
from fedvisage.deploy.party import SPLIT
from fedvisage.faces.faceset import FaceSet, Indices, Pixels, write_faceset
from fedvisage.faces.partition import Partition, make_partition


class Some:
    """Some images of a set, as a source of their own."""

    def __init__(self, whole: FaceSet, indices: Indices) -> None:
        self._images, self._indices = whole.images, indices

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        return self._images.read(self._indices[indices])


def part_of(whole: FaceSet, indices: Sequence[int]) -> FaceSet:
    """Some images of a set as a set of their own; its people are numbered in the same order."""
    chosen = np.asarray(indices, dtype=np.int64)
    people, labels = np.unique(whole.labels[chosen], return_inverse=True)
    names = tuple(whole.names[person] for person in people)
    return FaceSet(Some(whole, chosen), labels.astype(np.int64), names)


def draw(recipe: Recipe, cache: Path) -> tuple[FaceSet, Partition]:
    """A recipe's faces and how a run would share them out."""
    faces = open_faces(recipe, cache)
    return faces, make_partition(faces, recipe.partition, Streams(recipe.seed).child("partition"))


def roles_of(recipe: Recipe) -> dict[str, str]:
    """Parties of a recipe and their roles."""
    with TemporaryDirectory() as cache:
        _, partition = draw(recipe, Path(cache))
    return {name: share.role for name, share in partition.parties.items()}


def hand_out(recipe: Recipe, deployment: Deployment) -> None:
    """Write every party's share of the recipe's faces, and the public people, into the parties' folders."""
    with TemporaryDirectory() as cache:
        faces, partition = draw(recipe, Path(cache))
        for name, share in partition.parties.items():
            folder = deployment.party(name)
            write_faceset(folder / "faces", part_of(faces, [*share.train, *share.held_out]))
            count = len(share.train), len(share.train) + len(share.held_out)
            split = {"train": list(range(count[0])), "held_out": list(range(*count))}
            write_atomically(folder / SPLIT, [json.dumps(split).encode()])
            if partition.public:
                write_faceset(folder / "public", part_of(faces, partition.public))
