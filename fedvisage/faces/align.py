"""Faces in photos: found, judged, and brought to the five-point template. Needs dlib (the `pretrained` extra).

dlib's own detector finds them; its five-point landmarks are the corners of the eyes and the base of the nose, whose
places in the aligned image are `EYE_CORNERS_AND_NOSE`. The 68-point landmarks give the template's own five points and
align better, but their training data excludes commercial use.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import MOST_BYTES, open_image, pixels_of, turned
from fedvisage.faces.faceset import Pixels
from fedvisage.faces.template import ARCFACE_SIZE, Points, similarity, warp

EYE_CORNERS_AND_NOSE: Points = np.array(
    [[80.85, 53.28], [66.96, 53.64], [31.59, 53.66], [45.54, 53.87], [56.37, 80.62]]
)
"""dlib's five points in the aligned 112x112 image: medians over one half of the people in fold 1 of LFW."""
FIVE_OF_68: Points = np.array([[38.58, 53.57], [73.86, 53.19], [56.38, 72.95], [40.91, 91.9], [72.1, 91.71]])
"""Eyes, tip of the nose and corners of the mouth as the 68-point landmarks give them, likewise."""

DETECTION_SIDE = 1600
"""Larger photos are looked at in this size: a face must be about 40 pixels wide in it."""
LEAST_EYES = 16.0
"""Pixels between the eyes below which a face is too small; the template has 35."""
LEAST_SHARPNESS = 0.06
"""See `sharpness`. LFW's least sharp face has 0.12; at 0.05, one in five of its genuine pairs is missed."""


@dataclass(frozen=True)
class Face:
    """A face in a photo."""

    box: tuple[int, int, int, int]
    """Left, top, right and bottom in pixels."""
    score: float
    """How sure the detector is; 0 is as good as not."""
    matrix: Points
    """Turn, scale and shift (2, 3) from the photo to the aligned 112x112 image."""

    @property
    def eyes(self) -> float:
        """Pixels between the eyes."""
        return 35.24 / float(np.hypot(*self.matrix[:, 0]))

    @property
    def area(self) -> int:
        """Pixels in the box."""
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)


def read_photo(path: Path) -> Pixels:
    """A photo (H, W, 3) RGB, upright as the camera was held; refused before decoding where it is too large."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FedVisageError(f"{path}: larger than {MOST_BYTES // 10**6} MB")
        data = path.read_bytes()
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from None
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            return pixels_of(turned(open_image(data)))
    except FedVisageError as error:
        raise FedVisageError(f"{path}: {error}") from None


class Detector:
    """Finds faces with dlib. `landmarks` is one of its landmark files, `network` its detection network if wanted."""

    def __init__(self, landmarks: Path, network: Path | None = None) -> None:
        dlib = _dlib()
        self._landmarks: Any = dlib.shape_predictor(str(landmarks))
        self._network: Any = dlib.cnn_face_detection_model_v1(str(network)) if network else None
        self._hog: Any = dlib.get_frontal_face_detector()

    def find(self, photo: Pixels) -> list[Face]:
        """The faces in a photo (H, W, 3), the largest first."""
        height, width = photo.shape[:2]
        scale = min(1.0, DETECTION_SIDE / max(height, width))
        seen = np.ascontiguousarray(photo)
        if scale < 1:
            size = max(1, round(width * scale)), max(1, round(height * scale))
            seen = np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))
        if min(seen.shape[:2]) < 16:
            return []
        faces = [self._face(seen, rectangle, score) for rectangle, score in self._rectangles(seen)]
        whole = [_enlarged(face, 1 / scale) for face in faces if face is not None]
        return sorted(whole, key=lambda face: face.area, reverse=True)

    def _rectangles(self, photo: Pixels) -> list[tuple[Any, float]]:
        if self._network is not None:
            return [(found.rect, found.confidence) for found in self._network(photo, 1)]
        rectangles, scores, _ = self._hog.run(photo, 1, 0.0)
        return list(zip(rectangles, scores, strict=True))

    def _face(self, photo: Pixels, rectangle: Any, score: float) -> Face | None:
        points = np.array([(part.x, part.y) for part in self._landmarks(photo, rectangle).parts()], dtype=np.float64)
        template = EYE_CORNERS_AND_NOSE
        if len(points) == 68:
            points, template = five_of_68(points), FIVE_OF_68
        box = (rectangle.left(), rectangle.top(), rectangle.right() + 1, rectangle.bottom() + 1)
        try:
            return Face(box, float(score), similarity(points, ARCFACE_SIZE, template))
        except FedVisageError:
            return None


def five_of_68(points: NDArray[np.float64]) -> Points:
    """Middles of the eyes, tip of the nose and corners of the mouth (5, 2), image left to right, of 68 points."""
    return np.stack([points[36:42].mean(axis=0), points[42:48].mean(axis=0), points[30], points[48], points[54]])


def aligned(photo: Pixels, face: Face, size: int = ARCFACE_SIZE) -> Pixels:
    """The face (size, size, 3) of a photo (H, W, 3); a much larger photo is reduced first, so that nothing flickers."""
    matrix = face.matrix * (size / ARCFACE_SIZE)
    factor = int(1 / np.hypot(*matrix[:, 0]))
    if factor < 2:
        return warp(photo, matrix, size)
    reduced = np.asarray(Image.fromarray(photo).reduce(factor))
    shift = matrix[:, 2] + matrix[:, :2] @ np.full(2, (factor - 1) / 2)
    return warp(reduced, np.column_stack([matrix[:, :2] * factor, shift]), size)


def sharpness(face: Pixels) -> float:
    """Spread of the Laplacian over the middle of an aligned face, relative to the spread of its brightness."""
    side = len(face)
    middle = face[side // 7 : -side // 14, side // 7 : -side // 7].astype(np.float64) @ [0.299, 0.587, 0.114]
    inner = middle[1:-1, 1:-1]
    laplacian = middle[:-2, 1:-1] + middle[2:, 1:-1] + middle[1:-1, :-2] + middle[1:-1, 2:] - 4 * inner
    return float(laplacian.std() / (middle.std() + 1e-9))


def fault(face: Face, pixels: Pixels) -> str | None:
    """Why this face, aligned as `pixels`, is not fit to be recognised; None if it is."""
    if face.eyes < LEAST_EYES:
        return f"the face is too small: {face.eyes:.0f} pixels between the eyes, {LEAST_EYES:.0f} are needed"
    if (found := sharpness(pixels)) < LEAST_SHARPNESS:
        return f"the face is too blurred: sharpness {found:.3f}, {LEAST_SHARPNESS} is needed"
    return None


def _enlarged(face: Face, factor: float) -> Face:
    """A face found in a reduced photo, in the photo itself."""
    if factor == 1:
        return face
    left, top, right, bottom = (round(side * factor) for side in face.box)
    linear = face.matrix[:, :2] / factor
    shift = face.matrix[:, 2] + face.matrix[:, :2] @ np.full(2, 0.5 / factor - 0.5)
    return replace(face, box=(left, top, right, bottom), matrix=np.column_stack([linear, shift]))


def _dlib() -> Any:
    try:
        import dlib
    except ImportError:
        raise FedVisageError('finding faces needs dlib: pip install "fedvisage[pretrained]"') from None
    return dlib
