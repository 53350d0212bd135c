"""The people of a face set from whom the parts of a partition are drawn, each at most once.

Nothing here depends on the order of files: people are drawn by name, and each person's images by that name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedvisage.config import Names, Part, People
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import FaceSet, Indices, read_digests
from fedvisage.faces.lists import PairList, list_names, open_list

_PERSON = re.compile(r"[^\W\d_]+(?:[\s_.'-]+[^\W\d_]+)+")
"""What looks like the name of a person, and not like a number that another set may have given to somebody else."""


def read_names(names: Names) -> tuple[str, ...]:
    """The names, or those in a file with one per line; empty lines and lines that begin with # do not count."""
    if not isinstance(names, str):
        return names
    try:
        lines = [line.strip() for line in Path(names).read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot read the names in {names}: {error}") from None
    return tuple(line for line in lines if line and not line.startswith("#"))


class Pool:
    """The people nobody has yet, in the order they are drawn."""

    def __init__(self, faces: FaceSet, streams: Streams, exclude: Names = (), least: int = 1) -> None:
        self.faces, self.streams = faces, streams
        self._least = least
        self._images = dict(_by_identity(faces.labels))
        self._domain = faces.domain_of_people()
        order = sorted(self._images, key=lambda person: faces.names[person])
        streams.numpy("identities").shuffle(order)
        excluded = self._called(read_names(exclude)) if exclude else set()
        self.left = [person for person in order if person not in excluded]
        self._taken: dict[int, str] = {}
        self._refuse_namesakes()
        self._refuse_shared_images()

    def take(self, who: Part, part: str) -> list[int]:
        """The people asked for, who are then no longer in the pool; `part` says who asks."""
        if isinstance(who, int):
            if not who:
                return []
            who = People(count=who)
        if isinstance(who, tuple):
            return [person for one in who for person in self.take(one, part)]
        among, least, most = self._among(who, part), who.min_images or self._least, who.most_images
        domains = self._domains(who.domain)
        chosen = [
            person
            for person in self.left
            if least <= len(self._images[person]) <= (most or len(self._images[person]))
            and (among is None or person in among)
            and (domains is None or self._domain[person] in domains)
        ]
        if len(chosen) < (who.count or 1):
            asked = f"{who.count:,} people" if who.count else "people"
            raise FedVisageError(f"partition.{part} asks for {asked}, but only {len(chosen):,} are left")
        chosen = chosen[: who.count]
        self._taken |= dict.fromkeys(chosen, part)
        self.left = [person for person in self.left if person not in self._taken]
        return chosen

    def images(self, person: int, most: int | None = None) -> Indices:
        """The images of one person, in the order of the set; not more than `most`."""
        images = self._images[person]
        if most is None or len(images) <= most:
            return images
        return np.sort(self.shuffled("cap", person, images)[:most])

    def gather(self, people: Sequence[int], most: int | None = None) -> tuple[int, ...]:
        """The images of these people; not more than `most` of each."""
        return tuple(int(index) for person in sorted(people) for index in self.images(person, most))

    def probes(self, people: Sequence[int], each: int) -> tuple[int, ...]:
        """Some images of everybody who has more than those."""
        having = [person for person in people if len(self._images[person]) > each > 0]
        drawn = [self.shuffled("probes", person, self._images[person])[:each] for person in having]
        return tuple(sorted(int(index) for images in drawn for index in images))

    def shuffled(self, purpose: str, person: int, images: Indices) -> Indices:
        """Images of a person in an order drawn for that person and purpose."""
        own = images.copy()
        self.streams.numpy(purpose, self.faces.names[person]).shuffle(own)
        return own

    def _among(self, who: People, part: str) -> set[int] | None:
        """Who is asked for by name or fold; None where that is not how they are asked for."""
        if not who.names and not who.folds:
            return None
        people = self._called(read_names(who.names), part) if who.names else set(self._images)
        if who.folds:
            people &= self._in_folds(who.folds)
        for person in sorted(people & self._taken.keys()):
            other = self._taken[person]
            raise FedVisageError(f"'{self.faces.names[person]}' is in partition.{other} and in partition.{part}")
        return people

    def _called(self, names: Sequence[str], part: str = "") -> set[int]:
        """The people of these names, with or without the domain; `part` demands that everybody is there."""
        known: dict[str, list[int]] = defaultdict(list)
        for person in self._images:
            full = self.faces.names[person]
            known[full].append(person)
            if len(self.faces.folders) > 1:
                known[full.partition("/")[2]].append(person)
        absent = [name for name in names if name not in known]
        if part and absent:
            raise FedVisageError(f"partition.{part} names people who are not in these faces: {', '.join(absent[:5])}")
        return {person for name in names for person in known.get(name, ())}

    def _in_folds(self, folds: Sequence[int]) -> set[int]:
        """Everybody in these folds of the pairs of any of the set's folders."""
        people: set[int] = set()
        known: set[int] = set()
        for folder, start in self.faces.folders:
            if list_names(folder).get("pairs") != "pairs":
                continue
            pairs = open_list(folder, "pairs")
            assert isinstance(pairs, PairList)
            known |= set(pairs.fold.tolist())
            chosen = np.isin(pairs.fold, folds)
            images = np.concatenate([pairs.left[chosen], pairs.right[chosen]]) + start
            if len(images) and not 0 <= images.min() <= images.max() < len(self.faces):
                raise FedVisageError(f"the pairs in {folder} name images that are not there")
            people |= set(self.faces.labels[images].tolist())
        absent = sorted(set(folds) - known)
        if absent:
            raise FedVisageError(f"these faces have no pairs of fold {absent[0]}: known folds are {sorted(known)}")
        return people

    def _domains(self, name: str | None) -> set[int] | None:
        if name is None:
            return None
        domains = self.faces.domains
        found = {number for number, own in enumerate(domains) if own == name or own.startswith(f"{name}/")}
        if not found:
            raise FedVisageError(f"these faces have no domain '{name}': {nearest(name, domains)}")
        return found

    def _refuse_namesakes(self) -> None:
        """One person in two folders would be trained on in one part and tested on in another."""
        if len(self.faces.folders) < 2:
            return
        seen: dict[str, str] = {}
        for name in sorted(self.faces.names[person] for person in self.left):
            own = name.partition("/")[2]
            if not _PERSON.fullmatch(own):
                continue
            plain = re.sub(r"[\s_.'-]+", " ", own).casefold()
            if plain in seen:
                raise FedVisageError(f"'{seen[plain]}' and '{name}' may be one person: name one in partition.exclude")
            seen[plain] = name

    def _refuse_shared_images(self) -> None:
        """One image in two folders would be so, too, under whatever names."""
        if len(self.faces.folders) < 2:
            return
        ends = [*(start for _, start in self.faces.folders[1:]), len(self.faces)]
        left = np.isin(self.faces.labels, self.left)
        seen, owner = np.empty(0, np.uint64), np.empty(0, np.int64)
        for (folder, start), end in zip(self.faces.folders, ends, strict=True):
            digests = read_digests(folder, end - start)
            if digests is None:
                continue
            own = np.flatnonzero(left[start:end])
            both, one, other = np.intersect1d(seen, digests[own], return_indices=True)
            if len(both):
                pair = (self.faces.names[self.faces.labels[n]] for n in (owner[one[0]], own[other[0]] + start))
                raise FedVisageError(
                    f"'{next(pair)}' and '{next(pair)}' have an image in common ({len(both):,} images are in two "
                    "folders): name one of them in partition.exclude"
                )
            seen, owner = np.concatenate([seen, digests[own]]), np.concatenate([owner, own + start])


def _by_identity(labels: Indices) -> Iterator[tuple[int, Indices]]:
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return ((int(labels[block[0]]), block) for block in np.split(order, cuts) if len(block))
