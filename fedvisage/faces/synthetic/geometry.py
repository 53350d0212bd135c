"""Orthographic ray casting of a head in closed form: every surface is a quadric seen under the inverse pose.

Arrays over pixels are (n, H, W) float32 and only + - * / sqrt min max touch them: those are rounded exactly, so an
image has the same bits alone or in a batch. Because rays are parallel, whatever is affine or quadratic in the pixel
is the sum of a row (n, 1, W) and a column (n, H, 1): a surface costs a handful of operations per pixel.
Everything here has the images of a batch on axis -3; numbers that belong to an image have the shape (n, 1, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvisage.faces.synthetic.chance import Values
from fedvisage.faces.synthetic.person import Person
from fedvisage.faces.synthetic.shot import Shot

Pixels = Values
Number = Values | float
Window = tuple[slice, slice]

EYES_TO_MOUTH = 0.655  # of the half frame: the usual 112 x 112 alignment, seen from 10% further away
CENTRE_Y = 0.25  # where the middle between eyes and mouth lies, -1 top, 1 bottom


def clamp(value: Pixels, low: float = 0.0, high: float = 1.0) -> Pixels:
    """Cut to [low, high], in place; several times as fast as the maximum or minimum with a number."""
    return value.clip(low, high, out=value)


def at_least(low: float, value: Pixels) -> Pixels:
    """Cut to [low, infinity), in place."""
    return clamp(value, low, np.inf)


def hill(square: Pixels) -> Pixels:
    """1 at 0, smoothly 0 from 1 on; takes the squared distance."""
    rest = at_least(0.0, 1.0 - square)
    rest *= rest
    return rest


def blend(under: Pixels, over: Pixels, weight: Pixels) -> None:
    """Put `over` on `under`, in place."""
    change = np.subtract(over, under)
    change *= weight
    under += change


def window(size: int, top: float, bottom: float, left: float, right: float) -> Window:
    """A part of the frame given as fractions of its side."""
    return slice(int(top * size), -int(-bottom * size // 1)), slice(int(left * size), -int(-right * size // 1))


def cut(field: Pixels, part: Window) -> Pixels:
    """A contiguous copy of a part of the frame."""
    return np.ascontiguousarray(field[(..., *part)])


def pixel_centres(size: int) -> Pixels:
    """Of one side of the frame, which goes from -1 to 1."""
    return (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0 / size) - np.float32(1.0)


@dataclass(frozen=True)
class View:
    """The rays: head coordinates p = across * R[0] + down * R[1] + hit * R[2], R the pose."""

    pose: Pixels  # (9, n, 1, 1), R row by row
    across: Pixels  # (n, 1, W)
    down: Pixels  # (n, H, 1)
    row: Pixels  # across * R[0], (3, n, 1, W)
    column: Pixels  # down * R[1], (3, n, H, 1)
    scale: Pixels  # pixels per unit, (n, 1, 1)

    def at(self, hit: Pixels) -> Pixels:
        """The point `hit` along each ray in head coordinates, (3, n, H, W)."""
        point = hit * self.pose[6:]
        point += self.row
        point += self.column
        return point

    def crop(self, part: Window) -> View:
        """The same rays, part of the frame."""
        rows, columns = part
        return View(
            self.pose,
            self.across[:, :, columns],
            self.down[:, rows],
            self.row[..., columns],
            self.column[..., rows, :],
            self.scale,
        )


def aim(size: int, person: Person, shot: Shot) -> View:
    """Rays through pixel centres, aligned so that eyes and mouth fall where face recognition expects them."""
    middle_y, middle_z = person.mouth_y * 0.5, 1.06
    apart = 0.5 * person.mouth_y / 1.02 + 0.5 * person.eye_spacing / 0.93
    scale = EYES_TO_MOUTH / 1.02 * shot.zoom / apart
    pose, centres = shot.pose, pixel_centres(size)
    across = (centres[None, None, :] - shot.shift_x) / scale + (pose[1] * middle_y + pose[2] * middle_z)
    down = (centres[None, :, None] - CENTRE_Y - shot.shift_y) / scale + (pose[4] * middle_y + pose[5] * middle_z)
    return View(pose, across, down, across * pose[:3], down * pose[3:6], scale * (0.5 * size))


@dataclass(frozen=True)
class Quadric:
    """A surface as its rays see it, per pixel of a row (n, 1, W) and of a column (n, H, 1).

    The squared half chord of a ray is row + column + cross * down, the chord's middle lies at -(middle_row +
    middle_column), the normal at a hit is normal_row + normal_column + normal_hit * hit.
    """

    row: Pixels
    column: Pixels
    cross: Pixels
    middle_row: Pixels
    middle_column: Pixels
    sharpness: Pixels  # from the squared half chord to the distance from the outline, in pixels, (n, 1, 1)
    normal_row: Pixels
    normal_column: Pixels
    normal_hit: Pixels

    def crop(self, part: Window) -> Quadric:
        """The same surface, part of the frame."""
        rows, columns = part
        return Quadric(
            self.row[..., columns],
            self.column[:, rows],
            self.cross[..., columns],
            self.middle_row[..., columns],
            self.middle_column[:, rows],
            self.sharpness,
            self.normal_row[..., columns],
            self.normal_column[..., rows, :],
            self.normal_hit,
        )

    def half_chord_squared(self, view: View) -> Pixels:
        """Of each ray, negative beside the surface, (n, H, W)."""
        square = self.cross * view.down
        square += self.row
        square += self.column
        return square

    def cover(self, square: Pixels) -> Pixels:
        """How much of each pixel lies inside the outline, given the squared half chord."""
        inside = square * self.sharpness
        inside += 0.5
        return clamp(inside)

    def cast(self, view: View) -> tuple[Pixels, Pixels]:
        """Coverage and the place along the ray of the nearest hit, (n, H, W)."""
        hit = self.half_chord_squared(view)
        cover = self.cover(hit)
        at_least(0.0, hit)
        np.sqrt(hit, out=hit)
        hit -= self.middle_row
        hit -= self.middle_column
        return cover, hit

    def normals(self, hit: Pixels) -> Pixels:
        """Outward, of about unit length, (3, n, H, W)."""
        normals = hit * self.normal_hit
        normals += self.normal_row
        normals += self.normal_column
        return normals


def ellipsoid(
    view: View,
    centre: tuple[Number, Number, Number],
    radii: tuple[Number, Number, Number],
    lean: Number = 0.0,
    flare: Number = 0.0,
) -> Quadric:
    """An ellipsoid in head coordinates under a view; `lean` shears z along y and `flare` shears x along z."""
    (cx, cy, cz), (rx, ry, rz) = centre, radii
    mean = (rx + ry + rz) * np.float32(1.0 / 3.0)

    def to_sphere(x: Number, y: Number, z: Number) -> list[Values]:
        return [np.asarray((x - flare * z) / rx), np.asarray(y / ry), np.asarray((z - lean * y) / rz)]

    def to_normal(point: list[Values]) -> Values:
        x, y, z = point[0] * (mean / rx), point[1] * (mean / ry), point[2] * (mean / rz)
        return np.stack(np.broadcast_arrays(x, y - lean * z, z - flare * x))

    u, v = view.across, view.down
    across, down, towards = (to_sphere(*view.pose[first : first + 3]) for first in (0, 3, 6))
    shift = [-value for value in to_sphere(cx, cy, cz)]
    a = _dot(towards, towards)
    mu, mv, m = _dot(across, towards) / a, _dot(down, towards) / a, _dot(shift, towards) / a
    one = m * m - (_dot(shift, shift) - 1.0) / a
    return Quadric(
        row=u * (u * (mu * mu - _dot(across, across) / a) + 2.0 * (mu * m - _dot(across, shift) / a)) + one,
        column=v * (v * (mv * mv - _dot(down, down) / a) + 2.0 * (mv * m - _dot(down, shift) / a)),
        cross=u * (2.0 * (mu * mv - _dot(across, down) / a)),
        middle_row=mu * u + m,
        middle_column=mv * v,
        sharpness=a * view.scale * (0.25 * (rx + ry)),
        normal_row=to_normal(across) * u + to_normal(shift),
        normal_column=to_normal(down) * v,
        normal_hit=to_normal(towards),
    )


def _dot(a: list[Values], b: list[Values]) -> Values:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@dataclass(frozen=True)
class Skull:
    """The head without nose, ears and hair: an ellipsoid whose width and depth follow jaw and chin down the face.

    Width and depth are taken once per row of pixels, at the height where its rays meet the outline and the front of
    the face; along a row the squared half chord is then square u^2 + linear u + constant. Columns, (n, H, 1).
    """

    square: Pixels
    linear: Pixels
    constant: Pixels
    middle: Pixels
    middle_u: Pixels
    sharpness: Pixels
    squeeze: Pixels  # from point to normal, (3, n, H, 1)
    centre: Pixels  # y of the middle of the head, (n, 1, 1)


def skull(view: View, person: Person) -> Skull:
    """Place a skull before the camera."""
    pose, v = view.pose, view.down
    centre, half = 0.5 * (person.chin + person.crown), 0.5 * (person.chin - person.crown)
    wide, deep = _profile(person, v * pose[4] + 0.35 * pose[7])[0], _profile(person, v * pose[4] + 1.05 * pose[7])[1]
    tall = 1.0 / (half * half)
    weights = [wide, tall, deep]
    across, towards = list(pose[:3]), list(pose[6:])
    down = [v * pose[3], v * pose[4] - centre, v * pose[5]]

    def product(one: list[Pixels], two: list[Pixels]) -> Pixels:
        return _dot([weight * side for weight, side in zip(weights, one, strict=True)], two)

    a = product(towards, towards)
    middle_u, middle = product(across, towards) / a, product(down, towards) / a
    return Skull(
        square=middle_u * middle_u - product(across, across) / a,
        linear=2.0 * (middle_u * middle - product(across, down) / a),
        constant=middle * middle - (product(down, down) - 1.0) / a,
        middle=middle,
        middle_u=middle_u,
        sharpness=a * (view.scale * 0.5),
        squeeze=np.stack(np.broadcast_arrays(wide, 2.0 * tall, deep)),
        centre=centre,
    )


def _profile(person: Person, y: Pixels) -> tuple[Pixels, Pixels]:
    """1 / width^2 and 1 / depth^2 of the head at a height."""
    below_jaw, below_chin = (y - (person.chin - 0.56)) * (1.0 / 0.62), (y - (person.chin - 0.14)) * (1.0 / 0.42)
    jaw, chin = hill(below_jaw * below_jaw), hill(below_chin * below_chin)
    wide = person.width * (1.0 + person.taper * clamp(y + 1.0) + person.jaw * jaw + person.chin_width * chin)
    deep = person.depth * (1.0 + 0.16 * jaw + person.chin_depth * chin)
    return 1.0 / (wide * wide), 1.0 / (deep * deep)


@dataclass(frozen=True)
class Surface:
    """What each ray meets."""

    point: Pixels  # in head coordinates, (3, n, H, W)
    normal: Pixels  # outward, of about unit length, (3, n, H, W)
    cover: Pixels  # how much of the pixel is covered, (n, H, W)
    hit: Pixels  # place along the ray, (n, H, W)

    def crop(self, part: Window) -> Surface:
        """A copy of a part of the frame: contiguous arrays are several times faster to work on."""
        return Surface(cut(self.point, part), cut(self.normal, part), cut(self.cover, part), cut(self.hit, part))

    def paste(self, part: Window, piece: Surface) -> None:
        """Put back what `crop` took."""
        whole = (..., *part)
        self.point[whole] = piece.point
        self.normal[whole] = piece.normal
        self.cover[whole] = piece.cover
        self.hit[whole] = piece.hit


def cast_skull(shape: Skull, view: View) -> Surface:
    """Where the rays meet the skull."""
    u = view.across
    hit = u * shape.square
    hit += shape.linear
    hit *= u
    hit += shape.constant
    cover = hit * shape.sharpness
    cover += 0.5
    clamp(cover)
    at_least(0.0, hit)
    np.sqrt(hit, out=hit)
    hit -= u * shape.middle_u
    hit -= shape.middle
    point = view.at(hit)
    normal = point * shape.squeeze
    normal[1] -= shape.centre * shape.squeeze[1]
    return Surface(point, normal, cover, hit)


def nose_parts(view: View, person: Person) -> tuple[Quadric, Quadric, Quadric]:
    """Bridge, wings and tip."""
    length, tip, rise = person.nose_length, person.tip_size, person.nose_depth - 1.17
    return (
        ellipsoid(
            view,
            (0.0, 0.42 * length, 0.98 + 0.5 * rise + person.bridge_height),
            (person.bridge_width, 0.68 * length, 0.2),
            lean=rise / (0.75 * length),
        ),
        ellipsoid(view, (0.0, length + 0.03, person.nose_depth - 0.27), (person.nose_width, 0.115, 0.2)),
        ellipsoid(view, (0.0, length - person.nose_lift, person.nose_depth - tip), (tip * 0.95, tip * 0.85, tip)),
    )


def add_nose(parts: tuple[Quadric, ...], view: View, face: Surface) -> None:
    """Grow a nose out of the face, its parts smoothly joined."""
    hit = face.hit
    for part, softness in zip(parts, (0.09, 0.07, 0.07), strict=True):
        cover, near = part.cast(view)
        near -= hit
        weight = near * (0.5 / softness)
        weight += 0.5
        clamp(weight)
        weight *= cover
        near *= weight
        hit += near
        near = 1.0 - weight
        near *= weight
        near *= softness
        hit += near
        blend(face.normal, part.normals(hit), weight)
        np.maximum(face.cover, cover, out=face.cover)
    face.point[...] = view.at(hit)


def ear(view: View, person: Person, side: int) -> Quadric:
    """Side -1 is on the left of the image, 1 on the right."""
    return ellipsoid(
        view,
        (side * (0.97 * person.width + person.ear_flare), person.ear_y, -0.12),
        (0.1 + 0.3 * person.ear_flare, person.ear_size, 0.62 * person.ear_size),
        flare=-side * (0.25 + 2.0 * person.ear_flare),
    )


def add_ear(shape: Quadric, person: Person, view: View, face: Surface) -> Pixels:
    """Attach an ear unless long hair hides it; returns the shade inside it, 1 where there is none."""
    cover, near = shape.cast(view)
    cover *= 1.0 - person.hair_long
    weight = near - face.hit
    weight *= 12.0
    weight += 0.5
    clamp(weight)
    np.maximum(weight, 1.0 - face.cover, out=weight)
    weight *= cover
    blend(face.normal, shape.normals(near), weight)
    np.maximum(face.cover, cover, out=face.cover)
    point = view.at(near)
    inner_y = (point[1] - person.ear_y) * (1.0 / (0.62 * person.ear_size))
    inner_z = (point[2] + 0.10) * (1.0 / (0.42 * person.ear_size))
    blend(face.point, point, weight)
    inner_y *= inner_y
    inner_z *= inner_z
    weight *= hill(inner_y + inner_z)
    weight *= -0.45
    weight += 1.0
    return weight


def neck(view: View, person: Person) -> Quadric:
    """The neck, behind the head."""
    return ellipsoid(view, (0.0, 2.4, -0.35), (0.66 * person.width + 0.4 * person.jaw, 2.2, 0.68), lean=-0.08)


def add_neck(shape: Quadric, person: Person, view: View, face: Surface) -> Pixels:
    """Put the neck behind the head; returns its shade (the chin keeps light away), 1 where there is none."""
    cover, near = shape.cast(view)
    weight = cover * (1.0 - face.cover)
    blend(face.normal, shape.normals(near), weight)
    np.maximum(face.cover, cover, out=face.cover)
    point = view.at(near)
    blend(face.point, point, weight)
    weight *= 0.62 - 0.3 * clamp((point[1] - person.chin) * 1.2)
    return 1.0 - weight
