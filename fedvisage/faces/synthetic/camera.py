"""From light to bytes: shading, backdrop, blur, sensor noise and compression.

Images are (3, n, H, W); the colours of people and lights already went through the camera's white balance, exposure
and saturation, which costs nothing per pixel.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.synthetic.geometry import Pixels, Surface, View, at_least, blend, clamp, hill, pixel_centres
from fedvisage.faces.synthetic.paint import TILE, noise_tile
from fedvisage.faces.synthetic.shot import Shot

SENSOR = np.stack([noise_tile(3 + channel, (0, 0)) for channel in range(3)])


def shade(view: View, shot: Shot, face: Surface, colour: Pixels) -> None:
    """Light the reflectance, in place: a key light that reaches a little around, light from above, and shine."""
    pose, direction = view.pose, shot.light
    light = pose[:3] * direction[0] + pose[3:6] * direction[1] + pose[6:] * direction[2]
    halfway = light + pose[6:]
    halfway = halfway / np.sqrt(_sum(halfway * halfway))
    unit = _sum(face.normal * face.normal)
    unit += 1e-4
    np.sqrt(unit, out=unit)
    np.divide(1.0, unit, out=unit)
    facing = _sum(face.normal * light)
    facing *= unit
    facing *= 1.0 / 1.22
    facing += 0.22 / 1.22
    at_least(0.0, facing)
    shine = _sum(face.normal * halfway)
    shine *= unit
    at_least(0.1, shine)  # not 0: the powers of what is close to it are denormal, which is slow
    for _ in range(4):
        shine *= shine
    shine *= shot.shine * 0.3
    unit *= face.normal[1]
    unit *= -0.28
    unit += 0.72
    facing *= shot.key
    unit *= shot.ambient
    facing += unit
    colour *= facing
    colour += shine * (shot.white * shot.key)


def _sum(vector: Pixels) -> Pixels:
    """Over the three coordinates, in the memory of the first."""
    total: Pixels = vector[0]
    total += vector[1]
    total += vector[2]
    return total


def backdrop(size: int, shot: Shot) -> Pixels:
    """Something out of focus behind the person."""
    centres = pixel_centres(size)
    x, y = centres[None, None, :] - shot.backdrop_x, centres[None, :, None] - shot.backdrop_y
    slope = hill(x * x * 0.8 + y * y * 0.8)
    slope *= 0.6
    slope += 0.25 * x + 0.3
    slope += 0.15 * y
    image = clamp(slope) * (shot.backdrop_end - shot.backdrop)
    image += shot.backdrop
    return image


def hold_before(shot: Shot, image: Pixels) -> None:
    """A hand, a telephone, somebody's shoulder: a blurred shape before a part of the face, in place."""
    centres = pixel_centres(image.shape[-1])
    x = (centres[None, None, :] - shot.occluder_x) / shot.occluder_size
    y = (centres[None, :, None] - shot.occluder_y) / (shot.occluder_size * 1.5)
    reach = x * x + y * y
    weight = clamp((1.0 - reach) * 6.0) * shot.occluder
    blend(image, shot.occluder_colour * (1.15 - 0.5 * clamp(reach)), weight)


def defocus(blur: Pixels, image: Pixels) -> None:
    """A binomial filter, in place."""
    weight = blur * 0.25
    step = max(1, round(image.shape[-1] / 64))
    for axis in (2, 3):
        _smooth(image, weight, step, axis)


def _smooth(image: Pixels, weight: Pixels, step: int, axis: int) -> None:
    """Add to each pixel its neighbours' difference from it; beyond the edge the image goes on as it is there."""
    low: list[slice] = [slice(None)] * 4
    high: list[slice] = [slice(None)] * 4
    low[axis], high[axis] = slice(None, -step), slice(step, None)
    change = image[tuple(high)] - image[tuple(low)]
    change *= weight
    image[tuple(low)] += change
    image[tuple(high)] -= change


