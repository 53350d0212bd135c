"""A partition: the images of the public, of each party with its role, and of the people nobody trains on.

It names every image it uses and is saved with the run as readable JSON. No image is both trained on and evaluated on,
and nobody who is trained on is evaluated on, except by a party with its own people's held-out images.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import LEARNERS, ROLES, TARGET, TRAINER, VALIDATOR
from fedvisage.faces.faceset import Faces, FaceSet, ImageSource, Indices, bare_images

POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Share:
    """The images of one party, as numbers in the face set."""

    role: str
    train: tuple[int, ...]
    held_out: tuple[int, ...] = ()
    unlabelled: tuple[int, ...] = ()
    """Further images, without labels: only where images are pooled."""


@dataclass(frozen=True)
class Partition:
    """Images of the public identities, of each party, and of the identities nobody trains on."""

    public: tuple[int, ...]
    test: tuple[int, ...]
    parties: Mapping[str, Share]
    validation: tuple[int, ...] = ()
    """Like the test, for choosing hyper-parameters."""
    probes: tuple[int, ...] = ()
    """Those of the test images that are looked for among the others."""

    @property
    def judging(self) -> tuple[int, ...]:
        """The images of all validators."""
        judges = (share for share in self.parties.values() if share.role == VALIDATOR)
        return tuple(sorted(index for share in judges for index in share.train))

    @property
    def gallery(self) -> tuple[int, ...]:
        """The test images that are no probes, where there are probes."""
        probes = set(self.probes)
        return tuple(index for index in self.test if index not in probes) if probes else ()

    def pooled(self, roles: Collection[str] = LEARNERS, unlabelled: Collection[str] = ()) -> Partition:
        """One party that holds what these roles hold, with labels or without: what federated learning may not have."""

        def images(roles: Collection[str], part: str) -> tuple[int, ...]:
            shares = [share for share in self.parties.values() if share.role in roles]
            return tuple(sorted({index for share in shares for index in getattr(share, part)}))

        labelled = [role for role in roles if role not in unlabelled]
        train, held_out = images(labelled, "train"), images(labelled, "held_out")
        if not train:
            raise FedVisageError(f"no party of this partition has images to pool: it has no {' or '.join(labelled)}")
        only = {POOLED: Share(TRAINER, train, held_out, images(unlabelled, "train"))}
        return Partition(self.public, self.test, only, self.validation, self.probes)

    def check(self, labels: Indices) -> None:
        """Refuse what is trained on and evaluated on at once, be it an image or a person."""
        learners = [share for share in self.parties.values() if share.role != VALIDATOR]
        validators = [share for share in self.parties.values() if share.role == VALIDATOR]
        trained = _all(self.public, *(share.train for share in learners))
        kept = {
            "the test": _all(self.test),
            "the validation": _all(self.validation),
            "the validators": _all(*(share.train + share.held_out for share in validators)),
        }
        held_out = _all(*(share.held_out for share in learners))
        for images in (trained, held_out, *kept.values()):
            if len(images) and not 0 <= images.min() <= images.max() < len(labels):
                raise FedVisageError(f"the partition names images beyond the {len(labels):,} of the face set")
        _refuse_both("training", trained, "a party's held-out images", held_out, "images")
        for name, share in self.parties.items():
            if share.held_out and len(np.setdiff1d(labels[_all(share.held_out)], labels[_all(share.train)])):
                raise FedVisageError(f"party '{name}' holds images out of people it does not train on")
        for number, (where, images) in enumerate(kept.items()):
            people = np.unique(labels[images])
            _refuse_both("training", np.unique(labels[np.concatenate([trained, held_out])]), where, people, "people")
            for other, others in list(kept.items())[:number]:
                _refuse_both(other, np.unique(labels[others]), where, people, "people")
        if not set(self.probes) <= set(self.test):
            raise FedVisageError("the partition's probes are not among its test images")

    def save(self, path: Path, names: Sequence[str], labels: Indices) -> None:
        """Write it as JSON, with the identities' names beside the image numbers."""

        def identities(images: Sequence[int]) -> list[str]:
            return [names[label] for label in np.unique(labels[_all(images)])]

        def pieces() -> Iterator[bytes]:
            yield b"{"
            for name in ("public", "test", "validation"):
                images = getattr(self, name)
                entry = json.dumps({"identities": identities(images), "images": images})
                yield f'"{name}": {entry},\n'.encode()
            yield f'"probes": {json.dumps(self.probes)},\n'.encode()
            yield b'"parties": {'
            for number, (name, share) in enumerate(self.parties.items()):
                own = {name: images for name, images in asdict(share).items() if name != "unlabelled"}
                entry = json.dumps({"identities": identities(share.train), **own})
                yield f"{',' if number else ''}\n{json.dumps(name)}: {entry}".encode()
            yield b"\n}}\n"

        write_atomically(path, pieces())

    @staticmethod
    def load(path: Path) -> Partition:
        """Read it back."""
        try:
            table = json.loads(path.read_text("utf-8"))
            parties = {
                str(name): Share(_role(entry["role"]), _numbers(entry["train"]), _numbers(entry["held_out"]))
                for name, entry in table["parties"].items()
            }
            validation = _numbers(table.get("validation", {"images": ()})["images"])
            parts = _numbers(table["public"]["images"]), _numbers(table["test"]["images"])
            return Partition(*parts, parties, validation, _numbers(table.get("probes", ())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedVisageError(f"cannot read the partition {path}: {error}") from None


def held_out_count(images: int, share: float, first: int | None) -> int:
    """Images of a person that are held out: the first ones, or a share of them; one at least is trained on."""
    return min(first or round(share * images), images - 1)


def _numbers(images: Iterable[object]) -> tuple[int, ...]:
    numbers = tuple(images)
    if not all(type(number) is int for number in numbers):
        raise ValueError("images are whole numbers")
    return numbers  # type: ignore[return-value]


def _role(name: str) -> str:
    if name not in ROLES:
        raise ValueError(f"'{name}' is no role")
    return name


def _all(*images: Sequence[int]) -> Indices:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in images] or [np.empty(0, np.int64)])


