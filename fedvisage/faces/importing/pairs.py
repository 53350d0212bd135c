"""Verification sets as image files and a list of pairs: LFW and its relatives, CFP-FP, RFW.

The lists come in four ways, told apart by their lines:
`name 1 4` and `name 1 other 2` (LFW, RFW), `1 path path` or `path path 1` (lists converted for ArcFace-style code),
`path 1` on two lines each (CALFW, CPLFW), and `path` on two lines each (SLLFW).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.bins import pair_list
from fedvisage.faces.importing.source import Source, images_in, of_files, whole
from fedvisage.faces.importing.tree import Tree, safe_path, text_of
from fedvisage.faces.lists import Listing
from fedvisage.faces.records import Indices

_NUMBERED = re.compile(r"(.+)_(\d+)")


@dataclass
class Pairs:
    """Pairs by what the list calls the images: a path, or a person and a number."""

    left: list[str | tuple[str, int]]
    right: list[str | tuple[str, int]]
    same: list[bool]
    fold: list[int] | None = None


def parse_pairs(text: str, where: str) -> Pairs:
    """The pairs in a list of any of the four ways."""
    lines = [line.split("\t") if "\t" in line else line.split() for line in text.splitlines() if line.strip()]
    header: list[int] | None = None
    if lines and all(word.strip().isascii() and word.strip().isdigit() for word in lines[0]) and len(lines[0]) <= 2:
        header = [whole(word, where) for word in lines.pop(0)]
    if not lines:
        raise FedVisageError(f"{where} holds no pairs")
    words = [[word.strip() for word in line if word.strip()] for line in lines]
    widths = {len(line) for line in words}
    if widths <= {1, 2} and len(widths) == 1:
        return _on_two_lines(words, where)
    if widths == {3} and _annotated(words[0]) is not None:
        return _on_one_line(words, where)
    if widths <= {3, 4}:
        return _by_number(words, header, where)
    raise FedVisageError(f"{where} is no list of pairs: a line has {max(widths)} words")


def _by_number(words: Sequence[list[str]], header: list[int] | None, where: str) -> Pairs:
    pairs = Pairs([], [], [])
    for line in words:
        other = line[0] if len(line) == 3 else line[2]
        pairs.left.append((line[0], whole(line[1], where)))
        pairs.right.append((other, whole(line[-1], where)))
        pairs.same.append(len(line) == 3 or other == line[0])
    if header and len(header) == 2:
        folds, each = header
        if folds < 1 or folds * each * 2 != len(words):
            raise FedVisageError(f"{where} announces {folds} x {each} x 2 pairs and holds {len(words):,}")
        pairs.fold = [1 + number // (2 * each) for number in range(len(words))]
    return pairs


def _on_two_lines(words: Sequence[list[str]], where: str) -> Pairs:
    if len(words) % 2:
        raise FedVisageError(f"{where} should name two images per pair and names {len(words):,}")
    left: list[str | tuple[str, int]] = [safe_path(line[0], where) for line in words[::2]]
    right: list[str | tuple[str, int]] = [safe_path(line[0], where) for line in words[1::2]]
    if len(words[0]) == 2:
        same = [whole(line[1], where) > 0 for line in words[::2]]
    else:
        same = [_person(str(one)) == _person(str(other)) for one, other in zip(left, right, strict=True)]
    return Pairs(left, right, same)


def _annotated(line: list[str]) -> int | None:
    """Where the answer is in a line with two paths: 0 or 2."""
    for place, others in ((0, line[1:]), (2, line[:2])):
        if line[place] in ("0", "1", "-1") and all("." in other or "/" in other for other in others):
            return place
    return None


def _on_one_line(words: Sequence[list[str]], where: str) -> Pairs:
    pairs = Pairs([], [], [])
    for line in words:
        place = _annotated(line)
        if place is None:
            raise FedVisageError(f"{where}: '{' '.join(line)[:60]}' is no pair")
        one, other = line[1:] if place == 0 else line[:2]
        pairs.left.append(safe_path(one, where))
        pairs.right.append(safe_path(other, where))
        pairs.same.append(line[place] == "1")
    return pairs


def _person(path: str) -> str:
    """Whose image a path is: the folder's name, or the file's without its number where it is in no folder."""
    pure = PurePosixPath(path)
    numbered = _NUMBERED.fullmatch(pure.stem)
    return pure.parent.name or (numbered[1] if numbered else pure.stem)


class Finder:
    """Finds images of a tree by what lists call them."""

    def __init__(self, paths: Sequence[str], identities: Sequence[str]) -> None:
        self._by_end: dict[str, int] = {}
        self._by_number: dict[tuple[str, int], int] = {}
        for place, (path, identity) in enumerate(zip(paths, identities, strict=True)):
            parts = path.split("/")
            for length in range(1, len(parts) + 1):
                end = "/".join(parts[-length:])
                self._by_end[end] = -2 if end in self._by_end and end != path else place
            numbered = _NUMBERED.fullmatch(PurePosixPath(path).stem)
            if numbered and len(numbered[2]) < 10:
                self._by_number[identity, int(numbered[2])] = place

    def __call__(self, called: str | tuple[str, int]) -> int:
        """The image's number; -1 where there is none."""
        if isinstance(called, tuple):
            return self._by_number.get(called, -1)
        place = self._by_end.get(called, -1)
        if place == -2:
            raise FedVisageError(f"'{called}' could be any of several images: name more of its path")
        return place

    def pairs(self, kept: Indices, pairs: Pairs, notes: list[str]) -> Listing:
        """A list of pairs in the set's numbers."""
        left = np.array([self(called) for called in pairs.left], dtype=np.int64)
        right = np.array([self(called) for called in pairs.right], dtype=np.int64)
        fold = None if pairs.fold is None else np.array(pairs.fold, dtype=np.int64)
        return pair_list(kept, left, right, np.array(pairs.same, dtype=np.int64), fold, notes=notes)


