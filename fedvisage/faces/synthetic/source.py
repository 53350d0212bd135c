"""Rendering in blocks that fit the cache, on a pool of threads (NumPy lets go of the interpreter lock)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.synthetic.domains import DEFAULT_DOMAIN, DOMAINS, Domain
from fedvisage.faces.synthetic.person import draw_people
from fedvisage.faces.synthetic.scene import per_pixel, rows_of, set_scene, take_pictures
from fedvisage.faces.synthetic.shot import NO_CLOTH, draw_shots, photographed

BLOCK_PIXELS = 100_000  # of the images rendered together: few enough for the cache, enough to hide the interpreter
LEAST_BATCH, BATCH = 16, 256  # images placed together, by one thread
LEAST, MOST = 16, 1024


def render(
    seed: int, identity: NDArray[np.int64], index: NDArray[np.int64], size: int, domain: str = DEFAULT_DOMAIN
) -> NDArray[np.uint8]:
    """Images of these people, (n, size, size, 3) RGB; each depends on seed, its identity and its index alone."""
    check(seed, size, domain)
    identity, index = np.asarray(identity), np.asarray(index)
    if identity.ndim != 1 or identity.shape != index.shape:
        raise FedVisageError(
            f"identity and index must be of one length, not of shapes {identity.shape} and {index.shape}"
        )
    if identity.dtype.kind not in "iu" or index.dtype.kind not in "iu":
        raise FedVisageError(f"identity and index must be integers, not {identity.dtype} and {index.dtype}")
    identity, index = identity.astype(np.int64), index.astype(np.int64)
    images = np.empty((len(identity), size, size, 3), np.uint8)
    _keep_memory()
    step = min(BATCH, max(LEAST_BATCH, -(-len(identity) // _threads())))

    def fill(start: int) -> None:
        rows = slice(start, start + step)
        _render_batch(seed, identity[rows], index[rows], DOMAINS[domain], images[rows])

    starts = range(0, len(identity), step)
    for _ in map(fill, starts) if len(starts) < 2 else _pool().map(fill, starts):
        pass
    return images


def _render_batch(
    seed: int, identity: NDArray[np.int64], index: NDArray[np.int64], domain: Domain, out: NDArray[np.uint8]
) -> None:
    """Draw and place the people of a batch at once, then render them block by block, like with like."""
    size, drawn = out.shape[1], rendered_size(out.shape[1])
    people = draw_people(seed, identity, domain)
    shots = draw_shots(seed, identity, index, people, domain)
    order = np.lexsort(
        (shots.blur > 0, people.hair_long, shots.glasses, shots.occluder, shots.cloth_top < NO_CLOTH, shots.cap)
    )
    scene = set_scene(drawn, per_pixel(photographed(people, shots), order), per_pixel(shots, order))
    step = max(1, BLOCK_PIXELS // (drawn * drawn))
    for start in range(0, len(identity), step):
        rows = slice(start, start + step)
        out[order[rows]] = take_pictures(rows_of(scene, rows), size)


def rendered_size(size: int) -> int:
    """Above 64 pixels, images are rendered at two thirds of their size and resampled.

    Cameras and the alignment of real faces resample too; it halves the time.
    """
    return min(size, max(64, -(-2 * size // 3)))


def check(seed: int, size: int, domain: str) -> None:
    """Refuse what cannot be rendered."""
    if domain not in DOMAINS:
        raise FedVisageError(f"no synthetic domain '{domain}': {nearest(domain, DOMAINS)}")
    if not LEAST <= size <= MOST:
        raise FedVisageError(f"synthetic faces can be {LEAST} to {MOST} pixels wide, not {size}")
    if not 0 <= seed < 2**63:
        raise FedVisageError(f"the seed must be an integer from 0 to 2**63 - 1, not {seed}")


@cache
def _keep_memory() -> None:
    """Have the C library keep freed blocks for the next one.

    glibc returns free memory above twice the largest block it unmapped, and getting it back doubles the time of a
    block of images; after one block of 31 MB was unmapped it keeps up to 62 MB. Elsewhere this does nothing.
    """
    np.empty(31 << 20, np.uint8)


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


@cache
def _pool() -> ThreadPoolExecutor:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
    return ThreadPoolExecutor(_threads(), thread_name_prefix="synthetic-faces")


@dataclass(frozen=True)
class SyntheticFaces:
    """A data set that is rendered when read: image i shows person i // images_per_identity."""

    seed: int
    identities: int
    images_per_identity: int
    size: int
    domain: str = DEFAULT_DOMAIN

    def __post_init__(self) -> None:
        check(self.seed, self.size, self.domain)
        if self.identities < 1 or self.images_per_identity < 1:
            raise FedVisageError(
                f"synthetic faces need at least 1 identity with 1 image, "
                f"not {self.identities} with {self.images_per_identity}"
            )

    def __len__(self) -> int:
        return self.identities * self.images_per_identity

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The identity of each image, (N,)."""
        return np.arange(self.identities, dtype=np.int64).repeat(self.images_per_identity)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these places, in any order and as often as wished, (n, size, size, 3)."""
        places = np.asarray(indices)
        if len(places) and not (places.min() >= 0 and places.max() < len(self)):
            raise FedVisageError(f"image indices go from 0 to {len(self) - 1}, not {places.min()} to {places.max()}")
        identity, index = np.divmod(places, self.images_per_identity)
        return render(self.seed, identity, index, self.size, self.domain)
