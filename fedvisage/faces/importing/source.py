"""What a reader finds: images that can be fetched by number, who each shows, and the lists of the protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import SUFFIXES
from fedvisage.faces.importing.tree import Tree
from fedvisage.faces.lists import Listing
from fedvisage.faces.records import Indices

_WHOLE = re.compile(r"[+-]?[0-9]+")
UNLABELLED = "unlabelled"
"""Who is in images whose people the data set does not name."""
MOST_MISSING = 0.01
"""Share of a list's rows that may be without their images; an import with more stops unless it is told to go on."""


@dataclass(frozen=True)
class Tally:
    """How many rows of a protocol's list have their images."""

    where: str
    """The list's file."""
    wanted: int
    found: int
    unit: str = "pairs"
    missing: str = ""
    """The first row without its images, such as `line 7: 'a/b.jpg'`."""
    remedy: str = ""
    """What to type so that the missing ones are found, where that is known."""
    name: str = ""
    """The benchmark, where it is recognised."""
    about: str = ""
    """Folds and published counts, for the summary."""
    fault: str = ""
    """What is wrong with the rows that are found."""

    @property
    def line(self) -> str:
        """The summary of the list."""
        about = f", {self.about}" if self.about else ""
        return f"{self.name or self.where}: {self.found:,} of {self.wanted:,} {self.unit}{about}"

    def check(self, source: str, allowed: int = 0) -> None:
        """Refuse a list that has lost its images: all of them, or more than `allowed` and than one in a hundred."""
        lost = self.wanted - self.found
        if not lost or (self.found and (lost <= allowed or lost <= MOST_MISSING * self.wanted)):
            if self.fault:
                raise FedVisageError(self.fault)
            return
        if self.remedy:
            remedy = f"type {self.remedy}"
        elif self.found:
            remedy = f"add what is missing, or type --allow-missing {lost} to go on without"
        else:
            remedy = "check that the list belongs to these images; --format folders imports the images alone"
        raise FedVisageError(
            f"{self.where}: {self.found:,} of {self.wanted:,} {self.unit} are in {source}; "
            f"the first one missing is {self.missing}: {remedy}"
        )


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
    tally: Callable[[NDArray[np.bool_]], dict[str, Tally]] | None = None
    """How much of each list there is, given which images can be read (N,)."""
    remarks: list[str] = field(default_factory=list)
    """What the summary says of files that are not part of the set."""

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


def whole(text: str, where: str) -> int:
    """A whole number in a list."""
    if not _WHOLE.fullmatch(text.strip()):
        raise FedVisageError(f"{where}: '{text.strip()[:40]}' is no whole number")
    number = int(text[:40])
    if not -(2**62) < number < 2**62:
        raise FedVisageError(f"{where}: {text.strip()[:40]} is too large")
    return number


def is_image(path: str) -> bool:
    """Whether a file is an image, by its ending."""
    return path[path.rfind(".") :].lower() in SUFFIXES


def _hidden(path: str) -> bool:
    return path.startswith((".", "__MACOSX/")) or "/." in path
