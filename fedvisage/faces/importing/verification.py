"""Image folders, and verification sets as image files with their lists: LFW and its relatives, CFP, RFW."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import open_image
from fedvisage.faces.importing.finding import (
    AS_LISTED,
    SIDES,
    Finder,
    PathMapping,
    choose,
    home_of,
    identities_of,
    remedy,
    shown,
    strays,
)
from fedvisage.faces.importing.folds import PUBLISHED, PairRows, Published, published, with_pairs
from fedvisage.faces.importing.ijba import LARGEST
from fedvisage.faces.importing.pairs import Called, Pairs, parse_pairs
from fedvisage.faces.importing.source import UNLABELLED, Source, images_in, of_files, whole
from fedvisage.faces.importing.tree import Tree, text_of

_LIST = re.compile(
    r"(?:.*/)?(?:pairs?(?:_?[a-z]*lfw)?|[a-z0-9_]+_(?:pairs?|ann)(?:_new)?)\.txt",
    re.IGNORECASE,
)
_VIEW_1 = re.compile(r"(?:.*/)?pairsDev(?:Test|Train)\.txt", re.IGNORECASE)
_TEXT = (".txt", ".csv", ".tsv", ".json", ".lst")


def read_folders(tree: Tree) -> Source:
    """Image folders: one folder per person."""
    paths = images_in(tree)
    kept = _together(paths)
    source = of_files(tree, kept, identities_of(kept))
    _say_strays(source, sorted(set(paths) - set(kept)), "the folders that hold the others")
    _say_unlabelled(source)
    lists = [path for path in tree.files if path.lower().endswith(_TEXT)]
    if lists:
        more = f" and {len(lists) - 3:,} more" if len(lists) > 3 else ""
        source.remarks.append(f"not read: {', '.join(lists[:3])}{more}; --pairs takes a list of pairs")
    return source


def _together(paths: list[str]) -> list[str]:
    """The images without those loose beside one folder that holds the others, or beside CFP's."""
    folders = [path.rpartition("/")[0] for path in paths]
    sided = [path for path, folder in zip(paths, folders, strict=True) if folder.rpartition("/")[2] in SIDES]
    if len(sided) > len(paths) / 2:
        return sided
    return [path for path in paths if "/" in path] if len(set(folders) - {""}) == 1 else paths


def read_pairs(tree: Tree, given: Path | None = None, mapping: PathMapping = AS_LISTED) -> Source:
    """Image folders with a list of pairs, in the tree or given apart."""
    text, where = _list_of(tree, given)
    pairs = parse_pairs(text, where)
    if mapping.strip and not isinstance(pairs.left[0], str):
        raise FedVisageError(f"{where} names images by person and number: it has no folders for --strip to take off")
    folder = Path(tree.name).resolve().name.removesuffix(".zip")
    paths = images_in(tree)
    finder = Finder(paths, folder, mapping)
    calls = list(dict.fromkeys([*pairs.left, *pairs.right]))
    found = [finder.places(called) for called in calls]
    home = home_of(paths, found, where, tree.name) if any(found) else ""
    away = strays(paths, home, [place for places in found for place in places]) if any(found) else set()
    chosen = choose(pairs, finder, away, where)
    kept = [place for place in range(len(paths)) if place not in away]
    place_of = {place: number for number, place in enumerate(kept)} | {-1: -1}
    source = of_files(tree, [paths[n] for n in kept], identities_of([paths[n] for n in kept]))
    _say_strays(source, [paths[n] for n in sorted(away)], f"'{home}', where the list's images are")
    _say_unlabelled(source)
    if pairs.skipped:
        source.notes.append(f"{where}: not read as pairs: {', '.join(pairs.skipped[:3])}")
    known = published(Path(where).stem, folder)
    if known and not pairs.announced and len(pairs.same) != known.total:
        source.notes.append(f"{where} holds {len(pairs.same):,} pairs; {known.name} is published with {known.total:,}")
    numbers = [place_of[chosen[called]] for called in calls]
    lost = remedy(paths, folder, calls, mapping) if min(numbers) < 0 else ""
    place = dict(zip(calls, numbers, strict=True))
    return with_pairs(source, {"pairs": _rows(pairs, place, where, known, lost)})


def _list_of(tree: Tree, given: Path | None) -> tuple[str, str]:
    """The text of a list of pairs, and where it is."""
    if given is not None:
        try:
            return given.read_text("utf-8-sig"), str(given)
        except (OSError, ValueError) as error:
            raise FedVisageError(f"cannot read the pairs in {given}: {error}") from None
    found = pair_files(tree)
    if len(found) != 1:
        names = f" ({', '.join(found[:3])})" if found else ""
        raise FedVisageError(f"{tree.name} holds {len(found)} lists of pairs{names}: name one with --pairs")
    return text_of(tree, found[0]), found[0]


