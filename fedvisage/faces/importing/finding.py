"""Images of a folder by what lists call them, and who is in an image by where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.pairs import Called, Pairs, flat_name, numbered_name
from fedvisage.faces.importing.source import MOST_MISSING, UNLABELLED

ALIGNED = "aligned images"
"""The folder of CALFW and CPLFW that results are reported on, beside the photos that it was made from."""
SIDES = frozenset({"frontal", "profile"})
"""CFP's folders within a person's."""


@dataclass(frozen=True)
class PathMapping:
    """How the paths of a list are brought to the folder at hand."""

    strip: int = 0
    """Leading folders to take off every path."""
    endings: bool = False
    """Whether `a.jpg` may be `a.png` or `a.JPG`."""

    def key(self, path: str) -> str:
        """What a path of a list, or the end of a file's path, is looked up by; empty where nothing is left."""
        parts = [part for part in path.strip().replace("\\", "/").split("/") if part not in ("", ".")]
        return self.ending("/".join(parts[self.strip :]))

    def ending(self, path: str) -> str:
        """The path, without its ending where any will do."""
        name = path.rpartition("/")[2]
        return path[: len(path) - len(name)] + name.rpartition(".")[0] if self.endings and "." in name else path

    @property
    def words(self) -> str:
        """The options that say so."""
        return " ".join([f"--strip {self.strip}"] * bool(self.strip) + ["--endings"] * self.endings)


AS_LISTED = PathMapping()


class Finder:
    """Finds images by what lists call them: the end of their path, or a person and a number."""

    def __init__(self, paths: Sequence[str], folder: str = "", mapping: PathMapping = AS_LISTED) -> None:
        self.paths, self.mapping = paths, mapping
        self._by_end: dict[str, list[int]] = {}
        self._by_number: dict[tuple[str, int], list[int]] = {}
        for place, path in enumerate(paths):
            own = mapping.ending(path)
            parts = f"{folder}/{own}".split("/") if folder else own.split("/")
            for length in range(1, len(parts) + 1):
                self._by_end.setdefault("/".join(parts[-length:]), []).append(place)
            if numbered := numbered_name(path):
                around = path.split("/")[-2:-1]
                for name in {numbered[0], *around}:
                    self._by_number.setdefault((name, numbered[1]), []).append(place)

    def places(self, called: Called) -> list[int]:
        """The images that could be meant."""
        if isinstance(called, tuple):
            return self._by_number.get(called, [])
        key = self.mapping.key(called)
        found = self._by_end.get(key, [])
        whole = [place for place in found if self.mapping.ending(self.paths[place]) == key]
        return whole or found

    def share(self, paths: Sequence[str]) -> float:
        """The share of different paths that are found; none where the mapping makes several into one."""
        keys = {self.mapping.key(path) for path in paths}
        return sum(key in self._by_end for key in keys) / max(1, len(keys)) if len(keys) == len(set(paths)) else 0.0


def remedy(paths: Sequence[str], folder: str, calls: Sequence[Called], mapping: PathMapping) -> str:
    """The options with which nearly all paths of a list are found; empty where there are none, or none are needed."""
    named = [called for called in calls if isinstance(called, str)]
    if not named or Finder(paths, folder, mapping).share(named) >= 1 - MOST_MISSING:
        return ""
    deepest = min(len(path.replace("\\", "/").strip("/").split("/")) for path in named)
    for endings in (mapping.endings, True):
        finder = Finder(paths, folder, PathMapping(0, endings))
        for strip in range(deepest):
            finder.mapping = PathMapping(strip, endings)
            if finder.share(named) >= 1 - MOST_MISSING:
                return finder.mapping.words
    return ""


def home_of(paths: Sequence[str], found: Sequence[Sequence[int]], where: str, tree: str) -> str:
    """The folder, ending in a slash, that holds a list's images; empty for the top.

    Where several folders hold all of them, CALFW's and CPLFW's `aligned images` go before their photos.
    """
    several = [places for places in found if len(places) > 1]
    if several:
        counts = Counter(root for places in several for root in {_holder(paths[place]) for place in places})
        full = [root for root, count in counts.items() if count >= (1 - MOST_MISSING) * len(several)]
        aligned = [root for root in full if root.rstrip("/").rpartition("/")[2] == ALIGNED]
        if len(aligned) == 1 or len(full) == 1:
            return (aligned or full)[0]
        if full:
            first, second = sorted(full)[:2]
            raise FedVisageError(
                f"the images of {where} are in '{first}' and in '{second}': name more of their paths in the list, or "
                f'import one of the two folders with --pairs, such as "{tree}/{first.rstrip("/")}"'
            )
    holders = {_holder(paths[place]) for places in found if len(places) == 1 for place in places}
    return _common(holders)


def strays(paths: Sequence[str], home: str, found: Iterable[int]) -> set[int]:
    """The images that are outside a list's folder, or loose in it where people have folders of their own."""
    inside = {place for place, path in enumerate(paths) if path.startswith(home)}
    found = set(found) & inside
    loose = {place for place in inside if "/" not in paths[place][len(home) :]}
    return (set(range(len(paths))) - inside) | (set() if found & loose else loose)


def _holder(path: str) -> str:
    """The folder of an image, or that of its person's folder, ending in a slash."""
    folder = path.rpartition("/")[0]
    name = folder.rpartition("/")[2]
    return f"{folder[: len(folder) - len(name)]}" if name and flat_name(path) == name else f"{folder}/" * bool(folder)


def _common(folders: Iterable[str]) -> str:
    """The deepest folder that is above all of these, ending in a slash."""
    split = [folder.split("/")[:-1] for folder in folders]
    if not split:
        return ""
    first, last = min(split), max(split)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return "".join(f"{part}/" for part in first[:same])


def choose(pairs: Pairs, finder: Finder, away: set[int], where: str) -> dict[Called, int]:
    """The image of everything that a list names; -1 where there is none, and refused where it could be several."""
    chosen: dict[Called, int] = {}
    for side in (pairs.left, pairs.right):
        for called, line in zip(side, pairs.line, strict=True):
            if called not in chosen:
                places = [place for place in finder.places(called) if place not in away]
                if len(places) > 1:
                    first, second = (finder.paths[place] for place in places[:2])
                    raise FedVisageError(
                        f"{where}, line {line}: {shown(called)} could be any of several images "
                        f"('{first}', '{second}'): name more of its path"
                    )
                chosen[called] = places[0] if places else -1
    return chosen


def shown(called: Called) -> str:
    """What a list calls an image, for messages."""
    return f"'{called[:80]}'" if isinstance(called, str) else f"image {called[1]} of '{called[0][:60]}'"


def identities_of(paths: Sequence[str]) -> list[str]:
    """The person of each image file: its folder below the folder all are in, or its name without the number.

    CFP's people are the folders above `frontal` and `profile`. Files in one folder that are only numbered are nobody's.
    """
    folders = [path.rpartition("/")[0] for path in paths]
    if len(set(folders)) <= 1:
        names = [flat_name(path) for path in paths]
        return [UNLABELLED] * len(names) if all(map(str.isdecimal, names)) else names
    if all(folder.rpartition("/")[2] in SIDES for folder in folders):
        folders = [folder.rpartition("/")[0] for folder in folders]
    common = _common({f"{folder}/" for folder in folders})
    below = {folder: f"{folder}/"[len(common) :].rstrip("/") for folder in set(folders)}
    return [below[folder] or flat_name(path) for folder, path in zip(folders, paths, strict=True)]