def identities_of(paths: Sequence[str]) -> list[str]:
    """The person of each image file: its folder below the folder all are in, or its name without the number."""
    folders = [path.rpartition("/")[0] for path in paths]
    if len(set(folders)) <= 1:
        return [_flat(path) for path in paths]
    first, last = min(folders).split("/"), max(folders).split("/")
    common = 0
    while common < min(len(first), len(last)) and first[common] == last[common]:
        common += 1
    people = {folder: "/".join(folder.split("/")[common:]) for folder in set(folders)}
    return [people[folder] or _flat(path) for folder, path in zip(folders, paths, strict=True)]


def _flat(path: str) -> str:
    stem = PurePosixPath(path).stem
    numbered = _NUMBERED.fullmatch(stem)
    return numbered[1] if numbered else stem


def read_folders(tree: Tree) -> Source:
    """Image folders: one folder per person."""
    paths = images_in(tree)
    return of_files(tree, paths, identities_of(paths))


def read_pairs(tree: Tree, given: Path | None = None) -> Source:
    """Image folders with a list of pairs, in the tree or given apart."""
    paths = images_in(tree)
    identities = identities_of(paths)
    source = of_files(tree, paths, identities)
    if given is not None:
        try:
            text, where = given.read_text("utf-8-sig"), str(given)
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read the pairs in {given}: {error}") from None
    else:
        found = pair_files(tree)
        if len(found) != 1:
            raise FedVisageError(f"{tree.name} holds {len(found)} lists of pairs: name one with --pairs")
        text, where = text_of(tree, found[0]), found[0]
    pairs = parse_pairs(text, where)
    find = Finder(paths, identities)
    source.lists = lambda kept: {"pairs": find.pairs(kept, pairs, source.notes)}
    return source


def pair_files(tree: Tree) -> list[str]:
    """The lists of pairs of a tree, by their names."""
    names = re.compile(r"(?:.*/)?(?:pairs?(?:_?[a-z]*lfw)?|[a-z0-9_]+_(?:pairs?|ann))\.txt", re.IGNORECASE)
    return [path for path in tree.files if names.fullmatch(path)]


