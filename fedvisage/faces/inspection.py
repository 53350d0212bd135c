"""A face set and a partition in numbers and pictures: counts, images per person, samples, bars of the parties."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import FaceSet, Indices, Pixels
from fedvisage.faces.lists import list_names, open_list
from fedvisage.faces.records import EncodedImages
from fedvisage.faces.shares import Partition

_EDGES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
_TRAIN, _HELD_OUT, _INK = (47, 93, 138), (160, 190, 215), (40, 40, 40)
_MOST_BARS = 60


def describe_faces(faces: FaceSet) -> dict[str, Any]:
    """Counts, sizes, images per person, domains and lists of a face set."""
    counts = np.bincount(faces.labels, minlength=len(faces.names))
    shown = counts[counts > 0]
    height, width = faces.images.read(np.zeros(min(1, len(faces)), np.int64)).shape[1:3]
    described: dict[str, Any] = {
        "images": len(faces),
        "identities": len(shown),
        "size": [int(width), int(height)],
        "stored": "encoded records" if isinstance(faces.images, EncodedImages) else "array",
        "images_per_identity": {
            "least": int(shown.min(initial=0) if not len(shown) else shown.min()),
            "median": float(np.median(shown)) if len(shown) else 0.0,
            "most": int(shown.max(initial=0)),
            "histogram": histogram(shown),
        },
        "domains": {},
        "lists": {},
        "columns": [name for name in ("score", "landmarks") if getattr(faces, name) is not None],
    }
    for number, domain in enumerate(faces.domains if faces.domain is not None else ()):
        own = faces.labels[faces.domain == number]
        described["domains"][domain] = {"identities": len(np.unique(own)), "images": len(own)}
    for folder, _ in faces.folders:
        for name, kind in list_names(folder).items():
            described["lists"][name] = {"kind": kind, "rows": len(open_list(folder, name))}
    return described


def histogram(counts: Indices) -> dict[str, int]:
    """How many people have how many images."""
    edges = [*_EDGES, np.inf]
    found = {}
    for low, high in itertools.pairwise(edges):
        people = int(((counts >= low) & (counts < high)).sum())
        name = f"{low:.0f}+" if high == np.inf else f"{low:.0f}" if high == low + 1 else f"{low:.0f}-{high - 1:.0f}"
        found[name] = people
    while found and not found[list(found)[-1]]:
        found.popitem()
    return found


def sample(faces: FaceSet, rows: int, columns: int) -> tuple[Pixels, list[str]]:
    """Images (rows, columns, H, W, 3) of people spread over the set who have enough, and their names."""
    people, counts = np.unique(faces.labels, return_counts=True)
    people = people[counts >= columns]
    if not len(people):
        raise FedVisageError(f"nobody has {columns} images; ask for fewer with --images")
    people = people[np.unique(np.linspace(0, len(people) - 1, min(rows, len(people))).astype(int))]
    chosen = np.stack([np.flatnonzero(faces.labels == person)[:columns] for person in people])
    pixels = faces.images.read(chosen.reshape(-1))
    return pixels.reshape(*chosen.shape, *pixels.shape[1:]), [faces.names[person] for person in people]


def describe_partition(partition: Partition, faces: FaceSet) -> dict[str, Any]:
    """People and images of each part, and of each party with its role."""

    def people(images: Sequence[int]) -> int:
        return len(np.unique(faces.labels[np.asarray(images, dtype=np.int64)]))

    parts = {name: getattr(partition, name) for name in ("public", "test", "validation")}
    described: dict[str, Any] = {
        name: {"identities": people(images), "images": len(images)} for name, images in parts.items() if images
    }
    if partition.probes:
        described["test"] |= {"probes": len(partition.probes), "gallery": len(partition.gallery)}
    used = [*parts.values(), *(share.train + share.held_out for share in partition.parties.values())]
    unused = len(np.unique(faces.labels)) - people([index for images in used for index in images])
    if unused:
        described["unused"] = {"identities": unused}
    described["parties"] = {
        name: {
            "role": share.role,
            "identities": people(share.train),
            "train": len(share.train),
            "held_out": len(share.held_out),
        }
        for name, share in partition.parties.items()
    }
    return described


def bars(counts: Sequence[int], width: int = 30) -> list[str]:
    """A bar of text per number."""
    most = max([*counts, 1])
    return ["█" * round(width * count / most) or ("▏" if count else "") for count in counts]


def draw_parties(parties: Mapping[str, Mapping[str, Any]], title: str) -> Image.Image:
    """A bar per party: images it trains on and images it holds out; of many parties the first."""
    names = list(parties)[:_MOST_BARS]
    font, row = ImageFont.load_default(size=12), 18
    margin = 12 + max(int(font.getlength(name)) for name in names)
    most = max(parties[name]["train"] + parties[name]["held_out"] for name in names)
    picture = Image.new("RGB", (margin + 620, 58 + row * len(names)), (255, 255, 255))
    ink = ImageDraw.Draw(picture)
    more = f" (the first {len(names)} of {len(parties):,} parties)" if len(parties) > len(names) else ""
    ink.text((8, 6), title + more, fill=_INK, font=ImageFont.load_default(size=14))
    for place, (colour, word) in enumerate(((_TRAIN, "training images"), (_HELD_OUT, "held out"))):
        ink.rectangle((margin + 130 * place, 32, margin + 10 + 130 * place, 42), fill=colour)
        ink.text((margin + 16 + 130 * place, 30), word, fill=_INK, font=font)
    for number, name in enumerate(names):
        share, top = parties[name], 52 + row * number
        ink.text((margin - 6, top + row / 2 - 1), name, fill=_INK, font=font, anchor="rm")
        left = float(margin)
        for count, colour in ((share["train"], _TRAIN), (share["held_out"], _HELD_OUT)):
            right = left + 480 * count / most
            if count:
                ink.rectangle((left, top + 2, max(left + 1, right - 1), top + row - 4), fill=colour)
            left = right
        said = f"{share['train'] + share['held_out']:,} of {share['identities']:,}"
        ink.text((left + 5, top + row / 2 - 1), f"{said} people", fill=_INK, font=font, anchor="lm")
    return picture
