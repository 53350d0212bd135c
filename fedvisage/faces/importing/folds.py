"""Pairs of a list in their folds, matched with the images of a source, and the counts that are published.

A list may say its folds: by a first line `10 300`, by a number on each line (CALFW), or by a file each (CFP). Others
are in blocks: the same pairs of a fold, then its different ones. Where all same pairs come first, as many as there are
different ones (CPLFW), fold k is the k-th tenth of either kind. Lists that mix both kinds are cut into ten in a row, as
in InsightFace's code. Others, and those whose blocks are not of one size, have no folds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.source import Source, Tally
from fedvisage.faces.lists import Listing, PairList
from fedvisage.faces.records import Indices

Flags = NDArray[np.bool_]
FOLDS = 10
LEAST_BLOCK = 5
"""Pairs of one kind in a row, at least, by which a list is taken to be in blocks."""


@dataclass(frozen=True)
class Published:
    """A benchmark as its authors describe it: folds (0 for none), and pairs of either kind in each, or in all."""

    name: str
    folds: int
    same: int
    different: int

    @property
    def total(self) -> int:
        """All its pairs."""
        return max(1, self.folds) * (self.same + self.different)


PUBLISHED = {
    r"pairs_?dev_?test": Published("LFW's View 1, test", 0, 500, 500),
    r"pairs_?dev_?train": Published("LFW's View 1, training", 0, 1100, 1100),
    r"(?<![a-z])sllfw": Published("SLLFW", 10, 300, 300),
    r"(?<![a-z])calfw": Published("CALFW", 10, 300, 300),
    r"(?<![a-z])cplfw": Published("CPLFW", 10, 300, 300),
    r"(?<![a-z])lfw": Published("LFW", 10, 300, 300),
    r"(?<![a-z])agedb": Published("AgeDB-30", 10, 300, 300),
    r"(?<![a-z])cfp_?-?fp": Published("CFP-FP", 10, 350, 350),
    r"(?<![a-z])cfp_?-?ff": Published("CFP-FF", 10, 350, 350),
    r"(?<![a-z])vgg2_?-?fp": Published("VGG2-FP", 10, 250, 250),
    r"(?<![a-z])rfw": Published("RFW", 10, 300, 300),
}
"""By what the name of a list, or else of its folder, holds."""


def published(*names: str) -> Published | None:
    """The benchmark that one of these names speaks of, the first that does."""
    for name in names:
        for pattern, known in PUBLISHED.items():
            if re.search(pattern, name, re.IGNORECASE):
                return known
    return None


def assign_folds(same: Flags) -> tuple[Indices, str]:
    """The folds (N,) of a list that does not say them, 0 for none, and the rule by which they were assigned."""
    count = len(same)
    ends = np.append(np.flatnonzero(np.diff(same)) + 1, count)
    lengths = np.diff(ends, prepend=0)
    none = np.zeros(count, np.int64)
    if len(lengths) < 2 or lengths[:-1].min() < LEAST_BLOCK:
        fold = 1 + np.arange(count) * FOLDS // max(1, count)
        return (none if count % FOLDS or one_kind(fold, same) else fold), ""
    if len(lengths) > 2:
        whole = len(lengths) % 2 == 0 and len(set(lengths[::2])) == len(set(lengths[1::2])) == 1
        return (np.repeat(1 + np.arange(len(lengths) // 2), lengths[::2] + lengths[1::2]) if whole else none), ""
    if lengths[0] != lengths[1] or lengths[0] % FOLDS:
        return none, ""
    each = int(lengths[0]) // FOLDS
    fold = 1 + np.arange(lengths[0]) // each
    first, second = ("same", "different") if same[0] else ("different", "same")
    rule = f"all {first} pairs come first, so fold k is the k-th {each} of these and of the {second} ones"
    return np.concatenate([fold, fold]), rule


def one_kind(fold: Indices, same: Flags) -> int | None:
    """The first fold that holds only same pairs, or only different ones; 0 means that a pair is in no fold."""
    for number in np.unique(fold[fold > 0]):
        if len(np.unique(same[fold == number])) == 1:
            return int(number)
    return None


def fault_of(fold: Indices, same: Flags, where: str, remedy: str) -> str:
    """What is wrong with the first fold of one kind, if there is one."""
    number = one_kind(fold, same)
    if number is None:
        return ""
    here = same[fold == number]
    kind, other = ("same", "different") if here[0] else ("different", "same")
    part = f"{where}: fold {number}" if len(here) < len(same) else where
    return f"{part} holds {len(here):,} {kind} pairs and no {other} one: {remedy}"


def refuse_one_kind(fold: Indices, same: Flags, where: str, remedy: str) -> None:
    """Stop at a fold without same or without different pairs: its accuracy would mean nothing."""
    if fault := fault_of(fold, same, where, remedy):
        raise FedVisageError(fault)


def shape_of(fold: Indices, same: Flags) -> tuple[int, set[tuple[int, int]]]:
    """The number of folds, and the counts of same and different pairs that they have."""
    numbers = np.unique(fold[fold > 0])
    if not len(numbers):
        return 0, {(int(same.sum()), int((~same).sum()))}
    return len(numbers), {(int(same[fold == n].sum()), int((~same[fold == n]).sum())) for n in numbers}


@dataclass(frozen=True)
class PairRows:
    """A list of pairs by the source's image numbers (N,), -1 for an image that is not in the source."""

    where: str
    left: Indices
    right: Indices
    same: Flags
    fold: Indices
    rule: str = ""
    known: Published | None = None
    calls: Sequence[str] = ()
    """What to call each row in messages (N,)."""
    remedy: str = ""

    def __post_init__(self) -> None:
        why = "is the list cut off, or in another order?"
        refuse_one_kind(np.ones(len(self.same), np.int64), self.same, self.where, why)
        refuse_one_kind(self.fold, self.same, self.where, why)

    def listing(self, kept: Indices, notes: list[str]) -> PairList:
        """The pairs by the set's image numbers; those without their images are left out, with a note."""
        padded = np.append(kept, -1)
        left, right = padded[self.left], padded[self.right]
        there = (left >= 0) & (right >= 0)
        if not there.all():
            notes.append(f"{int((~there).sum()):,} of {len(there):,} pairs are left out: their images are not there")
        return PairList(left[there], right[there], self.same[there].astype(np.int64), self.fold[there])

    def tally(self, there: Flags) -> Tally:
        """How many pairs have their images, and how the list compares with what is published."""
        padded = np.append(there, False)
        found = padded[self.left] & padded[self.right]
        first = int(np.argmin(found)) if len(found) and not found.all() else 0
        call = self.calls[first] if len(self.calls) else f"pair {first + 1}"
        return Tally(
            self.where,
            len(found),
            int(found.sum()),
            missing=call,
            remedy=self.remedy,
            name=self.known.name if self.known else "",
            about=self._about(bool(found.all())),
            fault=fault_of(self.fold[found], self.same[found], self.where, "too many of its images are missing"),
        )

    def _about(self, complete: bool) -> str:
        folds, each = shape_of(self.fold, self.same)
        if not folds:
            same, different = next(iter(each))
            text = f"{same:,} + {different:,}, no folds"
        else:
            text = f"{folds} folds" + (" of {:,} + {:,}".format(*next(iter(each))) if len(each) == 1 else "")
        if self.rule:
            text += f" ({self.rule})"
        known = self.known
        if known is None:
            return text
        if complete and folds == known.folds and each == {(known.same, known.different)}:
            return f"{text}, as published"
        shape = f"in {known.folds} folds of {known.same} + {known.different}" if known.folds else "without folds"
        return f"{text}; published are {known.total:,} pairs {shape}"


def with_pairs(source: Source, rows: Mapping[str, PairRows]) -> Source:
    """The source with these lists of pairs."""

    def lists(kept: Indices) -> dict[str, Listing]:
        return {name: one.listing(kept, source.notes) for name, one in rows.items()}

    source.lists = lists
    source.tally = lambda there: {name: one.tally(there) for name, one in rows.items()}
    return source
