"""What a reader finds: images that can be fetched by number, who each shows, and the lists of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import SUFFIXES
from fedvisage.faces.importing.tree import Tree
from fedvisage.faces.lists import Listing
from fedvisage.faces.records import Indices

UNLABELLED = "unlabelled"
"""Who is in images whose people the data set does not name."""


@dataclass
class Source:
    """A data set as its reader sees it, image by image; nothing is read yet but names and lists."""

    names: tuple[str, ...]
    """Of the people."""
    labels: Indices
    """The person of each image (N,)."""
    read: Callable[[int], bytes]
    called: Callable[[int], str]
    """What an image is called in the report."""
    domain: Indices | None = None
    domains: tuple[str, ...] = ()
    score: NDArray[np.float32] | None = None
    landmarks: NDArray[np.float32] | None = None
    """Five points of each image (N, 5, 2), in its own pixels."""
    aligns: bool = False
    """Whether images are photos that the landmarks align."""
    boxes: NDArray[np.float32] | None = None
    """Where the face is in each image: left, top, width, height (N, 4)."""
    keeps_duplicates: bool = False
    """Whether the protocol speaks of every image, so that equal ones stay apart."""
    lists: Callable[[Indices], dict[str, Listing]] | None = None
    """The lists, given the number each image got (N,): -1 where it was left out."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


def of_files(tree: Tree, paths: Sequence[str], identities: Sequence[str]) -> Source:
    """A source of image files, each with the name of its person."""
    names = tuple(sorted(set(identities)))
    place = {name: number for number, name in enumerate(names)}
    labels = np.array([place[name] for name in identities], dtype=np.int64)
    return Source(names, labels, lambda number: tree.read(paths[number]), lambda number: paths[number])


def images_in(tree: Tree, folder: str = "") -> list[str]:
    """The image files of a tree (below a folder)."""
    inside = f"{folder}/" if folder else ""
    return [path for path in tree.files if path.startswith(inside) and is_image(path) and not _hidden(path)]


def kept_rows(kept: Indices, *columns: Iterable[int]) -> tuple[NDArray[np.bool_], list[Indices]]:
    """Columns of image numbers after the import, and which rows have all their images (those may be used)."""
    found = [kept[np.asarray(list(column), dtype=np.int64)] for column in columns]
    return np.logical_and.reduce([column >= 0 for column in found]), found


def whole(text: str, where: str) -> int:
    """A whole number in a list."""
    try:
        number = int(text)
    except ValueError:
        raise FedVisageError(f"{where}: '{text.strip()[:40]}' is no whole number") from None
    if not -(2**62) < number < 2**62:
        raise FedVisageError(f"{where}: {text.strip()[:40]} is too large")
    return number


def is_image(path: str) -> bool:
    """Whether a file is an image, by its ending."""
    return path[path.rfind(".") :].lower() in SUFFIXES


def _hidden(path: str) -> bool:
    return path.startswith((".", "__MACOSX/")) or "/." in path
