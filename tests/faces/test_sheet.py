from __future__ import annotations

import numpy as np
import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.sheet import contact_sheet


def test_a_sheet_holds_every_image_at_its_place() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 10, 8, 3), np.uint8)
    sheet = np.asarray(contact_sheet(images, gap=2, background=(9, 8, 7)))
    assert sheet.shape == (3 * 12 + 2, 4 * 10 + 2, 3)
    for row in range(3):
        for column in range(4):
            top, left = 2 + row * 12, 2 + column * 10
            assert np.array_equal(sheet[top : top + 10, left : left + 8], images[row, column])
    assert sheet[0, 0].tolist() == [9, 8, 7]


def test_labels_are_written_in_a_margin() -> None:
    images = np.zeros((2, 2, 24, 24, 3), np.uint8)
    sheet = contact_sheet(images, ["0", "a long label"], gap=1)
    plain = contact_sheet(images, gap=1)
    assert sheet.height == plain.height
    margin = sheet.width - plain.width
    assert margin > 20
    assert np.asarray(sheet)[:, :margin].min() < 128


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 2, 8, 8), np.uint8),
        np.zeros((2, 2, 8, 8, 3), np.float32),
        np.zeros((0, 2, 8, 8, 3), np.uint8),
    ],
)
def test_what_is_not_a_grid_of_images_is_refused(images: np.ndarray) -> None:
    with pytest.raises(FedVisageError, match="a contact sheet takes uint8"):
        contact_sheet(images)


def test_labels_and_gap_are_checked() -> None:
    images = np.zeros((2, 2, 8, 8, 3), np.uint8)
    with pytest.raises(FedVisageError, match="1 labels for 2 rows"):
        contact_sheet(images, ["a"])
    with pytest.raises(FedVisageError, match="0 or more"):
        contact_sheet(images, gap=-1)
