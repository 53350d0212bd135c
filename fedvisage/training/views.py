"""Views of images for training: parts of several sets as one, under labels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Images


class Part(NamedTuple):
    """Some images of a set, by number, and the labels they have here."""

    images: Images
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]


class Mixture:
    """The parts one after the other; what they are labelled elsewhere does not show."""

    names: tuple[str, ...] = ()

    def __init__(self, parts: Sequence[Part], classes: int) -> None:
        self.classes = classes
        self._parts = tuple(part for part in parts if len(part.indices))
        self._starts = np.cumsum([0, *(len(part.indices) for part in self._parts)])
        self.labels = np.concatenate([np.empty(0, np.int64), *(part.labels for part in self._parts)])
        if len(self.labels) != len(self):
            raise FedVisageError(f"{len(self):,} images but {len(self.labels):,} labels")
        if len(self) and not 0 <= self.labels.min() <= self.labels.max() < classes:
            raise FedVisageError(f"labels must lie between 0 and {classes - 1}")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images (n, H, W, 3) RGB."""
        return self._gather(indices, [part.images.read for part in self._parts])

    @property
    def features(self) -> MixedFeatures | None:
        """What a network's frozen stages made of the images, where it is at hand for every part."""
        digests = {getattr(getattr(part.images, "features", None), "digest", "") for part in self._parts}
        return MixedFeatures(self, digests.pop()) if len(digests) == 1 and "" not in digests else None

    def _gather(self, indices: NDArray[np.int64], readers: Sequence[Any], *columns: NDArray[Any]) -> NDArray[Any]:
        """Rows by number from the readers of their parts, in the order asked for; columns are handed on with them."""
        of = np.searchsorted(self._starts, indices, side="right") - 1
        rows: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for number, (part, read) in enumerate(zip(self._parts, readers, strict=True)):
            here = np.flatnonzero(of == number)
            if len(here):
                chosen = part.indices[indices[here] - self._starts[number]]
                rows.append((here, read(chosen, *(column[here] for column in columns))))
        if len(rows) == 1:
            return rows[0][1]
        out = np.empty((len(indices), *rows[0][1].shape[1:]), rows[0][1].dtype)
        for here, values in rows:
            out[here] = values
        return out


class MixedFeatures:
    """Features of a mixture's images, by their number in it."""

    def __init__(self, mixture: Mixture, digest: str) -> None:
        self._mixture, self.digest = mixture, digest

    def read(self, images: NDArray[np.int64], mirrored: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Features (n, C, h, w), of the mirror images where it is said so."""
        readers = [part.images.features.read for part in self._mixture._parts]  # type: ignore[attr-defined]
        return self._mixture._gather(images, readers, mirrored)
