"""Views over several sets: the right image under the right label, whatever order they are asked for in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.training.views import Mixture, Part


def faces(start: int, count: int) -> Faces:
    """Images whose pixels all hold the image's number."""
    pixels = np.broadcast_to(np.arange(start, start + count, dtype=np.uint8)[:, None, None, None], (count, 2, 2, 3))
    return Faces(FaceSet(ArrayImages(pixels.copy()), np.zeros(count, np.int64), ("a",)), np.arange(count))


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.data())
def test_images_come_from_their_parts_in_the_order_asked_for(
    one: list[int], two: list[int], data: st.DataObject
) -> None:
    parts = [
        Part(faces(0, 6), np.array(one, np.int64), np.arange(len(one))),
        Part(faces(100, 4), np.array(two, np.int64), np.arange(len(two))),
    ]
    mixture = Mixture(parts, 6)
    expected = [*one, *(100 + number for number in two)]
    assert len(mixture) == len(expected)
    assert mixture.labels.tolist() == [*range(len(one)), *range(len(two))]
    if expected:
        asked = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=8))
        assert mixture.read(np.array(asked))[:, 0, 0, 0].tolist() == [expected[number] for number in asked]


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(FedVisageError, match="between 0 and 1"):
        Mixture([Part(faces(0, 2), np.arange(2), np.array([0, 2]))], 2)


def test_a_part_without_features_leaves_the_mixture_without() -> None:
    assert Mixture([Part(faces(0, 2), np.arange(2), np.zeros(2, np.int64))], 1).features is None


class Doubled:
    """Features that are twice the number, negative where mirrored."""

    digest = "d"

    def read(self, images: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
        return np.where(mirrored, -2.0, 2.0).astype(np.float32) * images


def test_features_come_from_their_parts_with_their_mirrors() -> None:
    one, two = faces(0, 6), faces(100, 4)
    one.features = two.features = Doubled()  # type: ignore[assignment]
    mixture = Mixture([Part(one, np.array([5, 1]), np.zeros(2, int)), Part(two, np.array([3]), np.zeros(1, int))], 1)
    features = mixture.features
    assert features is not None
    assert features.digest == "d"
    read = features.read(np.array([2, 0, 1]), np.array([True, False, True]))
    assert read.tolist() == [-6.0, 10.0, -2.0]
