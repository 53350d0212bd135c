"""Orthographic ray casting of a head in closed form: every surface is a quadric seen under the inverse pose.

Arrays over pixels are (n, H, W) float32 and only + - * / sqrt min max touch them: those are rounded exactly, so an
image has the same bits alone or in a batch. Because rays are parallel, whatever is affine or quadratic in the pixel
is built from a row (n, 1, W) and a column (n, H, 1), which costs almost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.synthetic.person import Person
from fedvisage.faces.synthetic.shot import Shot

Pixels = NDArray[np.float32]
Window = tuple[slice, slice]

EYES_TO_MOUTH = 0.655  # of the half frame: the usual 112 x 112 alignment, seen from 10% further away
CENTRE_Y = 0.25  # where the middle between eyes and mouth lies, -1 top, 1 bottom


def clamp(value: Pixels) -> Pixels:
    """Cut to [0, 1]."""
    return np.minimum(np.maximum(value, 0.0), 1.0)


def hill(square: Pixels) -> Pixels:
    """1 at 0, smoothly 0 from 1 on; takes the squared distance."""
    rest = np.maximum(1.0 - square, 0.0)
    return rest * rest


def blend(under: Pixels, over: Pixels, weight: Pixels) -> None:
    """Put `over` on `under`, in place."""
    under += weight * (over - under)


def window(size: int, top: float, bottom: float, left: float, right: float) -> Window:
    """A part of the frame given as fractions of its side."""
    return slice(int(top * size), -int(-bottom * size // 1)), slice(int(left * size), -int(-right * size // 1))


@dataclass(frozen=True)
class View:
    """The rays of a block of images: head coordinates p = across * R[0] + down * R[1] + towards * R[2]."""

    pose: Pixels  # (9, n, 1, 1), R row by row
    across: Pixels  # (n, 1, W)
    down: Pixels  # (n, H, 1)
    scale: Pixels  # pixels per unit, (n, 1, 1)

    def origin(self, axis: int) -> Pixels:
        """This head coordinate of each ray where it crosses the plane of the camera through the head's centre."""
        return self.across * self.pose[axis] + self.down * self.pose[3 + axis]

    def crop(self, part: Window) -> View:
        """The same rays, part of the frame."""
        return replace(self, across=self.across[:, :, part[1]], down=self.down[:, part[0]])


def aim(size: int, person: Person, shot: Shot) -> View:
    """Rays through pixel centres, aligned so that eyes and mouth fall where face recognition expects them."""
    middle_y, middle_z = person.mouth_y * 0.5, 1.06
    pose = np.asarray(shot.pose, np.float32)
    apart = 0.5 * person.mouth_y / 1.02 + 0.5 * person.eye_spacing / 0.93
    scale = EYES_TO_MOUTH / 1.02 * shot.zoom / apart
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0 / size) - np.float32(1.0)
    across = (centres[None, None, :] - shot.shift_x) / scale + pose[1] * middle_y + pose[2] * middle_z
    down = (centres[None, :, None] - CENTRE_Y - shot.shift_y) / scale + pose[4] * middle_y + pose[5] * middle_z
    return View(
        pose,
        across.astype(np.float32, copy=False),
        down.astype(np.float32, copy=False),
        np.asarray(scale * (0.5 * size), np.float32),
    )


