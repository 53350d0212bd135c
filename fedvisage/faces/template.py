"""The five-point template that face recognition aligns to, and the warp that brings a photo to it.

The points are those of ArcFace for a 112 x 112 image: eyes, nose and corners of the mouth, image left to right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvisage.core.errors import FedVisageError

Points = NDArray[np.float64]

ARCFACE_POINTS: Points = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
ARCFACE_SIZE = 112


def similarity(points: NDArray[np.floating], size: int = ARCFACE_SIZE, template: Points = ARCFACE_POINTS) -> Points:
    """The turn, scale and shift (2, 3) that bring points (n, 2) closest to the template in an image of `size`.

    As a complex number, a point z goes to a z + b; a and b by least squares, which leaves no mirror image to rule out.
    """
    if not np.isfinite(points).all():
        raise FedVisageError("the landmarks of a face are missing")
    source = points[:, 0].astype(np.float64) + 1j * points[:, 1].astype(np.float64)
    target = (template[:, 0] + 1j * template[:, 1]) * (size / ARCFACE_SIZE)
    centred = source - source.mean()
    spread = float((np.abs(centred) ** 2).sum())
    if spread <= 0:
        raise FedVisageError("the landmarks of a face are all in one place")
    a = complex((np.conj(centred) * (target - target.mean())).sum() / spread)
    b = complex(target.mean() - a * source.mean())
    if abs(a) == 0:
        raise FedVisageError("the landmarks of a face are nothing like a face")
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def warp(pixels: NDArray[np.uint8], matrix: Points, size: int = ARCFACE_SIZE) -> NDArray[np.uint8]:
    """The image (size, size, 3) that `matrix` makes of a photo (H, W, 3), bilinear, black beyond its edges."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2]
    shift = back[:, 2] + 0.5 - back[:, :2] @ [0.5, 0.5]  # Pillow counts from a pixel's corner, not its centre
    data = (back[0, 0], back[0, 1], shift[0], back[1, 0], back[1, 1], shift[1])
    image = Image.fromarray(pixels).transform((size, size), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(image)


def align(pixels: NDArray[np.uint8], points: NDArray[np.floating], size: int = ARCFACE_SIZE) -> NDArray[np.uint8]:
    """The face (size, size, 3) in a photo (H, W, 3) whose five points (5, 2) are given."""
    return warp(pixels, similarity(points, size), size)
