"""Faces in photos: found by dlib, aligned where the template is, and refused where they cannot be recognised."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.align import Detector, Face, aligned, fault, five_of_68, read_photo, sharpness
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.faces.template import ARCFACE_POINTS, align, similarity
from fedvisage.models import MODEL_FILES

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
PHOTOS = DATA / "lfw-photos-dev"
real = pytest.mark.skipif(not PHOTOS.is_dir(), reason="no real faces: set FEDVISAGE_DATA")


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(MODEL_FILES["dlib-5-points"].path)


def photo(*numbers: int, side: int = 144) -> np.ndarray:
    """Drawn faces side by side on grey; dlib finds numbers 0, 1 and 2 of this seed."""
    faces = SyntheticFaces(3, 6, 2, 144, "daylight").read(np.array(numbers))
    wide = np.full((300, 60 + 200 * len(numbers), 3), 120, np.uint8)
    for place, face in enumerate(faces):
        small = np.asarray(Image.fromarray(face).resize((side, side)))
        wide[80 : 80 + side, 60 + 200 * place : 60 + 200 * place + side] = small
    return wide


def test_faces_are_found_where_they_are_the_largest_first(detector: Detector) -> None:
    seen = photo(0, 2)
    found = detector.find(seen)
    assert len(found) == 2
    assert found[0].area >= found[1].area
    assert sorted(face.box[0] > 230 for face in found) == [False, True]
    assert detector.find(np.full((200, 200, 3), 128, np.uint8)) == []
    assert detector.find(np.zeros((3, 500, 3), np.uint8)) == []


def test_a_photo_of_any_size_gives_the_same_aligned_face(detector: Detector) -> None:
    small = photo(0)
    large = np.asarray(
        Image.fromarray(small).resize((small.shape[1] * 8, small.shape[0] * 8), Image.Resampling.BICUBIC)
    )
    found = [detector.find(seen)[0] for seen in (small, large)]
    one, other = (aligned(seen, face).astype(float) for seen, face in zip((small, large), found, strict=True))
    assert found[1].eyes == pytest.approx(8 * found[0].eyes, rel=0.1)
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9  # the detector sees it in another size


def test_reducing_first_shows_the_same_place() -> None:
    gradient = np.broadcast_to(np.linspace(0, 255, 1120)[None, :, None], (1120, 1120, 3)).astype(np.uint8)
    face = Face((0, 0, 1120, 1120), 1.0, np.array([[0.1, 0, 0.1 / 2 - 0.5], [0, 0.1, 0.1 / 2 - 0.5]]))
    across = aligned(gradient, face)[60, 10:100, 0].astype(float)
    expected = (np.arange(10, 100) * 10 + 4.5) / 1119 * 255
    assert np.abs(across - expected).max() < 1.5


def test_points_of_the_template_are_left_where_they_are() -> None:
    picture = photo(0)[:112, :112]
    assert np.abs(align(picture, ARCFACE_POINTS).astype(int) - picture).max() <= 1
    np.testing.assert_allclose(similarity(ARCFACE_POINTS), [[1, 0, 0], [0, 1, 0]], atol=1e-12)


def test_the_five_points_of_68_are_eyes_nose_and_mouth() -> None:
    points = np.arange(136, dtype=np.float64).reshape(68, 2)
    expected = [[77, 78], [89, 90], [60, 61], [96, 97], [108, 109]]  # point n is (2 n, 2 n + 1); eyes 36-41 and 42-47
    np.testing.assert_array_equal(five_of_68(points), expected)


def test_small_and_blurred_faces_are_said_to_be_so(detector: Detector) -> None:
    seen = photo(0)
    face = detector.find(seen)[0]
    sharp = aligned(seen, face)
    assert fault(face, sharp) is None
    blurred = np.asarray(Image.fromarray(sharp).filter(ImageFilter.GaussianBlur(6)))
    assert sharpness(blurred) < sharpness(sharp)
    assert fault(face, blurred) is not None
    assert "too blurred" in str(fault(face, blurred))
    tiny = Face(face.box, 1.0, face.matrix * 4)
    assert fault(tiny, sharp) == f"the face is too small: {face.eyes / 4:.0f} pixels between the eyes, 16 are needed"
    assert "too blurred" in str(fault(face, np.full((112, 112, 3), 90, np.uint8)))


def test_the_camera_may_have_been_held_sideways(tmp_path: Path) -> None:
    upright = photo(0)
    image = Image.fromarray(np.rot90(upright))
    exif = image.getexif()
    exif[0x0112] = 6  # "turn me a quarter to the right"
    image.save(tmp_path / "sideways.png", exif=exif)
    assert np.array_equal(read_photo(tmp_path / "sideways.png"), upright)


def test_what_is_no_photo_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    Image.fromarray(photo(0)).save(tmp_path / "whole.jpg")
    (tmp_path / "half.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:4000])
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    for name, words in {
        "text.jpg": "text.jpg: no image",
        "half.jpg": "half.jpg: damaged image: image file is truncated",
        "huge.png": "huge.png: 10000x10000: more than 64,000,000 pixels",
        "missing.jpg": "cannot read .*missing.jpg: No such file",
    }.items():
        with pytest.raises(FedVisageError, match=words) as raised:
            read_photo(tmp_path / name)
        assert "\n" not in str(raised.value)


@real
@pytest.mark.parametrize("points", ["5", "68"])
def test_real_faces_are_aligned_as_the_given_landmarks_align_them(points: str) -> None:
    detector = Detector(MODEL_FILES[f"dlib-{points}-points"].path)
    with (PHOTOS / "landmarks.tsv").open() as file:
        rows = list(csv.reader(file, delimiter="\t"))[1::54]
    errors = []
    for name, *numbers in rows:
        given = np.array(numbers, dtype=np.float64).reshape(5, 2)
        face = detector.find(read_photo(PHOTOS / "images" / name))[0]
        back = np.linalg.inv(face.matrix[:, :2])
        place = (ARCFACE_POINTS - face.matrix[:, 2]) @ back.T
        wanted = similarity(given)
        target = (ARCFACE_POINTS - wanted[:, 2]) @ np.linalg.inv(wanted[:, :2]).T
        errors.append(np.linalg.norm(place - target, axis=1).mean() / np.linalg.norm(given[0] - given[1]))
    assert np.median(errors) < 0.08
