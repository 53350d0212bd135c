"""What FedFR's scripts make of MS1MV2: public people, parties, and each person's held-out images, as record files.

`split_pretrain.py` writes `split_pretrain_6000/client_0000/train.rec`, with people from 0 in each file. `split_FL.py`
writes `split_train_i4000c0040/client_0000/train.rec` and so on, with people from 0 and the number of the first one in
record 0. `local_veri_4000/test.rec` has the first 40 images of each person, `local_gallery_4000` the parties' again.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.manifest import image_lists, image_tallies
from fedvisage.faces.importing.recordio import RecordImages, open_images, refuse_archive
from fedvisage.faces.importing.source import Source
from fedvisage.faces.records import Indices

_TRAIN, _PUBLIC, _TEST = r"split_train_i\d+c\d+", r"split_pretrain_\d+", r"local_veri_\d+"
SIGN = rf"{_TRAIN}/client_\d+/train\.rec"
"""The files of parties by which the scripts' folder is recognised."""


def read_fedfr(path: Path) -> Source:
    """A source of the images that the scripts wrote, with the lists `public`, `party-00.train`, `party-00.held-out`."""
    refuse_archive(path)
    parties = [open_images(rec) for rec in _files(path, _TRAIN, "client_*/train.rec")]
    if not parties:
        raise FedVisageError(f"{path} has no parties in a folder such as split_train_i4000c0040/client_0000")
    public = [open_images(rec) for rec in _files(path, _PUBLIC, "client_*/train.rec")]
    tests = [open_images(rec) for rec in _files(path, _TEST, "test.rec")]
    digits = max(2, len(str(len(parties) - 1)))
    called = [f"party-{number:0{digits}d}" for number in range(len(parties))]
    people, lists, home = list[Indices](), list[str](), dict[int, str]()
    for name, images in zip(called, parties, strict=True):
        own = images.people + _first_person(images)
        for person in np.unique(own).tolist():
            if home.setdefault(person, name) != name:
                raise FedVisageError(f"{images.file.path}: person {person} is in {home[person]}, too")
        people.append(own)
        lists += [f"{name}.train"] * len(own)
    for images in tests:
        strangers = [person for person in np.unique(images.people).tolist() if person not in home]
        if strangers:
            raise FedVisageError(f"{images.file.path}: person {strangers[0]} is in no party")
        people.append(images.people)
        lists += [f"{home[person]}.held-out" for person in images.people.tolist()]
    first = 1 + max(chain.from_iterable(own.tolist() for own in people))
    split = first
    for images in public:
        people.append(images.people + first)
        first += 1 + int(images.people.max())
        lists += ["public"] * len(images.people)
    numbers, labels = np.unique(np.concatenate(people), return_inverse=True)
    names = tuple(f"person-{n:05d}" if n < split else f"public-{n - split:05d}" for n in numbers.tolist())
    source = _source([*parties, *tests, *public], names, labels.astype(np.int64))
    source.lists = lambda kept: image_lists(kept, source.labels, lists)
    source.tally = lambda there: image_tallies(source, there, lists, str(path))
    return source


def _files(path: Path, folder: str, pattern: str) -> list[Path]:
    """The files in the one folder of that name, here or below; none where there is no such folder."""
    found = sorted(entry for entry in path.rglob("*") if entry.is_dir() and re.fullmatch(folder, entry.name))
    if len(found) > 1:
        names = " and ".join(str(entry.relative_to(path)) for entry in found[:2])
        raise FedVisageError(f"{path} holds {names}: keep one of them there")
    return sorted(found[0].glob(pattern)) if found else []


def _first_person(images: RecordImages) -> int:
    """The number of a party's first person among everybody's, which record 0 has behind two others."""
    number = images.said[2] if len(images.said) > 2 else -1.0
    if not 0 <= number < 2**24 or number != int(number):
        raise FedVisageError(f"{images.file.path}: its record 0 does not say which number its first person has")
    return int(number)


def _source(files: list[RecordImages], names: tuple[str, ...], labels: Indices) -> Source:
    """The images of several files, one file after the other."""
    starts = np.cumsum([0, *(len(images.places) for images in files)])

    def place(number: int) -> tuple[RecordImages, int]:
        which = int(np.searchsorted(starts, number, side="right")) - 1
        return files[which], number - int(starts[which])

    def read(number: int) -> bytes:
        images, own = place(number)
        return images.read(own)

    def called(number: int) -> str:
        images, own = place(number)
        return f"{images.file.path.parent.name}/{images.called(own)}"

    return Source(names, labels, read, called, keeps_duplicates=True)
