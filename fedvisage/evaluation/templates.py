"""Templates of several images (IJB-A, IJB-B, IJB-C): pooled to one vector each, and compared in pairs.

A template is the sum over its media of the mean of each medium's image embeddings, brought to unit length; scores are
dot products. Three switches of the published scripts change the numbers and are often mixed up:

N  `keep_norm`: an image embedding keeps its length (N1), or is brought to unit length first (N0);
D  `detector_scores`: it is weighted by the face detector's confidence (D1), or not (D0);
F  flip: the mirrored image's embedding is added (F1) or not (F0), which is decided where images are embedded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Floats, Ints
from fedvisage.evaluation.streaming import Embeddings, Rows, rows

BLOCK = 4096  # images read, and pairs compared, at a time
GATHER = 256  # pairs gathered at a time: both sides stay in the processor's cache


@dataclass(frozen=True)
class Templates:
    """Vectors (T, d) of unit length, float32, and the number of each, ascending, (T,)."""

    numbers: Ints
    vectors: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.numbers)

    def find(self, numbers: ArrayLike, where: str) -> Ints:
        """The rows of the templates with these numbers (n,); unknown ones are counted and named in the error."""
        wanted = np.asarray(numbers, np.int64)
        first, last = int(self.numbers[0]), int(self.numbers[-1])
        if last - first < 16 * len(self) + 65536:  # a table is faster, and small
            table = np.full(last - first + 1, len(self), np.int64)
            table[self.numbers - first] = np.arange(len(self))
            place = np.take(table, wanted - first, mode="clip")
        else:
            place = np.searchsorted(self.numbers, wanted)
        place = np.minimum(place, len(self) - 1)
        missing = wanted[self.numbers[place] != wanted]
        if missing.size:
            raise FedVisageError(
                f"{len(np.unique(missing))} templates of {where} have no image, first template {missing[0]} "
                f"({missing.size} of {wanted.size} rows)"
            )
        return place.astype(np.int64, copy=False)


def pool_templates(
    embeddings: Embeddings,
    image: ArrayLike,
    template: ArrayLike,
    media: ArrayLike | None = None,
    *,
    detector_scores: ArrayLike | None = None,
    keep_norm: bool = True,
) -> Templates:
    """Templates from image embeddings (N, d), read in blocks.

    Row r of the list says that image `image[r]` belongs to template `template[r]` and there to medium `media[r]`
    (without `media` each image is a medium of its own). `detector_scores` (N,) weigh the images.
    """
    vectors = rows("embeddings", embeddings)
    picture, owner, medium = _columns(image, template, media, vectors.shape[0])
    numbers, place = np.unique(owner, return_inverse=True)
    _, group, size = np.unique(_couples(place, medium), return_inverse=True, return_counts=True)
    weight = 1.0 / size[group]
    if detector_scores is not None:
        weight *= _confidence(detector_scores, vectors.shape[0])[picture]
    total = _weighted_sums(vectors, picture, place, weight, len(numbers), keep_norm)
    length = np.sqrt(np.einsum("ij,ij->i", total, total))
    cancelled = int(np.count_nonzero(length == 0))
    if cancelled:
        first = numbers[np.argmax(length == 0)]
        raise FedVisageError(
            f"{cancelled} of {len(numbers)} templates sum to zero, first template {first}: they have no direction"
        )
    total /= length[:, None]
    return Templates(numbers.astype(np.int64), total.astype(np.float32))


def template_scores(templates: Templates, left: ArrayLike, right: ArrayLike) -> NDArray[np.float32]:
    """Dot products (n,) of pairs of templates given by their numbers, computed in float32."""
    one, other = (
        templates.find(left, "the left side of the pairs"),
        templates.find(right, "the right side of the pairs"),
    )
    if one.shape != other.shape:
        raise FedVisageError(f"{one.size} templates on the left of the pairs and {other.size} on the right")
    scores = np.empty(one.size, np.float32)
    a, b = (np.empty((GATHER, templates.vectors.shape[1]), np.float32) for _ in range(2))
    for start in range(0, one.size, GATHER):
        part = slice(start, min(start + GATHER, one.size))
        n = part.stop - start
        np.take(templates.vectors, one[part], axis=0, out=a[:n], mode="clip")
        np.take(templates.vectors, other[part], axis=0, out=b[:n], mode="clip")
        np.einsum("nd,nd->n", a[:n], b[:n], out=scores[part])
    return scores


def enrolled(templates: Templates, numbers: ArrayLike, subjects: ArrayLike, where: str) -> tuple[NDArray[Any], Ints]:
    """Vectors (n, d) and persons (n,) of a gallery or of probes listed by template; a template may be listed once."""
    listed, person = np.asarray(numbers, np.int64), np.asarray(subjects, np.int64)
    distinct, count = np.unique(listed, return_counts=True)
    if (count > 1).any():
        twice = distinct[count > 1]
        raise FedVisageError(f"{where} lists {len(twice)} templates more than once, first template {twice[0]}")
    return templates.vectors[templates.find(listed, where)], person


def _columns(image: ArrayLike, template: ArrayLike, media: ArrayLike | None, images: int) -> tuple[Ints, Ints, Ints]:
    picture, owner = np.asarray(image, np.int64), np.asarray(template, np.int64)
    medium = np.arange(picture.size) if media is None else np.asarray(media, np.int64)
    if picture.ndim != 1 or not picture.shape == owner.shape == medium.shape:
        shapes = f"{picture.shape}, {owner.shape} and {medium.shape}"
        raise FedVisageError(f"image, template and media must be columns of one list, got {shapes}")
    if not picture.size:
        raise FedVisageError("the list of templates is empty")
    outside = (picture < 0) | (picture >= images)
    if outside.any():
        raise FedVisageError(
            f"{int(outside.sum())} of {picture.size} rows of the templates name images that are missing, "
            f"first image {picture[outside][0]} of template {owner[outside][0]}; there are {images} images"
        )
    _, first, count = np.unique(_couples(owner, picture), return_index=True, return_counts=True)
    if (count > 1).any():
        template = int(owner[int(first[int(np.argmax(count > 1))])])
        raise FedVisageError(
            f"{int((count > 1).sum())} images are listed more than once in one template, "
            f"first in template {template}: import the set again, which counts them once"
        )
    return picture, owner, medium


def _couples(one: Ints, other: Ints) -> Ints:
    """A number for each couple of entries, the same for the same couple."""
    first, second = np.unique(one, return_inverse=True)[1], np.unique(other, return_inverse=True)[1]
    return (first * (int(second.max()) + 1) + second).astype(np.int64)


def _confidence(detector_scores: ArrayLike, images: int) -> Floats:
    confidence = checks.scores("detector scores", detector_scores)
    if confidence.size != images:
        raise FedVisageError(f"{confidence.size} detector scores for {images} images")
    if (confidence < 0).any():
        raise FedVisageError(f"{int((confidence < 0).sum())} of {images} detector scores are negative")
    return confidence


def _weighted_sums(vectors: Rows, picture: Ints, place: Ints, weight: Floats, count: int, keep_norm: bool) -> Floats:
    """Sum per template (T, d) of its weighted images; the embeddings are read once, in order."""
    order = np.lexsort((place, picture // BLOCK))  # block by block, and by template within a block
    edges = np.searchsorted(picture[order] // BLOCK, np.arange(-(-vectors.shape[0] // BLOCK) + 1))
    total = np.zeros((count, vectors.shape[1]))
    length = np.empty(vectors.shape[0])
    with np.errstate(invalid="ignore"):
        for number in range(len(edges) - 1):
            start = number * BLOCK
            stop = min(start + BLOCK, vectors.shape[0])
            block = np.asarray(vectors[start:stop], np.float64)
            length[start:stop] = np.sqrt(np.einsum("ij,ij->i", block, block))
            some = order[edges[number] : edges[number + 1]]
            if not some.size:
                continue
            share = weight[some] if keep_norm else weight[some] / length[picture[some]]
            part = block[picture[some] - start] * share[:, None]
            first = np.flatnonzero(np.diff(place[some], prepend=-1))
            total[place[some][first]] += np.add.reduceat(part, first, axis=0)
    checks.check_lengths("embeddings", length)
    return total