@dataclass(frozen=True)
class Ellipsoid:
    """Centre and radii in head coordinates; `lean` shears z along y and `flare` shears x along z."""

    centre: tuple[Pixels | float, Pixels | float, Pixels | float]
    radii: tuple[Pixels | float, Pixels | float, Pixels | float]
    lean: Pixels | float = 0.0
    flare: Pixels | float = 0.0

    def cast(self, view: View) -> tuple[Pixels, Pixels]:
        """Coverage (soft over one pixel at the outline) and position along the ray of the nearest hit, (n, H, W)."""
        (cx, cy, cz), (rx, ry, rz) = self.centre, self.radii
        pose = view.pose
        axes = [
            (
                (pose[3 * j] - self.flare * pose[3 * j + 2]) / rx,
                pose[3 * j + 1] / ry,
                (pose[3 * j + 2] - self.lean * pose[3 * j + 1]) / rz,
            )
            for j in range(3)
        ]
        shift = ((self.flare * cz - cx) / rx, -cy / ry, (self.lean * cy - cz) / rz)
        across, down, towards = axes
        a = _dot(towards, towards)
        ba, bd, b0 = _dot(across, towards) / a, _dot(down, towards) / a, _dot(shift, towards) / a
        u, v = view.across, view.down
        row = u * (u * (ba * ba - _dot(across, across) / a) + 2.0 * (ba * b0 - _dot(across, shift) / a))
        row += b0 * b0 - (_dot(shift, shift) - 1.0) / a
        column = v * (v * (bd * bd - _dot(down, down) / a) + 2.0 * (bd * b0 - _dot(down, shift) / a))
        square = row + column
        square += (u * (2.0 * (ba * bd - _dot(across, down) / a))) * v
        cover = clamp(square * (a * view.scale * (0.25 * (rx + ry))) + 0.5)
        hit = np.sqrt(np.maximum(square, 0.0))
        hit -= (u * ba + b0) + v * bd
        return cover, hit

    def normal(self, x: Pixels, y: Pixels, z: Pixels) -> tuple[Pixels, Pixels, Pixels]:
        """Outward normal at a point of the surface, of about unit length."""
        (cx, cy, cz), (rx, ry, rz) = self.centre, self.radii
        mean = (rx + ry + rz) * np.float32(1.0 / 3.0)
        dy, dz = y - cy, z - cz
        px = (x - cx - self.flare * dz) * (mean / (rx * rx))
        pz = (dz - self.lean * dy) * (mean / (rz * rz))
        return px, dy * (mean / (ry * ry)) - self.lean * pz, pz - self.flare * px


def _dot(a: tuple[Pixels, ...], b: tuple[Pixels, ...]) -> Pixels:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@dataclass
class Surface:
    """What each ray meets: the point and the outward normal in head coordinates, and how much of the pixel is covered."""

    x: Pixels
    y: Pixels
    z: Pixels
    nx: Pixels
    ny: Pixels
    nz: Pixels
    cover: Pixels

    def crop(self, part: Window) -> Surface:
        """Views of a part of the frame: writing to them writes to the whole."""
        rows, columns = part
        return Surface(*(field[:, rows, columns] for field in vars(self).values()))

    def lay(self, normal: tuple[Pixels, Pixels, Pixels], weight: Pixels) -> None:
        """Blend another surface's normal over this one's."""
        for under, over in zip((self.nx, self.ny, self.nz), normal, strict=True):
            blend(under, over, weight)


def skull(view: View, person: Person) -> tuple[Surface, Pixels]:
    """The head without nose, ears and hair, and the hits along the rays.

    An ellipsoid gives the height of the hit; the width and depth there are then those of this person's jaw and chin,
    and the ellipse of that width and depth is intersected exactly.
    """
    middle, half = 0.5 * (person.chin + person.crown), 0.5 * (person.chin - person.crown)
    _, hit = Ellipsoid((0.0, middle, 0.0), (person.width, half, person.depth)).cast(view)
    dx, dy, dz = view.pose[6], view.pose[7], view.pose[8]
    ox, oy, oz = view.origin(0), view.origin(1), view.origin(2)
    y = oy + hit * dy
    at_jaw = (y - (person.chin - 0.56)) * np.float32(1.0 / 0.62)
    at_jaw = hill(at_jaw * at_jaw)
    at_chin = (y - (person.chin - 0.14)) * np.float32(1.0 / 0.42)
    at_chin = hill(at_chin * at_chin)
    wide = 1.0 / (person.width * (1.0 + person.taper * y + person.jaw * at_jaw + person.chin_width * at_chin))
    deep = 1.0 / (person.depth * (1.0 + 0.16 * at_jaw + person.chin_depth * at_chin))
    wide *= wide
    deep *= deep
    tall = 1.0 / (half * half)
    oy = oy - middle
    a = wide * (dx * dx) + deep * (dz * dz) + tall * dy * dy
    wide_x, deep_z = wide * ox, deep * oz
    b = wide_x * dx + deep_z * dz + (oy * (tall * dy))
    c = wide_x * ox + deep_z * oz + oy * oy * tall - 1.0
    square = b * b - a * c
    cover = clamp(square * (view.scale * 0.55) + 0.5)
    hit = (np.sqrt(np.maximum(square, 0.0)) - b) / a
    oy += hit * dy
    ox += hit * dx
    oz += hit * dz
    return Surface(ox, oy + middle, oz, wide * ox, oy * (2.0 * tall), deep * oz, cover), hit