def read_rfw(tree: Tree) -> Source:
    """RFW: images below `data/<race>/<person>`, pairs and people in `txts/<race>`; a race is a domain."""
    lists = {m[1]: m[0] for path in tree.files if (m := re.fullmatch(r".*?(\w+)_pairs\.txt", path))}
    paths, races, identities = [], [], []
    for path in images_in(tree):
        parts = path.split("/")
        if len(parts) >= 3 and parts[-3] in lists:
            paths.append(path)
            races.append(parts[-3])
            identities.append(parts[-2])
    domains = tuple(sorted(lists))
    source = of_files(tree, paths, identities)
    source.domain, source.domains = np.array([domains.index(race) for race in races], dtype=np.int64), domains
    parsed = {race: parse_pairs(text_of(tree, lists[race]), lists[race]) for race in domains}
    find = {}
    for race in domains:
        own = [place for place, other in enumerate(races) if other == race]
        find[race] = (own, Finder([paths[place] for place in own], [identities[place] for place in own]))
        source.notes += _compare_people(tree, lists[race], race, [identities[place] for place in own])

    def make(kept: Indices) -> dict[str, Listing]:
        return {
            f"pairs.{race.lower()}": finder.pairs(kept[np.array(own, dtype=np.int64)], parsed[race], source.notes)
            for race, (own, finder) in find.items()
        }

    source.lists = make
    return source


def _compare_people(tree: Tree, pairs: str, race: str, identities: Sequence[str]) -> list[str]:
    """What `<race>_people.txt` says that is not so: a person and a number of images per line."""
    path = pairs.replace("_pairs.txt", "_people.txt")
    if path not in set(tree.files):
        return []
    said = {}
    for line in text_of(tree, path).splitlines():
        words = line.split()
        if len(words) >= 2:
            said[words[0]] = whole(words[1], path)
    people, counts = np.unique(list(identities), return_counts=True)
    there = dict(zip(people.tolist(), counts.tolist(), strict=True))
    different = [person for person in said if there.get(person, 0) != said[person]]
    if not different:
        return []
    return [f"{race}: {len(different):,} people have another number of images than {path} says"]


def read_cfp(tree: Tree) -> Source:
    """CFP-FP: `Protocol/Pair_list_F.txt` and `_P.txt` number the images, `Protocol/Split/FP/<fold>` pairs them."""
    lists = {}
    for side in "FP":
        found = [path for path in tree.files if path.endswith(f"Pair_list_{side}.txt")]
        if len(found) != 1:
            raise FedVisageError(f"{tree.name} should hold one Pair_list_{side}.txt and holds {len(found)}")
        lists[side] = _numbered_images(tree, found[0])
    paths = images_in(tree)
    people = [_cfp_person(path) for path in paths]
    find, pairs = Finder(paths, people), Pairs([], [], [], [])
    splits = sorted(path for path in tree.files if re.fullmatch(r".*Split/FP/\d+/(same|diff)\.txt", path))
    for path in splits:
        fold = whole(path.split("/")[-2], path)
        for line in text_of(tree, path).splitlines():
            words = line.replace(",", " ").split()
            if not words:
                continue
            if len(words) != 2 or pairs.fold is None:
                raise FedVisageError(f"{path}: '{line[:60]}' is no pair")
            for side, word, column in (("F", words[0], pairs.left), ("P", words[1], pairs.right)):
                if whole(word, path) not in lists[side]:
                    raise FedVisageError(f"{path} names image {word} that Pair_list_{side}.txt does not have")
                column.append(lists[side][int(word)])
            pairs.same.append(path.endswith("same.txt"))
            pairs.fold.append(fold)
    source = of_files(tree, paths, people)
    source.lists = lambda kept: {"pairs": find.pairs(kept, pairs, source.notes)}
    return source


def _numbered_images(tree: Tree, path: str) -> dict[int, str]:
    table = {}
    for line in text_of(tree, path).splitlines():
        words = line.split()
        if len(words) == 2:
            below = re.sub(r"^(\.\./)+", "", words[1].replace("\\", "/"))
            table[whole(words[0], path)] = safe_path(below, path)
    return table


def _cfp_person(path: str) -> str:
    """`Data/Images/001/frontal/01.jpg` shows 001."""
    parts = path.split("/")
    return parts[-3] if len(parts) >= 3 and parts[-2] in ("frontal", "profile") else _person(path)
