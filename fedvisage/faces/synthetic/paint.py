"""What the surface of a head looks like: skin, eyes, brows, mouth, hair and what is worn, painted at the hit points.

`colour` is the reflectance, (3, n, H, W). Painters change it, and the normals for folds and lips, in place.
"""

from __future__ import annotations

import numpy as np

from fedvisage.faces.synthetic.chance import Draws
from fedvisage.faces.synthetic.geometry import Pixels, Quadric, Surface, View, at_least, blend, clamp, ellipsoid, hill
from fedvisage.faces.synthetic.person import Person
from fedvisage.faces.synthetic.shot import Shot

TILE = 128


def noise_tile(stream: int, smooth: tuple[int, int]) -> Pixels:
    """A periodic noise texture of zero mean and unit deviation, cut at 3; passes of smoothing down and across."""
    places = np.arange(TILE * TILE, dtype=np.int64)
    tile = Draws(places, np.full_like(places, stream)).normal().reshape(TILE, TILE)
    for axis, passes in enumerate(smooth):
        for _ in range(passes):
            tile = 0.5 * tile + 0.25 * (np.roll(tile, 1, axis) + np.roll(tile, -1, axis))
    tile -= tile.sum() / tile.size
    scale = np.sqrt((tile * tile).sum() / tile.size)
    steps = np.rint(tile / scale * 256.0)  # whatever the order of the sums, the same
    return np.asarray(np.minimum(np.maximum(steps, -768.0), 768.0) / 256.0, np.float32)


MOTTLE = noise_tile(1, (2, 2)).ravel()
STRANDS = noise_tile(2, (24, 1)).ravel()


def texture(tile: Pixels, across: Pixels, down: Pixels) -> Pixels:
    """The texel of a tile at these coordinates, in texels."""
    place = down.astype(np.int32)
    place &= TILE - 1
    place *= TILE
    column = across.astype(np.int32)
    column &= TILE - 1
    place += column
    return tile.take(place)


def paint_skin(person: Person, shot: Shot, view: View, point: Pixels, normal: Pixels, colour: Pixels) -> None:
    """Mottling, freckles, beard, and cheeks that stand out and blush."""
    x, y = point
    side = np.abs(x)
    grain = texture(MOTTLE, x * 38.0 + (200.0 + person.skin_shift), y * 38.0 + 200.0)
    marks = at_least(0.0, grain - 0.7)
    marks *= -0.15 * person.freckles
    marks += 1.0
    cheek_x, cheek_y = side - 0.56, y - 0.5
    cheek_x *= 2.6
    cheek_y *= 2.4
    cheek = hill(cheek_x * cheek_x + cheek_y * cheek_y)
    colour[0] *= marks
    marks *= 1.0 - cheek * (0.16 * person.blush)
    colour[1:] *= marks
    cheek *= 0.55 * person.cheeks
    cheek_y *= cheek
    normal[1] += cheek_y
    cheek_x *= cheek
    cheek_x *= np.sign(x)
    normal[0] += cheek_x
    grain *= 0.2
    grain += 1.1
    _paint_beard(person, side, y, clamp(grain), colour)


def _paint_beard(person: Person, side: Pixels, y: Pixels, grain: Pixels, colour: Pixels) -> None:
    edge = y - (0.55 + person.beard_line)
    edge += side * (0.42 - 0.42 * side)
    edge -= 0.55 * at_least(0.0, side - 0.55)
    np.minimum(edge, person.chin + 0.2 - y, out=edge)
    edge *= 4.0
    clamp(edge)
    edge *= grain
    edge *= person.beard * 0.85
    blend(colour, person.hair * 0.8, edge)