@cache
def _sensor(size: int) -> Pixels:
    """The noise of every photosite, repeated so that any shift of the tile leaves a whole frame."""
    repeats = -(-(size + TILE) // TILE)
    return np.tile(SENSOR, (1, repeats, repeats))


def add_noise(shot: Shot, image: Pixels) -> None:
    """Sensor noise, in place: a stored tile, shifted differently for each image."""
    size = image.shape[-1]
    tile = _sensor(size)
    settings = zip(shot.noise_shift.ravel(), shot.noise.ravel(), shot.saturation.ravel(), strict=True)
    for place, (shift, level, saturation) in enumerate(settings):
        down, across = divmod(int(shift) % (TILE * TILE), TILE)
        channels = tile if saturation > 0 else tile[:1]
        image[:, place] += channels[:, down : down + size, across : across + size] * level


def compress(coarseness: Pixels, image: Pixels) -> None:
    """As JPEG does, in place: quantised cosine transforms of 8 x 8 blocks of grey, colour at half the resolution."""
    size = image.shape[-1]
    missing = -size % 8
    padded = np.pad(image, [(0, 0), (0, 0), (0, missing), (0, missing)], mode="edge") if missing else image
    red, green, blue = padded
    grey = 0.59 * green
    grey += 0.3 * red
    grey += 0.11 * blue
    light = _quantise(grey, coarseness)
    red, blue = (_coarse(plane - grey, 0.5 * coarseness) for plane in (red, blue))
    green = light - (red * np.float32(0.3 / 0.59) + blue * np.float32(0.11 / 0.59))
    red += light
    blue += light
    for channel, plane in enumerate((red, green, blue)):
        image[channel] = plane[:, :size, :size]


def _coarse(chroma: Pixels, step: Pixels) -> Pixels:
    """The mean of each 2 x 2 square, rounded to multiples of a step."""
    rows = chroma[:, ::2] + chroma[:, 1::2]
    small = rows[:, :, ::2] + rows[:, :, 1::2]
    small *= 0.25 / step
    np.rint(small, out=small)
    small *= step
    return small.repeat(2, 2).repeat(2, 1)


def _cosines() -> Pixels:
    """The 8-point orthonormal cosine transform, row per frequency; written out, so that no CPU's cosine matters."""
    c = [0.5, 0.49039264, 0.46193977, 0.41573481, 0.35355339, 0.27778512, 0.19134172, 0.09754516, 0.0]
    table = np.empty((8, 8), np.float32)
    for frequency in range(8):
        for place in range(8):
            angle = frequency * (2 * place + 1) % 32
            angle = min(angle, 32 - angle)
            table[frequency, place] = c[angle] if angle <= 8 else -c[16 - angle]
    table[0] = c[4]
    return table


COSINES = _cosines()
EVEN, ODD = COSINES[::2, :4], COSINES[1::2, :4]
COARSER = (np.add.outer(np.arange(8), np.arange(8)) * 0.45 + 1.0).astype(np.float32)


def _product(matrix: Pixels, blocks: Pixels) -> Pixels:
    """matrix (4, 4) @ blocks (4, 8, m) as a fixed sequence of products and sums, which BLAS would not promise."""
    total: Pixels = matrix[:, 0, None, None] * blocks[0]
    for place in range(1, 4):
        total += matrix[:, place, None, None] * blocks[place]
    return total


def _forward(blocks: Pixels) -> Pixels:
    """Cosine transform over the first of the two block axes of (8, 8, m), which are then exchanged."""
    mirrored = blocks[:3:-1]
    result = np.empty((8, *blocks.shape[1:]), np.float32).swapaxes(0, 1)
    result[:, ::2] = _product(EVEN, blocks[:4] + mirrored).swapaxes(0, 1)
    result[:, 1::2] = _product(ODD, blocks[:4] - mirrored).swapaxes(0, 1)
    return result


def _backward(blocks: Pixels) -> Pixels:
    """The inverse of `_forward`, which also exchanges the axes."""
    even, odd = _product(EVEN.T, blocks[::2]), _product(ODD.T, blocks[1::2])
    result = np.empty((8, *blocks.shape[1:]), np.float32)
    np.add(even, odd, out=result[:4])
    np.subtract(even[::-1], odd[::-1], out=result[4:])
    return result.swapaxes(0, 1)


def _quantise(plane: Pixels, step: Pixels) -> Pixels:
    """Round the cosine coefficients of 8 x 8 blocks of (n, H, W) to multiples of a step that grows with frequency."""
    count, height, width = plane.shape
    tall, wide = height // 8, width // 8
    blocks = plane.reshape(count, tall, 8, wide, 8).transpose(2, 4, 0, 1, 3).reshape(8, 8, -1)
    blocks = _forward(_forward(blocks))
    unit = COARSER[:, :, None] * step.reshape(-1).repeat(tall * wide)
    blocks = blocks / unit
    np.rint(blocks, out=blocks)
    blocks *= unit
    blocks = _backward(_backward(blocks))
    return blocks.reshape(8, 8, count, tall, wide).transpose(2, 3, 0, 4, 1).reshape(count, height, width)


def to_bytes(shot: Shot, image: Pixels) -> NDArray[np.uint8]:
    """Values in [0, 1], which are used up, with the image's contrast as bytes, (3, n, H, W)."""
    image *= 255.0 * shot.contrast
    image += 127.5 * (1.0 - shot.contrast) + 0.5
    return clamp(image, 0.0, 255.0).astype(np.uint8)


def enlarge(planes: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Linear interpolation of (3, n, H, W) to (n, size, size, 3); pixels move about as whole 32-bit words."""
    red, green, blue = planes
    words = np.stack([red, green, blue, blue], axis=-1).view(np.uint32)[..., 0]
    rows = _resample(words.transpose(1, 0, 2), size)
    columns = _resample(np.ascontiguousarray(rows.transpose(2, 1, 0)), size)
    pixels = np.ascontiguousarray(columns.transpose(1, 2, 0))
    values = pixels.view(np.uint8).reshape(*pixels.shape, 4)
    images = np.empty((*pixels.shape, 3), np.uint8)
    for channel in range(3):  # one by one, which is seven times as fast as values[..., :3]
        images[..., channel] = values[..., channel]
    return images


def _resample(lines: NDArray[np.uint32], size: int) -> NDArray[np.uint32]:
    """`size` lines interpolated between the given ones, which lie along the first axis, byte by byte."""
    first, share = _neighbours(len(lines), size)
    low, high = (np.ascontiguousarray(lines[place]).view(np.uint8) for place in (first, first + 1))
    change = high.astype(np.int16)
    change -= low
    change *= share
    change += 64
    change >>= 7
    change += low
    return change.astype(np.uint8).view(np.uint32)


@cache
def _neighbours(count: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """For each of `size` lines the first of the two of `count` around it, and how near the second is, of 128."""
    place = (np.arange(size) + 0.5) * (count / size) - 0.5
    first = np.minimum(np.maximum(np.floor(place), 0), count - 2).astype(np.int64)
    share = np.minimum(np.maximum(np.rint((place - first) * 128), 0), 128)
    return first, share.astype(np.int16)[:, None, None]
