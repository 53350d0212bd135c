"""From light to bytes: shading, backdrop, white balance, blur, sensor noise and compression."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedvisage.faces.synthetic.geometry import Pixels, Surface, View, blend, clamp, hill
from fedvisage.faces.synthetic.paint import TILE, _tile
from fedvisage.faces.synthetic.shot import Shot

SENSOR = np.stack([_tile(3 + channel, (0, 0)) for channel in range(3)])


def shade(view: View, shot: Shot, face: Surface, colour: Pixels) -> None:
    """Light the reflectance, in place: a key light that reaches around skin (red most), light from above, and shine."""
    pose = view.pose
    light = [_to_head(pose, shot.light, axis) for axis in range(3)]
    halfway = [light[axis] + pose[6 + axis] for axis in range(3)]
    length = np.sqrt(halfway[0] * halfway[0] + halfway[1] * halfway[1] + halfway[2] * halfway[2])
    nx, ny, nz = face.nx, face.ny, face.nz
    unit = 1.0 / np.sqrt(nx * nx + ny * ny + nz * nz + 1e-4)
    facing = (nx * light[0] + ny * light[1] + nz * light[2]) * unit
    shine = (nx * (halfway[0] / length) + ny * (halfway[1] / length) + nz * (halfway[2] / length)) * unit
    for _ in range(4):
        shine = np.maximum(shine, 0.0)
        shine *= shine
    shine *= shot.shine * 0.3
    sky = 0.72 - 0.28 * ny * unit
    for channel, reach in enumerate((0.30, 0.18, 0.14)):
        lit = np.maximum(facing * (1.0 / (1.0 + reach)) + reach / (1.0 + reach), 0.0)
        lit *= shot.key[channel]
        lit += sky * shot.ambient[channel]
        plane = colour[channel]
        plane *= lit
        plane += shine * shot.key[channel]


def _to_head(pose: Pixels, direction: Pixels, axis: int) -> Pixels:
    return pose[axis] * direction[0] + pose[3 + axis] * direction[1] + pose[6 + axis] * direction[2]


def backdrop(size: int, shot: Shot) -> Pixels:
    """Something out of focus behind the person, (3, n, H, W)."""
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0 / size) - np.float32(1.0)
    x, y = centres[None, None, :] - shot.backdrop_x, centres[None, :, None] - shot.backdrop_y
    disc = hill((x * x) * 0.8 + (y * y) * 0.8)
    slope = clamp(0.5 + 0.25 * x + 0.25 * y) + 0.6 * disc
    return shot.backdrop + slope * (shot.backdrop_end - shot.backdrop)


def hold_before(shot: Shot, image: Pixels) -> None:
    """A hand, a telephone, somebody's shoulder: a blurred shape before a part of the face, in place."""
    if not shot.occluder.any():
        return
    size = image.shape[-1]
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0 / size) - np.float32(1.0)
    x = (centres[None, None, :] - shot.occluder_x) / shot.occluder_size
    y = (centres[None, :, None] - shot.occluder_y) / (shot.occluder_size * 1.5)
    reach = (x * x) + (y * y)
    weight = clamp((1.0 - reach) * 6.0) * shot.occluder
    blend(image, shot.occluder_colour * (1.15 - 0.5 * clamp(reach)), weight)


def expose(shot: Shot, image: Pixels) -> Pixels:
    """Linear light to the display's values, in [0, 1]: balance, saturation, and a square root for the gamma."""
    image = image * (shot.balance * shot.exposure)
    grey = 0.3 * image[0] + 0.59 * image[1] + 0.11 * image[2]
    image = grey + shot.saturation * (image - grey)
    image = np.sqrt(np.maximum(image, 0.0))
    image = image + (shot.contrast - 1.0) * (image - 0.5)
    return image - 0.22 * np.maximum(image - 0.75, 0.0)


def defocus(shot: Shot, image: Pixels) -> Pixels:
    """Blur some images with two binomial filters of growing step."""
    chosen = np.flatnonzero(shot.blur.ravel() > 0)
    if not len(chosen):
        return image
    part = image[:, chosen]
    weight = shot.blur[chosen] * 0.25
    size = image.shape[-1]
    for step in (max(1, round(size / 112)), max(1, round(size / 56))):
        for axis in (2, 3):
            part = _smooth(part, weight, step, axis)
    image[:, chosen] = part
    return image


def _smooth(image: Pixels, weight: Pixels, step: int, axis: int) -> Pixels:
    size = image.shape[axis]
    step = min(step, size - 1)
    padding = [(0, 0)] * 4
    padding[axis] = (step, step)
    padded = np.pad(image, padding, mode="edge")
    front = [slice(None)] * 4
    back = [slice(None)] * 4
    front[axis], back[axis] = slice(0, size), slice(2 * step, size + 2 * step)
    return image + weight * (padded[tuple(front)] + padded[tuple(back)] - 2.0 * image)