def _refuse_both(one: str, these: Indices, other: str, those: Indices, what: str) -> None:
    both = len(np.intersect1d(these, those))
    if both:
        raise FedVisageError(f"{both} {what} are in {one} and in {other}")


class PartyFaces:
    """All images one party can reach (see `core.method.PartyFaces`); looked up when first asked for.

    The images of a target have no labels, and none can be reached from here but those of the public: not by way of the
    source of the images either, nor of the folder it reads.
    """

    def __init__(self, whole: FaceSet, share: Share, public: Sequence[int] = ()) -> None:
        self._share = share
        self._public: Sequence[int] | Faces = public
        self._labelled = share.role != TARGET
        if not self._labelled:
            images = bare_images(whole.images, _all(public, share.train, share.held_out))
            self._public = Faces(_labelled_only(whole, images, public), public) if len(public) else ()
            whole = _without_labels(whole, images)
        elif share.unlabelled:
            labelled = (*public, *share.train, *share.held_out)
            whole = _labelled_only(whole, bare_images(whole.images, _all(labelled, share.unlabelled)), labelled)
        self._whole = whole

    @cached_property
    def train(self) -> Faces:
        """What it trains on."""
        return Faces(self._whole, self._share.train, self._labelled)

    @cached_property
    def held_out(self) -> Faces | None:
        """Further images of the same people."""
        if not self._share.held_out:
            return None
        like = self.train if self._labelled else None
        return Faces(self._whole, self._share.held_out, self._labelled, like)

    @cached_property
    def unlabelled(self) -> Faces | None:
        """Further images without labels, where images are pooled."""
        if not self._share.unlabelled:
            return None
        return Faces(_without_labels(self._whole, self._whole.images), self._share.unlabelled, False)

    @cached_property
    def public(self) -> Faces | None:
        """Public people."""
        faces = self._public if isinstance(self._public, Faces) else Faces(self._whole, self._public)
        return faces if len(faces) else None


def _labelled_only(whole: FaceSet, images: ImageSource, labelled: Sequence[int]) -> FaceSet:
    """The same images, of which only these have their labels and only the people of these their names."""
    chosen = _all(labelled)
    labels = np.zeros_like(whole.labels)
    labels[chosen] = whole.labels[chosen]
    shown = set(labels[chosen].tolist())
    names = tuple(name if person in shown else "nobody" for person, name in enumerate(whole.names))
    return FaceSet(images, labels, names, features=whole.features)


def _without_labels(whole: FaceSet, images: ImageSource) -> FaceSet:
    """The same images, of nobody."""
    nobody = np.broadcast_to(np.int64(0), len(whole))
    return FaceSet(images, nobody, ("nobody",), features=whole.features)


def party_faces(whole: FaceSet, partition: Partition, party: str) -> tuple[str, PartyFaces]:
    """The role of a party and its images."""
    share = partition.parties[party]
    return share.role, PartyFaces(whole, share, partition.public)
