"""Photos of drawn people that dlib's detector finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedvisage.faces.synthetic import SyntheticFaces

ANN, ANN_AGAIN, BOB = 0, 1, 2


def draw(path: Path, *people: int) -> Path:
    """A photo with these people side by side."""
    faces = SyntheticFaces(3, 6, 2, 144, "daylight").read(np.array([ANN, ANN_AGAIN, BOB]))
    wide = np.full((300, 460, 3), 120, np.uint8)
    for place, number in enumerate(people):
        wide[80:224, 60 + 200 * place : 204 + 200 * place] = faces[number]
    Image.fromarray(wide).save(path)
    return path