def pair_files(tree: Tree) -> list[str]:
    """The lists of pairs of a tree, by their names; those of LFW's View 1 where there is no other."""
    found = [path for path in tree.files if _LIST.fullmatch(path)]
    return found or [path for path in tree.files if _VIEW_1.fullmatch(path)]


def _rows(pairs: Pairs, place: dict[Called, int], where: str, known: Published | None, lost: str = "") -> PairRows:
    """A list in the source's numbers."""
    fold, rule = pairs.folds()
    left, right = (np.array([place[called] for called in side], dtype=np.int64) for side in (pairs.left, pairs.right))
    calls = []
    for one, other, line in zip(pairs.left, pairs.right, pairs.line, strict=True):
        calls.append(f"{shown(one if place[one] < 0 else other)} (line {line})")
    same = np.array(pairs.same, dtype=np.bool_)
    return PairRows(where, left, right, same, fold, rule, known, calls, lost)


def _say_strays(source: Source, paths: Sequence[str], beside: str) -> None:
    if paths:
        more = ", ..." if len(paths) > 3 else ""
        source.remarks.append(f"{len(paths):,} images beside {beside}, left out: {', '.join(paths[:3])}{more}")


def _say_unlabelled(source: Source) -> None:
    if source.names == (UNLABELLED,):
        source.remarks.append("the images are numbered, so whose they are is not known")


def read_rfw(tree: Tree) -> Source:
    """RFW: images below `data/<race>/<person>`, pairs, people and landmarks in `txts/<race>`; a race is a domain."""
    lists = {m[2]: m[0] for path in tree.files if (m := re.fullmatch(r"(.*?)(\w+)_pairs\.txt", path))}
    races: list[str] = []
    paths, identities = [], []
    every = images_in(tree)
    beside = {race: path.partition("txts/")[0] if "txts/" in path else "" for race, path in lists.items()}
    raced = [path for path in every if path.count("/") > 1 and path.split("/")[-3] in lists]
    for path in [path for path in raced if path.startswith(beside[path.split("/")[-3]])] or raced:
        paths.append(path)
        races.append(path.split("/")[-3])
        identities.append(path.split("/")[-2])
    domains = tuple(sorted(lists))
    source = of_files(tree, paths, identities)
    source.domain, source.domains = np.array([domains.index(race) for race in races], dtype=np.int64), domains
    _say_strays(source, sorted(set(every) - set(paths)), "those of the lists' folder")
    _say_both(source, races, identities)
    rows: dict[str, PairRows] = {}
    for race in domains:
        own = [place for place, other in enumerate(races) if other == race]
        pairs = parse_pairs(text_of(tree, lists[race]), lists[race])
        finder = Finder([paths[place] for place in own])
        chosen = choose(pairs, finder, set(), lists[race])
        place = {called: own[number] if number >= 0 else -1 for called, number in chosen.items()}
        known = replace(PUBLISHED[r"(?<![a-z])rfw"], name=f"RFW, {race}")
        rows[f"pairs.{race.lower()}"] = _rows(pairs, place, lists[race], known)
        source.notes += _compare_people(tree, lists[race], race, [identities[place] for place in own])
    _align_rfw(tree, source, paths, lists)
    return with_pairs(source, rows)


def _say_both(source: Source, races: Sequence[str], identities: Sequence[str]) -> None:
    """Name the people who are in two races: each is one person of the set, with images in two domains."""
    homes = Counter(person for person, _ in set(zip(identities, races, strict=True)))
    both = sorted(person for person, count in homes.items() if count > 1)
    if both:
        more = ", ..." if len(both) > 3 else ""
        source.notes.append(
            f"{len(both):,} people are in two races ({', '.join(both[:3])}{more}): each is one person here, with every "
            "image in the domain of its own race"
        )