@cache
def _sensor(size: int) -> Pixels:
    """The noise of every photosite, repeated so that any shift of the tile leaves a whole frame."""
    repeats = -(-(size + TILE) // TILE)
    return np.tile(SENSOR, (1, repeats, repeats))


def add_noise(shot: Shot, image: Pixels) -> None:
    """Sensor noise, in place: a stored tile, shifted differently for each image."""
    size = image.shape[-1]
    tile = _sensor(size)
    for place, (shift, level) in enumerate(zip(shot.noise_shift.ravel(), shot.noise.ravel(), strict=True)):
        down, across = divmod(int(shift), TILE)
        image[:, place] += tile[:, down : down + size, across : across + size] * level


def compress(shot: Shot, image: Pixels) -> Pixels:
    """As JPEG does to some images: quantised cosine transforms of 8 x 8 blocks, colour at half the resolution."""
    chosen = np.flatnonzero(shot.coarseness.ravel() > 0)
    if not len(chosen):
        return image
    size = image.shape[-1]
    missing = -size % 16
    red, green, blue = np.pad(image[:, chosen], [(0, 0), (0, 0), (0, missing), (0, missing)], mode="edge")
    step = shot.coarseness.ravel()[chosen]
    grey = 0.3 * red + 0.59 * green + 0.11 * blue
    light = _quantise(grey, step)
    differences = []
    for plane in (red, blue):
        chroma = plane - grey
        small = chroma[:, ::2] + chroma[:, 1::2]
        small = 0.25 * (small[:, :, ::2] + small[:, :, 1::2])
        differences.append(_quantise(small, 2.0 * step).repeat(2, 1).repeat(2, 2))
    red, blue = light + differences[0], light + differences[1]
    green = light - (differences[0] * np.float32(0.3 / 0.59) + differences[1] * np.float32(0.11 / 0.59))
    image[:, chosen] = np.stack([red, green, blue])[:, :, :size, :size]
    return image


def _cosines() -> Pixels:
    """The 8-point orthonormal cosine transform, row per frequency; written out, so that no CPU's cosine matters."""
    c = [0.5, 0.49039264, 0.46193977, 0.41573481, 0.35355339, 0.27778512, 0.19134172, 0.09754516]
    rows = []
    for frequency in range(8):
        row = []
        for place in range(8):
            angle = frequency * (2 * place + 1) % 32
            sign = -1.0 if 8 < angle < 24 else 1.0
            folded = min(angle, 32 - angle)
            folded = min(folded, 16 - folded)
            value = sign * (c[folded] if folded < 8 else 0.0)
            row.append(value if frequency else c[4])
        rows.append(row)
    return np.array(rows, np.float32)


COSINES = _cosines()
COARSER = (np.add.outer(np.arange(8), np.arange(8)) * 0.45 + 1.0).astype(np.float32)[:, :, None]


def _transform(blocks: Pixels, matrix: Pixels) -> Pixels:
    """matrix @ blocks over the first axis, (8, ...), as a fixed sequence of products and sums."""
    shape = (8,) + (1,) * (blocks.ndim - 1)
    total = matrix[:, 0].reshape(shape) * blocks[0]
    for place in range(1, 8):
        total += matrix[:, place].reshape(shape) * blocks[place]
    return total


def _quantise(plane: Pixels, step: Pixels) -> Pixels:
    """Round the cosine coefficients of each 8 x 8 block of (n, H, W) to multiples of a step that grows with frequency."""
    count, height, width = plane.shape
    tall, wide = height // 8, width // 8
    blocks = plane.reshape(count, tall, 8, wide, 8).transpose(2, 4, 0, 1, 3).reshape(8, 8, -1)
    blocks = _transform(blocks, COSINES)
    blocks = _transform(np.ascontiguousarray(blocks.swapaxes(0, 1)), COSINES)
    unit = COARSER * step.repeat(tall * wide)
    blocks = np.rint(blocks / unit) * unit
    blocks = _transform(blocks, COSINES.T)
    blocks = _transform(np.ascontiguousarray(blocks.swapaxes(0, 1)), COSINES.T)
    return blocks.reshape(8, 8, count, tall, wide).transpose(2, 3, 0, 4, 1).reshape(count, height, width)


def to_bytes(image: Pixels) -> Pixels:
    """(3, n, H, W) in [0, 1] to (n, H, W, 3) values ready for a cast to bytes."""
    scaled = image * 255.0
    scaled += 0.5
    return np.minimum(np.maximum(scaled, 0.0), 255.0).transpose(1, 2, 3, 0)