def add_nose(view: View, person: Person, face: Surface, hit: Pixels) -> Pixels:
    """Grow a nose of three ellipsoids, smoothly joined, out of the face; returns how much of each pixel is nose.

    All arrays are of the same part of the frame, `face` and `hit` are changed in place.
    """
    length, tip, rise = person.nose_length, person.tip_size, person.nose_depth - 1.17
    parts = (
        Ellipsoid(
            (0.0, 0.42 * length, 0.98 + 0.5 * rise + person.bridge_height),
            (person.bridge_width, 0.68 * length, 0.2),
            lean=rise / (0.75 * length),
        ),
        Ellipsoid((0.0, length + 0.03, person.nose_depth - 0.27), (person.nose_width, 0.115, 0.2)),
        Ellipsoid((0.0, length - person.nose_lift, person.nose_depth - tip), (tip * 0.95, tip * 0.85, tip)),
    )
    nose = np.zeros_like(hit)
    for part, softness in zip(parts, (0.09, 0.07, 0.07), strict=True):
        cover, near = part.cast(view)
        weight = clamp((near - hit) * np.float32(0.5 / softness) + 0.5)
        weight *= cover
        blend(hit, near, weight)
        hit += np.float32(softness) * weight * (1.0 - weight)
        x, y, z = (view.origin(axis) + hit * view.pose[6 + axis] for axis in range(3))
        face.lay(part.normal(x, y, z), weight)
        np.maximum(face.cover, cover, out=face.cover)
        np.maximum(nose, weight, out=nose)
    for axis, field in enumerate((face.x, face.y, face.z)):
        field[...] = view.origin(axis) + hit * view.pose[6 + axis]
    return nose


def add_ear(view: View, person: Person, face: Surface, hit: Pixels, side: int) -> Pixels:
    """Attach an ear (side -1 left of the image, 1 right); returns the shade inside it, 1 where there is none."""
    size = person.ear_size
    ear = Ellipsoid(
        (side * (0.97 * person.width + person.ear_flare), person.ear_y, -0.12),
        (0.1 + 0.3 * person.ear_flare, size, 0.62 * size),
        flare=-side * (0.25 + 2.0 * person.ear_flare),
    )
    cover, near = ear.cast(view)
    front = clamp((near - hit) * 12.0 + 0.5)
    weight = cover * np.maximum(front, 1.0 - face.cover)
    x, y, z = (view.origin(axis) + near * view.pose[6 + axis] for axis in range(3))
    face.lay(ear.normal(x, y, z), weight)
    np.maximum(face.cover, cover, out=face.cover)
    inner_y, inner_z = (y - person.ear_y) / (0.62 * size), (z + 0.10) / (0.42 * size)
    blend(face.z, z, weight)
    blend(face.y, y, weight)
    blend(face.x, x, weight)
    return 1.0 - 0.45 * weight * hill(inner_y * inner_y + inner_z * inner_z)


def add_neck(view: View, person: Person, face: Surface) -> Pixels:
    """A neck behind the head; returns its shade (the chin keeps light away), 1 where there is none."""
    neck = Ellipsoid((0.0, 2.4, -0.35), (0.66 * person.width + 0.4 * person.jaw, 2.2, 0.68), lean=-0.08)
    cover, near = neck.cast(view)
    weight = cover * (1.0 - face.cover)
    x, y, z = (view.origin(axis) + near * view.pose[6 + axis] for axis in range(3))
    face.lay(neck.normal(x, y, z), weight)
    np.maximum(face.cover, cover, out=face.cover)
    return 1.0 - weight * (0.62 - 0.3 * clamp((y - person.chin) * 1.2))
