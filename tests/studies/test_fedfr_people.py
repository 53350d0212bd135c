"""FedFR's people at paper scale: those whom the authors' scripts take out of MS1MV2."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, FaceSet
from fedvisage.faces.partition import make_partition
from fedvisage.studies import cells

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
LIST = DATA / "lists" / "fedfr" / "images_per_public_person.txt"


@pytest.mark.skipif(not LIST.exists(), reason="no real lists: set FEDVISAGE_DATA")
def test_the_recipe_takes_everybody_of_the_authors_list_and_nobody_else() -> None:
    """The public people with their images as published, 4,000 people of 101 to 109, and others just outside."""
    public = np.loadtxt(LIST, dtype=int)
    assert (len(public), public.sum(), public.min(), public.max()) == (6000, 420_671, 61, 79)
    parties = 101 + np.arange(4000) % 9
    others = np.repeat([1, 40, 60, 80, 90, 100, 110, 602], 50)
    counts = np.concatenate([others, public, parties])
    labels = np.repeat(np.arange(len(counts)), counts)
    images = ArrayImages(np.broadcast_to(np.uint8(0), (len(labels), 1, 1, 3)))
    faces = FaceSet(images, labels, tuple(f"{number:05d}" for number in range(len(counts))))
    recipe = next(cell for cell in cells("fedfr/table-1", "paper", [1]) if cell.row == "fedfr").recipe

    found = make_partition(faces, recipe.partition, Streams(1, "partition"))

    assert np.array_equal(found.public, np.flatnonzero((labels >= 400) & (labels < 6400)))
    assert len(found.parties) == 40
    first = np.append(0, np.cumsum(counts))
    for share in found.parties.values():
        people = np.unique(labels[list(share.train)])
        assert len(people) == 100
        assert people.min() >= 6400
        assert share.held_out == tuple(image for person in people for image in range(first[person], first[person] + 40))
        assert len(share.train) + 4000 == counts[people].sum()
    assert recipe.partition.held_out_first == 40
