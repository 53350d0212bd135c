"""InsightFace's `.bin` verification sets: pickled lists of encoded images and of whether each pair shows one person.

A pickle can run any code, so it is not unpickled: `pickles` reads lists, bytes and arrays and refuses everything else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.folds import PairRows, assign_folds, published, with_pairs
from fedvisage.faces.importing.pickles import Array, read_pickle
from fedvisage.faces.importing.source import UNLABELLED, Source
from fedvisage.faces.importing.tree import refuse_pointer

MOST = 16_000_000_000


def parse_bin(data: bytes) -> tuple[list[bytes], list[bool]]:
    """The encoded images and whether each pair of neighbours shows one person."""
    value = read_pickle(data)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise FedVisageError("it does not hold a list of images and a list of answers")
    images, same = value
    if not isinstance(images, list | tuple):
        raise FedVisageError("its first part is not a list of encoded images")
    encoded = [_encoded(image, number) for number, image in enumerate(images)]
    answers = _answers(same)
    if len(encoded) != 2 * len(answers):
        raise FedVisageError(f"it holds {len(encoded):,} images for {len(answers):,} pairs")
    return encoded, answers


def _encoded(image: object, number: int) -> bytes:
    """The bytes of an image, which OpenCV gives as an array of shape (n, 1) or (n,)."""
    if isinstance(image, bytes):
        return image
    if not isinstance(image, Array) or image.shape is None:
        raise FedVisageError(f"its first part is not a list of encoded images: number {number:,} is none")
    if image.code != "u1" or sum(side != 1 for side in image.shape) > 1:
        what = f"{image.code} of shape {image.shape}"
        raise FedVisageError(f"its image {number:,} is an array of {what}, and not the bytes of a JPEG or PNG file")
    return image.data


def _answers(same: object) -> list[bool]:
    """The answers, which may be a list, a tuple or an array."""
    if isinstance(same, Array) and same.shape is not None and len(same.shape) == 1:
        same = same.numbers().tolist()
    if not isinstance(same, list | tuple) or not all(isinstance(one, int) and one in (0, 1) for one in same):
        raise FedVisageError("its second part is not a list of booleans")
    return [bool(answer) for answer in same]


def read_bin(path: Path) -> Source:
    """A source of the images of a `.bin` file, with its pairs as the list `pairs`."""
    try:
        if path.stat().st_size > MOST:
            raise FedVisageError(f"{path} is larger than {MOST:,} bytes")
        data = path.read_bytes()
        refuse_pointer(path, data)
        images, same = parse_bin(data)
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from None
    except FedVisageError as error:
        raise FedVisageError(f"{path} is no verification set: {error}") from None

    labels = np.zeros(len(images), np.int64)
    source = Source((UNLABELLED,), labels, lambda n: images[n], lambda n: f"{path.name}, image {n}")
    left, flags = 2 * np.arange(len(same)), np.array(same, dtype=np.bool_)
    fold, rule = assign_folds(flags)
    rows = PairRows(str(path), left, left + 1, flags, fold, rule, published(path.stem))
    return with_pairs(source, {"pairs": rows})
