"""The alignment to the five-point template: exact for exact points, and where the pixels go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.template import ARCFACE_POINTS, align, similarity


@given(
    st.floats(0.2, 5), st.floats(-3.1, 3.1), st.floats(-200, 200), st.floats(-200, 200), st.sampled_from([56, 112, 224])
)
def test_turned_scaled_and_shifted_points_come_back_to_the_template(
    scale: float, angle: float, x: float, y: float, size: int
) -> None:
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = ARCFACE_POINTS @ turn.T + [x, y]
    matrix = similarity(points, size)
    assert np.allclose(points @ matrix[:, :2].T + matrix[:, 2], ARCFACE_POINTS * size / 112, atol=1e-6)


def test_the_fit_is_the_least_squares_one() -> None:
    """Against a solve of the four unknowns of a similarity by numpy."""
    points = ARCFACE_POINTS + np.random.default_rng(1).normal(0, 4, (5, 2))
    rows, target = [], []
    for (x, y), (u, v) in zip(points, ARCFACE_POINTS, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        target += [u, v]
    a, b, c, d = np.linalg.lstsq(np.array(rows), np.array(target), rcond=None)[0]
    assert np.allclose(similarity(points), [[a, -b, c], [b, a, d]])


def test_pixels_stay_where_they_are_and_move_by_whole_pixels() -> None:
    image = np.random.default_rng(1).integers(0, 256, (130, 130, 3), dtype=np.uint8)
    assert np.abs(align(image, ARCFACE_POINTS).astype(int) - image[:112, :112]).max() <= 1
    assert np.abs(align(image, ARCFACE_POINTS + np.array([3, 5])).astype(int) - image[5:117, 3:115]).max() <= 1


@pytest.mark.parametrize("points", [np.zeros((5, 2)), np.full((5, 2), np.nan), np.full((5, 2), np.inf)])
def test_points_that_are_no_face_are_refused(points: np.ndarray) -> None:
    with pytest.raises(FedVisageError, match="landmarks of a face"):
        similarity(points)