def paint_lower_face(person: Person, shot: Shot, view: View, point: Pixels, normal: Pixels, colour: Pixels) -> None:
    """Folds beside the mouth, mole and nostrils."""
    x, y = point
    side = np.abs(x)
    fold = side - (0.3 - 0.42 * person.nose_length)
    fold -= 0.42 * y
    fold *= 14.0
    span = y - (0.5 * (person.nose_length + person.mouth_y) + 0.02)
    span *= 2.9
    deep = clamp(0.25 + 0.7 * shot.smile + 0.5 * person.age) * 0.3
    crease = hill(fold * fold)
    crease *= hill(span * span)
    crease *= -deep
    crease += 1.0
    spot_x, spot_y = x - person.mole_x, y - person.mole_y
    spot = hill((spot_x * spot_x + spot_y * spot_y) * (0.4 / (person.mole_size * person.mole_size)))
    spot *= person.mole
    side -= 0.42 * person.nose_width
    side *= 11.0
    hole_y = y - (person.nose_length + 0.115)
    hole_y *= 19.0
    dark = hill(side * side + hole_y * hole_y)
    dark *= 0.8
    crease *= 1.0 - np.maximum(spot, dark)
    colour *= crease


def paint_mouth(person: Person, shot: Shot, view: View, point: Pixels, normal: Pixels, colour: Pixels) -> None:
    """Lips, teeth, the line between the lips and the dent below them."""
    half = person.mouth_width * (1.0 + 0.16 * shot.smile)
    along = point[0] * (1.0 / half)
    square = along * along
    along = np.abs(along)
    arch = at_least(0.0, 1.0 - square)
    bend = person.mouth_curve + 0.13 * shot.smile
    v = point[1] + square * bend - (person.mouth_y + 0.35 * bend)
    thin = 1.0 - 0.25 * np.maximum(shot.smile, 0.0)
    gap = arch * (shot.mouth_open * 1.3)
    top = arch * (-person.upper_lip * thin) * (1.0 - person.cupid * hill(square * 16.0)) - 0.6 * gap
    bottom = arch * (1.5 - 0.5 * arch) * (person.lower_lip * thin) + gap
    sharp = view.scale * 0.8
    lips = clamp(np.minimum(v - top, bottom - v) * sharp + 0.5) * clamp((1.04 - along) * 14.0)
    blend(colour, person.lips, lips)
    height = np.abs(v)
    tilt = clamp(v * 30.0 + 0.5) * -0.8 + 0.35
    normal[1] += lips * tilt * (1.0 - clamp(height * 22.0 - 2.0))
    inside = clamp(np.minimum(v + 0.55 * gap, 0.9 * gap - v) * sharp) * lips
    teeth = clamp((0.6 * gap - 0.02 - v) * sharp + 0.5) * clamp(1.15 - along * 1.2)
    blend(colour, (0.05 + 0.6 * teeth) * shot.white, inside)
    line = clamp(1.0 - np.abs(v - 0.15 * gap) * (1.0 / 0.035)) * clamp((1.08 - along) * 9.0)
    under = (v - bottom - 0.05) * 9.0
    dent = hill(under * under) * hill(square * 1.6)
    colour *= 1.0 - np.maximum(0.62 * line * (1.0 - inside), 0.16 * dent)


def paint_eyes(person: Person, shot: Shot, view: View, point: Pixels, normal: Pixels, colour: Pixels) -> None:
    """Sockets, lids, eyeballs, lashes and brows."""
    x, y = point
    out = np.abs(x)
    out -= 0.5 * person.eye_spacing
    u = out * (1.0 / person.eye_width)
    v = (y - out * person.eye_tilt) * (1.0 / person.eye_width)
    square = u * u
    socket_y = v * 0.42 + 0.14
    socket = hill(square * 0.3 + socket_y * socket_y)
    normal[1] += (0.5 * person.eye_depth + 0.5 * person.brow_ridge) * socket * socket_y
    arch = at_least(-0.6, 1.0 - square)
    opened = person.eye_open * shot.lids
    below_lid = v + arch * (0.56 * opened)
    above_lid = arch * (0.33 * np.minimum(opened * 2.0, 1.0)) - v
    sharp = view.scale * person.eye_width
    pouch = (v - 0.85) * 1.7
    bags = hill(pouch * pouch + square * 0.7) * (person.bags * 0.5)
    crease = (below_lid + person.crease) * 7.0
    lid = hill(crease * crease) * hill(square * 0.7) * 0.3
    colour *= (1.0 - socket * (0.22 * person.eye_depth)) * (1.0 - np.maximum(bags, lid))
    white = clamp(np.minimum(below_lid, above_lid) * sharp + 0.5)
    blend(colour, _eyeball(person, shot, sharp, np.sign(x), u, v, below_lid), white)
    width = np.abs(u)
    lash = clamp(1.25 - np.abs(below_lid + 0.03) * 6.5) * clamp((1.12 - width) * 7.0)
    rim = clamp(1.0 - np.abs(above_lid) * 8.0) * clamp((1.05 - width) * 5.0)
    colour *= 1.0 - np.maximum(lash * 0.85, rim * 0.28)
    _paint_brows(person, shot, view, out, y, colour)


