"""From identities to parties: who is public, who belongs to which party, and who is only tested on.

A partition names every image it uses, is saved with the run as readable JSON, and does not depend on the order of
files: identities are drawn by name. No image is both trained on and tested on, and test identities belong to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedvisage.config import Partition as Settings
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import TRAINER, VALIDATOR
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import Faces, FaceSet, Indices

POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Share:
    """The images of one party, as numbers in the face set."""

    role: str
    train: tuple[int, ...]
    held_out: tuple[int, ...] = ()


@dataclass(frozen=True)
class Partition:
    """Images of the public identities, of each party, and of the identities nobody trains on."""

    public: tuple[int, ...]
    test: tuple[int, ...]
    parties: Mapping[str, Share]

    def pooled(self) -> Partition:
        """One party that holds everything the trainers hold: the upper bound that federated learning may not have."""
        trainers = [share for share in self.parties.values() if share.role != VALIDATOR]
        train = tuple(sorted({index for share in trainers for index in share.train}))
        held_out = tuple(sorted({index for share in trainers for index in share.held_out}))
        return Partition(self.public, self.test, {POOLED: Share(TRAINER, train, held_out)})

    def save(self, path: Path, names: Sequence[str], labels: Indices) -> None:
        """Write it as JSON, with the identities' names beside the image numbers."""

        def identities(images: Sequence[int]) -> list[str]:
            return [names[label] for label in np.unique(labels[list(images)])]

        def pieces() -> Iterator[bytes]:
            for name, images in (("public", self.public), ("test", self.test)):
                entry = json.dumps({"identities": identities(images), "images": images})
                yield f'{"{" if name == "public" else ""}"{name}": {entry},\n'.encode()
            yield b'"parties": {'
            for number, (name, share) in enumerate(self.parties.items()):
                entry = json.dumps({"identities": identities(share.train), **asdict(share)})
                yield f"{',' if number else ''}\n{json.dumps(name)}: {entry}".encode()
            yield b"\n}}\n"

        write_atomically(path, pieces())

    @staticmethod
    def load(path: Path) -> Partition:
        """Read it back."""
        try:
            table = json.loads(path.read_text("utf-8"))
            parties = {
                name: Share(entry["role"], tuple(entry["train"]), tuple(entry["held_out"]))
                for name, entry in table["parties"].items()
            }
            return Partition(tuple(table["public"]["images"]), tuple(table["test"]["images"]), parties)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedVisageError(f"cannot read the partition {path}: {error}") from None


class PartyFaces:
    """All images one party can reach (see `core.method.PartyFaces`); looked up when first asked for."""

    def __init__(self, whole: FaceSet, share: Share, public: Sequence[int] = ()) -> None:
        self._whole, self._share, self._public = whole, share, public

    @cached_property
    def train(self) -> Faces:
        """What it trains on."""
        return Faces(self._whole, self._share.train)

    @cached_property
    def held_out(self) -> Faces | None:
        """Further images of the same people."""
        return Faces(self._whole, self._share.held_out, like=self.train) if self._share.held_out else None

    @cached_property
    def public(self) -> Faces | None:
        """Public people."""
        return Faces(self._whole, self._public) if self._public else None


def party_faces(whole: FaceSet, partition: Partition, party: str) -> tuple[str, PartyFaces]:
    """The role of a party and its images."""
    share = partition.parties[party]
    return share.role, PartyFaces(whole, share, partition.public)


def make_partition(faces: FaceSet, settings: Settings, streams: Streams) -> Partition:
    """Draw public, test, validator and party identities, in that order, and share each person's images out."""
    order = sorted(np.unique(faces.labels).tolist(), key=lambda label: faces.names[label])
    streams.numpy("identities").shuffle(order)
    images = _images_by_identity(faces.labels)
    reserved = settings.public + settings.test + settings.validators * settings.identities_per_validator
    left = len(order) - reserved
    if left < settings.parties:
        raise FedVisageError(
            f"{len(order)} identities are too few for {settings.public} public, {settings.test} test and "
            f"{settings.parties} parties with at least one each"
        )
    take = iter(order)
    public = [next(take) for _ in range(settings.public)]
    test = [next(take) for _ in range(settings.test)]
    parties: dict[str, Share] = {}
    for number in range(settings.validators):
        people = [next(take) for _ in range(settings.identities_per_validator)]
        parties[f"validator-{number:02d}"] = Share(VALIDATOR, _gather(images, people))
    digits = max(2, len(str(settings.parties - 1)))
    for number, count in enumerate(_sizes(settings, left, streams)):
        people = sorted(next(take) for _ in range(count))
        own = [(faces.names[person], images[person]) for person in people]
        parties[f"party-{number:0{digits}d}"] = _share(own, settings.held_out, streams)
    _check(parties)
    return Partition(_gather(images, public), _gather(images, test), parties)


def _images_by_identity(labels: Indices) -> dict[int, Indices]:
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return {int(labels[block[0]]): block for block in np.split(order, cuts)} if len(labels) else {}


def _gather(images: Mapping[int, Indices], people: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(index) for person in sorted(people) for index in images[person])


def _sizes(settings: Settings, left: int, streams: Streams) -> list[int]:
    """Identities per party."""
    count = settings.parties
    if settings.sizes == "log-normal":
        shares = np.exp(streams.numpy("sizes").standard_normal(count))
        sizes = np.floor(shares / shares.sum() * (left - count)).astype(int) + 1
        for place in np.argsort(-shares, kind="stable")[: left - int(sizes.sum())]:
            sizes[place] += 1
        return [int(size) for size in sizes]
    each = settings.identities_per_party or left // count
    if each * count > left:
        raise FedVisageError(f"{count} parties of {each} identities need {each * count}, but {left} are left")
    return [each] * count


def _share(people: Sequence[tuple[str, Indices]], held_out: float, streams: Streams) -> Share:
    train: list[int] = []
    kept: list[int] = []
    for name, images in people:
        own = images.copy()
        streams.numpy("held-out", name).shuffle(own)
        count = min(round(held_out * len(own)), len(own) - 1)
        kept += sorted(own[:count].tolist())
        train += sorted(own[count:].tolist())
    return Share(TRAINER, tuple(train), tuple(kept))


def _check(parties: Mapping[str, Share]) -> None:
    for name, share in parties.items():
        if len(share.train) < 2:
            raise FedVisageError(f"party '{name}' has {len(share.train)} training image; training needs at least 2")
