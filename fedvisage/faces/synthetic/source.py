"""Rendering in blocks that fit the cache, on a pool of threads (NumPy lets go of the interpreter lock)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.synthetic import camera, geometry, paint
from fedvisage.faces.synthetic.domains import DEFAULT_DOMAIN, DOMAINS
from fedvisage.faces.synthetic.geometry import window
from fedvisage.faces.synthetic.person import Person, draw_people
from fedvisage.faces.synthetic.shot import Shot, draw_shots

Traits = TypeVar("Traits", Person, Shot)

BLOCK_PIXELS = 26_000
LEAST, MOST = 16, 1024


def render(
    seed: int, identity: NDArray[np.int64], index: NDArray[np.int64], size: int, domain: str = DEFAULT_DOMAIN
) -> NDArray[np.uint8]:
    """Images of these people, (n, size, size, 3) RGB; each depends on (seed, its identity, its index) and nothing else."""
    check(seed, size, domain)
    identity, index = np.asarray(identity), np.asarray(index)
    if identity.ndim != 1 or identity.shape != index.shape:
        raise FedVisageError(f"identity and index must be of one length, not of shapes {identity.shape} and {index.shape}")
    if identity.dtype.kind not in "iu" or index.dtype.kind not in "iu":
        raise FedVisageError(f"identity and index must be integers, not {identity.dtype} and {index.dtype}")
    identity, index = identity.astype(np.int64), index.astype(np.int64)
    people = draw_people(seed, identity, DOMAINS[domain])
    shots = draw_shots(seed, identity, index, people, DOMAINS[domain])
    images = np.empty((len(identity), size, size, 3), np.uint8)
    step = max(1, BLOCK_PIXELS // (size * size))
    blocks = [slice(start, min(start + step, len(identity))) for start in range(0, len(identity), step)]

    def fill(rows: slice) -> None:
        images[rows] = _render_block(size, _rows(people, rows), _rows(shots, rows))

    if len(blocks) < 2:
        for rows in blocks:
            fill(rows)
    else:
        for _ in _pool().map(fill, blocks):
            pass
    return images


def check(seed: int, size: int, domain: str) -> None:
    """Refuse what cannot be rendered."""
    if domain not in DOMAINS:
        raise FedVisageError(f"no synthetic domain '{domain}': {nearest(domain, DOMAINS)}")
    if not LEAST <= size <= MOST:
        raise FedVisageError(f"synthetic faces can be {LEAST} to {MOST} pixels wide, not {size}")
    if not 0 <= seed < 2**63:
        raise FedVisageError(f"the seed must be an integer from 0 to 2**63 - 1, not {seed}")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="synthetic-faces")


def _rows(traits: Traits, rows: slice) -> Traits:
    """These rows of every trait as float32 of shape (..., n, 1, 1), to be broadcast over pixels."""
    values = {f.name: getattr(traits, f.name)[..., rows, None, None].astype(np.float32) for f in fields(traits)}
    return type(traits)(**values)


def _render_block(size: int, person: Person, shot: Shot) -> NDArray[np.uint8]:
    view = geometry.aim(size, person, shot)
    face, hit = geometry.skull(view, person)
    nose = window(size, 0.34, 0.82, 0.2, 0.8)
    geometry.add_nose(view.crop(nose), person, face.crop(nose), hit[:, nose[0], nose[1]])
    shade = np.ones_like(hit)
    for side, left in ((-1, 0.0), (1, 0.6)):
        part = window(size, 0.3, 0.85, left, left + 0.4)
        shade[:, part[0], part[1]] *= geometry.add_ear(
            view.crop(part), person, face.crop(part), hit[:, part[0], part[1]], side
        )
    part = window(size, 0.7, 1.0, 0.0, 1.0)
    shade[:, part[0], part[1]] *= geometry.add_neck(view.crop(part), person, face.crop(part))
    colour = paint.paint_skin(person, face, shade)
    for painter, part in (
        (paint.paint_lower_face, window(size, 0.5, 1.0, 0.1, 0.9)),
        (paint.paint_eyes, window(size, 0.22, 0.62, 0.1, 0.9)),
    ):
        painter(person, shot, view.crop(part), face.crop(part), colour[:, :, part[0], part[1]])
    paint.paint_cloth(shot, view, face, colour)
    paint.add_hair(view, person, shot, face, colour)
    camera.shade(view, shot, face, colour)
    for place in np.flatnonzero(shot.glasses.ravel()):
        one = slice(place, place + 1)
        paint.wear_glasses(*_single(view, person, shot, face, one), colour[:, one])
    image = camera.backdrop(size, shot)
    cover, tone = paint.back_hair(view, person, shot)
    geometry.blend(image, person.hair * tone * (shot.ambient + 0.3 * shot.key), cover)
    geometry.blend(image, colour, face.cover)
    camera.hold_before(shot, image)
    image = camera.expose(shot, image)
    image = camera.defocus(shot, image)
    camera.add_noise(shot, image)
    image = camera.compress(shot, image)
    return camera.to_bytes(image).astype(np.uint8)


def _single(view, person, shot, face, one):
    sub = lambda t: type(t)(**{f.name: getattr(t, f.name)[..., one, :, :] for f in fields(t)})
    return sub(view), sub(person), sub(shot), sub(face)


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
        if len(places) and not (0 <= places.min() and places.max() < len(self)):
            raise FedVisageError(f"image indices go from 0 to {len(self) - 1}, not {places.min()} to {places.max()}")
        identity, index = np.divmod(places, self.images_per_identity)
        return render(self.seed, identity, index, self.size, self.domain)