def _eyeball(
    person: Person, shot: Shot, sharp: Pixels, side: Pixels, u: Pixels, v: Pixels, below_lid: Pixels
) -> Pixels:
    across, down = u * side - shot.gaze_x, v - (shot.gaze_y - 0.06)
    distance = np.sqrt(across * across + down * down)
    iris = clamp((person.iris_size - distance) * sharp + 0.5)
    ring = 1.7 - 1.1 * clamp((distance - 0.6 * person.iris_size) * 4.0)
    pupil = clamp((0.42 * person.iris_size - distance) * sharp + 0.5)
    across += 0.15 - 0.3 * shot.light[0]
    down += 0.16
    glint = clamp((0.14 - np.sqrt(across * across + down * down)) * sharp + 0.35)
    shadow = (0.5 + 0.5 * clamp(below_lid * 3.0)) * (1.0 - pupil)
    white = 0.78 * (1.0 - iris)
    white *= shadow
    white += 0.9 * glint
    iris *= ring
    iris *= shadow
    ball = iris * person.iris
    ball += white * shot.white
    return ball


def _paint_brows(person: Person, shot: Shot, view: View, out: Pixels, y: Pixels, colour: Pixels) -> None:
    u = (out - 0.02) * (1.0 / person.brow_length)
    bow = u - 0.25
    from_middle = y + (1.0 - bow * bow) * person.brow_arch - u * person.brow_tilt - (person.brow_y - shot.brow_raise)
    thick = 1.0 - 0.45 * clamp(u + 0.0)
    band = clamp((thick * person.brow_thickness - np.abs(from_middle)) * (view.scale * 0.55) + 0.5)
    band *= clamp((1.0 - np.abs(u)) * 5.0)
    band *= person.brow_density
    blend(colour, person.hair * 0.75, band)


def paint_cloth(shot: Shot, view: View, face: Surface, colour: Pixels) -> None:
    """A mask over nose and mouth, or a scarf."""
    edge = face.point[1] - shot.cloth_top - 0.12 * face.point[0] * face.point[0]
    folds = 1.0 + 0.08 * texture(STRANDS, face.point[1] * 24.0 + 300.0, face.point[0] * 9.0 + 300.0)
    blend(colour, shot.cloth * folds, clamp(edge * view.scale + 0.5))


def hair_shell(view: View, person: Person, shot: Shot) -> Quadric:
    """The outline of the hair (or of a cap) around the skull."""
    volume = person.hair_volume * (1.0 + 0.15 * shot.hair_change) * (1.0 - 0.4 * shot.cap) + 0.02 + 0.05 * shot.cap
    middle, half = 0.5 * (person.chin + person.crown), 0.5 * (person.chin - person.crown)
    return ellipsoid(
        view,
        (0.0, middle - 0.12, -0.06),
        (person.width + 0.02 + 0.7 * volume, half - 0.04 + volume, person.depth + 0.5 * volume),
    )


