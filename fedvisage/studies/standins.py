"""Stand-ins for protocols whose data a laptop does not have: lists over people of a set that no run trains on.

`pairs` in the place of a whole set of pairs: those of its last two folds. `templates` in the place of IJB: everybody
with four images or more has two templates of half of them each; the first is in the gallery, the second a probe, and
all pairs of a first and a second are verified. `distractors` in the place of MegaFace: everybody with two images or
more is looked for among those with one. These two are over the people of the last two folds, or everybody where a set
has no pairs.

`few-templates` and `few-distractors` are for runs that train on people of all folds, if they have four images or more:
the same over those with fewer, where three images make a template of two and one of one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.faceset import Indices, open_faceset
from fedvisage.faces.lists import (
    ImageList,
    Listing,
    PairList,
    SubjectList,
    TemplateList,
    TemplatePairs,
    list_names,
    open_list,
    write_lists,
)

FEW = "few-"
PAIRS = "pairs"
KINDS = (PAIRS, "templates", "distractors", f"{FEW}templates", f"{FEW}distractors")
SEVERAL = 4
"""Images that make two templates of several."""


def add_lists(folder: Path, kind: str) -> None:
    """Give an imported face set the lists of a stand-in."""
    if kind not in KINDS:
        raise FedVisageError(f"no stand-in '{kind}': {nearest(kind, KINDS)}")
    if kind == PAIRS:
        write_lists(folder, {PAIRS: _tested_pairs(folder)})
        return
    labels = open_faceset(folder).labels
    count = np.bincount(labels)
    few = kind.startswith(FEW)
    people = np.flatnonzero((count > 0) & (count < SEVERAL)) if few else _last_folds(folder, labels)
    if kind.endswith("templates"):
        least = SEVERAL - 1 if few else SEVERAL
        if not (several := people[count[people] >= least]).size:
            raise FedVisageError(f"stand-in '{kind}': nobody in {folder} has {least} images")
        write_lists(folder, _templates(labels, several))
    else:
        write_lists(folder, _distractors(labels, people))


def _last_folds(folder: Path, labels: Indices) -> Indices:
    """The people of the last two folds of a set's pairs; everybody where it has none."""
    if PAIRS not in list_names(folder):
        return np.unique(labels)
    tested = _tested_pairs(folder)
    return np.unique(labels[np.concatenate([tested.left, tested.right])])


def _tested_pairs(folder: Path) -> PairList:
    """The pairs of the last two folds."""
    pairs = open_list(folder, PAIRS)
    if not isinstance(pairs, PairList):
        raise FedVisageError(f"the list '{PAIRS}' of {folder} is no list of pairs of images")
    kept = np.isin(pairs.fold, np.unique(pairs.fold)[-2:])
    return PairList(pairs.left[kept], pairs.right[kept], pairs.same[kept], pairs.fold[kept])


def _templates(labels: Indices, people: Indices) -> dict[str, Listing]:
    halves = [half for person in people for half in np.array_split(np.flatnonzero(labels == person), 2)]
    image = np.concatenate(halves)
    template = np.repeat(np.arange(len(halves)), [len(half) for half in halves])
    first, second = np.arange(0, len(halves), 2), np.arange(1, len(halves), 2)
    left, right = (side.ravel() for side in np.meshgrid(first, second))
    return {
        "templates": TemplateList(image, template, np.arange(len(image))),
        "verification": TemplatePairs(left, right, left + 1 == right),
        "gallery-1": SubjectList(first, people),
        "probes": SubjectList(second, people),
    }


def _distractors(labels: Indices, people: Indices) -> dict[str, Listing]:
    count = np.bincount(labels)[labels]
    among = np.isin(labels, people)
    probes, others = np.flatnonzero(among & (count > 1)), np.flatnonzero(among & (count == 1))
    return {"probes": ImageList(probes, labels[probes]), "distractors": ImageList(others, labels[others])}