def _align_rfw(tree: Tree, source: Source, paths: Sequence[str], lists: dict[str, str]) -> None:
    """Five points of each image from `<race>_lmk.txt`, unless the images are faces that were aligned before."""
    place = {"/".join(path.split("/")[-3:]): number for number, path in enumerate(paths)}
    points = np.full((len(source), 5, 2), np.nan, np.float32)
    there = set(tree.files)
    for pairs in lists.values():
        path = pairs.replace("_pairs.txt", "_lmk.txt")
        for number, line in enumerate(text_of(tree, path).splitlines() if path in there else [], 1):
            words = line.split()
            if words and len(words) != 12:
                raise FedVisageError(f"{path}, line {number} has {len(words)} words, not a path and 11 numbers")
            key = "/".join(words[0].replace("\\", "/").split("/")[-3:]) if words else ""
            if key in place:
                points[place[key]] = _points(words[2:], f"{path}, line {number}")
    known = np.flatnonzero(np.isfinite(points).all(axis=(1, 2)))
    if not len(known):
        source.notes.append("there are no landmarks: images are taken as they are")
        return
    if all(_outside(tree, paths[number], points[number]) for number in known[:: max(1, len(known) // 3)][:3]):
        source.notes.append("the landmarks are those of larger images, so these are taken as they are: aligned before")
        return
    source.landmarks, source.aligns = points, True


def _points(words: Sequence[str], where: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        points = np.array([float(word) for word in words]).reshape(5, 2)
    except ValueError as error:
        raise FedVisageError(f"{where}: {error}") from None
    if (np.abs(points) > LARGEST).any():
        raise FedVisageError(f"{where}: no image is so large that it holds these landmarks")
    return points


def _outside(tree: Tree, path: str, points: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> bool:
    """Whether landmarks lie outside their image; not so where it cannot be read."""
    try:
        return bool((points >= open_image(tree.read(path)).size).any())
    except FedVisageError:
        return False


def _compare_people(tree: Tree, pairs: str, race: str, identities: Sequence[str]) -> list[str]:
    """What `<race>_people.txt` says that is not so: a person and a number of images per line."""
    path = pairs.replace("_pairs.txt", "_people.txt")
    if path not in set(tree.files):
        return []
    said = {}
    for number, line in enumerate(text_of(tree, path).splitlines(), 1):
        words = line.split()
        if len(words) >= 2:
            said[words[0]] = whole(words[1], f"{path}, line {number}")
    there = Counter(identities)
    different = [person for person in said if there[person] != said[person]]
    if not different:
        return []
    return [f"{race}: {len(different):,} people have another number of images than {path} says"]


CFP_EACH = {"F": (10, "frontal"), "P": (4, "profile")}
"""Images of each person, by which CFP numbers them."""
CFP_PEOPLE = 500


def read_cfp(tree: Tree, which: str = "FP") -> Source:
    """CFP: `Protocol/Pair_list_F.txt` and `_P.txt` number the images, `Protocol/Split/<which>/<fold>` pairs them."""
    paths = [path for path in images_in(tree) if path.split("/")[-2:-1] and path.split("/")[-2] in SIDES]
    source = of_files(tree, paths, [path.split("/")[-3] if path.count("/") > 1 else "" for path in paths])
    _say_strays(source, sorted(set(images_in(tree)) - set(paths)), "those in `frontal` and `profile`")
    numbers = {side: _numbered_images(tree, side, source) for side in sorted(set(which))}
    pairs = Pairs(fold=[])
    splits = sorted(path for path in tree.files if re.fullmatch(rf".*Split/{which}/\d+/(same|diff)\.txt", path))
    if not splits:
        raise FedVisageError(f"{tree.name} has no Split/{which}/01/same.txt and so on, as CFP's Protocol folder has")
    for path in splits:
        _read_split(text_of(tree, path), path, which, numbers, pairs)
    if not pairs.same:
        raise FedVisageError(f"the files in Split/{which} of {tree.name} hold no pairs")
    chosen = choose(pairs, Finder(paths), set(), splits[0])
    where = f"Split/{which}"
    return with_pairs(source, {"pairs": _rows(pairs, chosen, where, published(f"cfp_{which.lower()}"))})


def _read_split(text: str, path: str, which: str, numbers: dict[str, dict[int, str]], pairs: Pairs) -> None:
    """One file of a fold: two image numbers a line."""
    fold = whole(path.split("/")[-2], path)
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or pairs.fold is None:
            raise FedVisageError(f"{path}, line {number}: '{line.strip()[:60]}' is no pair")
        called, here = [], f"{path}, line {number}"
        for side, word in zip(which, words, strict=True):
            image = whole(word, here)
            if image not in numbers[side]:
                raise FedVisageError(f"{here} names image {word} that Pair_list_{side}.txt does not have")
            called.append(numbers[side][image])
        pairs.add(called[0], called[1], path.endswith("same.txt"), number)
        pairs.fold.append(fold)


def _numbered_images(tree: Tree, side: str, source: Source) -> dict[int, str]:
    """What the numbers of the splits stand for, as person, side and file: by the list, or as CFP numbers its images."""
    found = [path for path in tree.files if re.fullmatch(rf"(?:.*/)?(?:Pair|image)_list_{side}\.txt", path)]
    if len(found) > 1:
        raise FedVisageError(f"{tree.name} should hold one Pair_list_{side}.txt and holds {len(found)}")
    if not found:
        each, name = CFP_EACH[side]
        rule = f"images are numbered as in CFP, {each} {name} ones a person"
        source.notes.append(f"there is no Pair_list_{side}.txt: {rule}")
        return {
            n: f"{1 + (n - 1) // each:03d}/{name}/{1 + (n - 1) % each:02d}.jpg" for n in range(1, CFP_PEOPLE * each + 1)
        }
    table = {}
    for number, line in enumerate(text_of(tree, found[0]).splitlines(), 1):
        words = line.split()
        if words and len(words) != 2:
            raise FedVisageError(f"{found[0]}, line {number}: '{line.strip()[:60]}' should be a number and a path")
        if words:
            image = whole(words[0], f"{found[0]}, line {number}")
            table[image] = "/".join(words[1].replace("\\", "/").split("/")[-3:])
    return table