def add_hair(shell: Quadric, person: Person, shot: Shot, view: View, face: Surface, colour: Pixels) -> Pixels:
    """Hair over the skull with this person's hair line, and its shadow on the forehead; returns its outline."""
    x, y, z = face.point
    across = z * 0.6
    across += x
    across *= 24.0 + 26.0 * person.curl
    across += 300.0 + person.skin_shift
    down = y * (5.0 + 22.0 * person.curl)
    down += 300.0
    strand = texture(STRANDS, across, down)
    edge = np.multiply(x, -person.hair_recede, out=across)
    edge += person.hair_part
    edge *= x
    edge -= y
    edge += person.hair_line + 0.02 * shot.hair_change
    behind = np.subtract(person.hair_side, z, out=down)
    behind *= 1.5
    np.minimum(behind, person.hair_length - y, out=behind)
    np.maximum(edge, behind, out=edge)
    weight = np.multiply(strand, 0.025, out=behind)
    weight += edge
    weight *= view.scale * 0.45
    weight += 0.5
    clamp(weight)
    cover = shell.cover(shell.half_chord_squared(view))
    weight *= cover
    edge *= 6.0
    edge += 1.0
    clamp(edge)
    edge *= -0.35
    edge += 1.0
    colour *= edge
    strand *= person.strands * 0.32
    strand += 1.0
    blend(colour, strand * person.hair, weight)
    np.maximum(face.cover, weight, out=face.cover)
    return cover


def put_on_cap(shot: Shot, view: View, face: Surface, cover: Pixels, colour: Pixels) -> None:
    """A cap down to the forehead, over the hair; `cover` is that of the shell of the hair."""
    weight = clamp((-0.72 - 0.1 * face.point[2] - face.point[1]) * view.scale + 0.5)
    weight *= cover
    weight *= shot.cap
    blend(colour, shot.cloth, weight)
    np.maximum(face.cover, weight, out=face.cover)


def back_hair(view: View, person: Person, shot: Shot) -> Quadric:
    """Long hair behind head and neck."""
    volume = person.hair_volume * (1.0 + 0.15 * shot.hair_change)
    return ellipsoid(view, (0.0, 0.45, -0.45), (person.width + 0.1 + 0.8 * volume, 1.3 + 0.6 * person.hair_length, 0.8))


def hang_hair(shape: Quadric, person: Person, shot: Shot, view: View, image: Pixels) -> None:
    """Put long hair before the backdrop."""
    weight = shape.cover(shape.half_chord_squared(view))
    weight *= person.hair_long
    blend(image, person.hair * (shot.ambient + 0.3 * shot.key), weight)


def wear_glasses(person: Person, shot: Shot, view: View, face: Surface, image: Pixels) -> None:
    """Spectacles on a plane before the eyes, and their arms along the temples; `image` is lit, (3, n, H, W)."""
    plane = person.depth + 0.12
    x, y, _ = view.at((plane - view.row[2] - view.column[2]) * (1.0 / view.pose[8]))
    side = np.abs(x)
    centre = 0.5 * person.eye_spacing + 0.02
    u, v = (side - centre) * (1.0 / person.frame_width), (y - 0.04) * (1.0 / person.frame_height)
    u, v = u * u, v * v
    rounded = u + v
    reach = np.sqrt(rounded + person.frame_square * (np.sqrt(u * u + v * v) - rounded))
    reach -= 1.0
    sharp = view.scale * person.frame_height
    lens = clamp(0.5 - reach * sharp)
    rim = clamp((person.frame_weight / person.frame_height - np.abs(reach)) * sharp + 0.5)
    bar = clamp((person.frame_weight - np.abs(y + 0.03)) * view.scale + 0.5)
    bar *= clamp((centre - person.frame_width - side) * view.scale + 0.5)
    arm = clamp((person.frame_weight - np.abs(face.point[1] + 0.02)) * view.scale + 0.5) * face.cover
    arm *= clamp((np.abs(face.point[0]) - centre - 0.9 * person.frame_width) * view.scale) * clamp(
        (face.point[2] + 0.15) * 9.0
    )
    arm *= clamp(reach * sharp)
    lens *= shot.glasses
    image *= 1.0 - lens * shot.shades
    image += 0.08 * lens * clamp(0.6 - np.abs(x * 0.8 + y + 0.2) * 4.0)
    frame = np.maximum(np.maximum(rim, bar), arm) * shot.glasses
    blend(image, person.frame * (0.55 + 0.6 * np.maximum(-shot.light[1], 0.0)), frame)
