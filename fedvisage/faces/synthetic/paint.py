"""What the surface of a head looks like: skin, eyes, brows, mouth, hair and what is worn, painted at the hit points.

`colour` is the reflectance, (3, n, H, W). Painters change it, and the normals for folds and lips, in place.
"""

from __future__ import annotations

import numpy as np

from fedvisage.faces.synthetic.chance import Draws
from fedvisage.faces.synthetic.geometry import (
    Ellipsoid,
    Pixels,
    Surface,
    View,
    blend,
    clamp,
    hill,
)
from fedvisage.faces.synthetic.person import Person
from fedvisage.faces.synthetic.shot import Shot

TILE = 256


def _tile(stream: int, smooth: tuple[int, int]) -> Pixels:
    """A periodic noise texture with zero mean and unit deviation, smoothed by this many passes down and across."""
    places = np.arange(TILE * TILE, dtype=np.int64)
    tile = Draws(places, np.full_like(places, stream)).normal().reshape(TILE, TILE)
    for axis, passes in enumerate(smooth):
        for _ in range(passes):
            tile = 0.5 * tile + 0.25 * (np.roll(tile, 1, axis) + np.roll(tile, -1, axis))
    tile = tile - tile.sum() / tile.size
    scale = np.sqrt((tile * tile).sum() / tile.size)
    return (tile / scale).astype(np.float32)


MOTTLE = _tile(1, (2, 2)).ravel()
STRANDS = _tile(2, (24, 1)).ravel()


def texture(tile: Pixels, across: Pixels, down: Pixels) -> Pixels:
    """The texel of a tile at these coordinates, in texels."""
    place = down.astype(np.int32) & (TILE - 1)
    place *= TILE
    place += across.astype(np.int32) & (TILE - 1)
    return tile.take(place)


def paint_skin(person: Person, face: Surface, shade: Pixels) -> Pixels:
    """Skin with mottling, freckles, blush, beard and the marks of age; `shade` darkens, (n, H, W)."""
    x, y = face.x, face.y
    side = np.abs(x)
    grain = texture(MOTTLE, x * 38.0 + (200.0 + person.skin_shift), y * 38.0 + 200.0)
    marks = np.maximum(grain - 0.7, 0.0)
    tone = shade * (1.0 + 0.02 * grain - (0.22 * person.freckles) * marks)
    cheek_x, cheek_y = (side - 0.56) * 2.6, (y - 0.5) * 2.4
    cheek = hill(cheek_x * cheek_x + cheek_y * cheek_y)
    face.nx += (0.55 * person.cheeks) * cheek * cheek_x * np.sign(x)
    face.ny += (0.55 * person.cheeks) * cheek * cheek_y
    red = cheek * (0.16 * person.blush)
    colour = np.empty((3, *x.shape), np.float32)
    colour[0] = person.skin[0] * tone * (1.0 + 0.3 * red)
    colour[1] = person.skin[1] * tone * (1.0 - red)
    colour[2] = person.skin[2] * tone * (1.0 - red)
    return colour


def paint_lower_face(person: Person, shot: Shot, view: View, face: Surface, colour: Pixels) -> None:
    """Beard, folds beside the mouth, mole, nostrils and lips."""
    x, y = face.x, face.y
    side = np.abs(x)
    below = y - person.mouth_y
    edge = clamp((y - 0.55 - person.beard_line + 0.42 * side * (1.0 - side) - 0.55 * clamp(side - 0.55)) * 5.0)
    whiskers = edge * clamp(1.5 + texture(MOTTLE, x * 60.0 + 300.0, y * 50.0 + 100.0) * 0.4)
    blend(colour, person.hair * 0.8, whiskers * (person.beard * 0.85))
    fold = (side - 0.3 - 0.42 * (y - person.nose_length)) * 14.0
    span = (y - 0.5 * (person.nose_length + person.mouth_y) - 0.02) * 2.9
    deep = clamp(0.25 + 0.7 * shot.smile + 0.5 * person.age) * 0.3
    crease = hill(fold * fold) * hill(span * span) * deep
    spot_x, spot_y = x - person.mole_x, y - person.mole_y
    radius = person.mole_size + 0.001
    spot = clamp((radius - np.sqrt(spot_x * spot_x + spot_y * spot_y)) * view.scale + 0.3) * 0.75
    hole_x, hole_y = (side - 0.42 * person.nose_width) * 11.0, (y - person.nose_length - 0.115) * 19.0
    dark = hill(hole_x * hole_x + hole_y * hole_y) * 0.8
    colour *= (1.0 - crease) * (1.0 - np.maximum(spot, dark))
    _paint_mouth(person, shot, view, face, colour, below)


def _paint_mouth(person: Person, shot: Shot, view: View, face: Surface, colour: Pixels, below: Pixels) -> None:
    half = person.mouth_width * (1.0 + 0.16 * shot.smile)
    along = face.x / half
    square = along * along
    arch = np.maximum(1.0 - square, 0.0)
    bend = person.mouth_curve + 0.13 * shot.smile
    v = below + (square - 0.35) * bend
    thin = 1.0 - 0.25 * np.maximum(shot.smile, 0.0)
    gap = (shot.mouth_open * 1.3) * arch
    dip = hill(square * 16.0)
    top = (-person.upper_lip * thin) * arch * (1.0 - person.cupid * dip) - 0.6 * gap
    bottom = (person.lower_lip * thin) * (arch * (1.5 - 0.5 * arch)) + gap
    sharp = view.scale * 0.8
    lips = clamp(np.minimum(v - top, bottom - v) * sharp + 0.5) * clamp((1.04 - np.abs(along)) * 14.0)
    blend(colour, person.lips * np.ones_like(lips), lips)
    face.ny += lips * np.where(v < 0, 0.35, -0.45) * (1.0 - clamp(np.abs(v) * 22.0 - 2.0))
    inside = clamp(np.minimum(v + 0.55 * gap, 0.9 * gap - v) * sharp) * lips
    teeth = clamp((0.6 * gap - 0.02 - v) * sharp + 0.5) * clamp(1.15 - np.abs(along) * 1.2)
    blend(colour, (0.06 + 0.62 * teeth) * np.array([1.0, 0.9, 0.82], np.float32)[:, None, None, None], inside)
    line = clamp(1.0 - np.abs(v - 0.15 * gap) * (1.0 / 0.035)) * clamp((1.08 - np.abs(along)) * 9.0)
    under = (v - bottom - 0.05) * 9.0
    dent = hill(under * under) * hill(square * 1.6)
    colour *= 1.0 - np.maximum(0.62 * line * (1.0 - inside), 0.16 * dent)


def paint_eyes(person: Person, shot: Shot, view: View, face: Surface, colour: Pixels) -> None:
    """Sockets, lids, eyeballs, lashes and brows."""
    x, y = face.x, face.y
    side = np.abs(x)
    out = side - 0.5 * person.eye_spacing
    u = out / person.eye_width
    v = (y - person.eye_tilt * out) / person.eye_width
    socket_y = v * 0.42 + 0.14
    socket = hill(u * u * 0.3 + socket_y * socket_y)
    face.ny += (0.5 * person.eye_depth + 0.5 * person.brow_ridge) * socket * socket_y
    arch = np.maximum(1.0 - u * u, -0.6)
    opened = person.eye_open * shot.lids
    upper, lower = (-0.56 * opened) * arch, 0.33 * arch * clamp(opened * 2.0)
    sharp = view.scale * person.eye_width
    pouch = (v - 0.85) * 1.7
    bags = hill(pouch * pouch + u * u * 0.7) * (person.bags * 0.5)
    crease = (v - upper + person.crease) * 7.0
    lid = hill(crease * crease) * hill(u * u * 0.7) * 0.3
    colour *= (1.0 - (0.22 * person.eye_depth) * socket) * (1.0 - np.maximum(bags, lid))
    below_lid = v - upper
    white = clamp(np.minimum(below_lid, lower - v) * sharp + 0.5)
    ball = _eyeball(person, shot, view, x, u, v, below_lid)
    blend(colour, ball, white)
    lash = clamp(1.25 - np.abs(below_lid + 0.03) * 6.5) * clamp((1.12 - np.abs(u)) * 7.0)
    rim = clamp(1.0 - np.abs(v - lower) * 8.0) * clamp((1.05 - np.abs(u)) * 5.0)
    colour *= 1.0 - np.maximum(lash * 0.85, rim * 0.28)
    _paint_brows(person, shot, view, side, y, colour)


def _eyeball(person: Person, shot: Shot, view: View, x: Pixels, u: Pixels, v: Pixels, below_lid: Pixels) -> Pixels:
    sharp = view.scale * person.eye_width
    turned = u - shot.gaze_x * np.sign(x)
    raised = v - shot.gaze_y + 0.06
    distance = np.sqrt(turned * turned + raised * raised)
    iris = clamp((person.iris_size - distance) * sharp + 0.5)
    ring = 1.15 - 0.75 * clamp((distance - 0.6 * person.iris_size) * 4.0)
    pupil = clamp((0.42 * person.iris_size - distance) * sharp + 0.5)
    glint_x, glint_y = x * 0.0 + turned * np.sign(x) + 0.15 - 0.3 * shot.light[0], raised + 0.16
    glint = clamp((0.14 - np.sqrt(glint_x * glint_x + glint_y * glint_y)) * sharp + 0.35)
    shadow = 0.5 + 0.5 * clamp(below_lid * 3.0)
    ball = np.empty((3, *u.shape), np.float32)
    for channel, white in enumerate((0.80, 0.77, 0.75)):
        plane = white + iris * (person.iris[channel] * 1.5 * ring - white)
        plane *= (1.0 - pupil) * shadow
        ball[channel] = plane + 0.9 * glint
    return ball


def _paint_brows(person: Person, shot: Shot, view: View, side: Pixels, y: Pixels, colour: Pixels) -> None:
    u = (side - 0.5 * person.eye_spacing - 0.02) / person.brow_length
    middle = person.brow_y - shot.brow_raise - person.brow_arch * (1.0 - (u - 0.25) * (u - 0.25)) + person.brow_tilt * u
    thick = person.brow_thickness * (1.0 - 0.45 * clamp(u))
    strands = 0.78 + 0.22 * texture(MOTTLE, side * 70.0 + y * 40.0 + 300.0, y * 30.0 + 300.0)
    band = clamp((thick - np.abs(y - middle)) * (view.scale * 0.55) + 0.5) * clamp((1.0 - np.abs(u)) * 5.0)
    blend(colour, person.hair * 0.75, band * clamp(strands) * person.brow_density)


def paint_cloth(shot: Shot, view: View, face: Surface, colour: Pixels) -> None:
    """A mask over nose and mouth, or a scarf."""
    if float(shot.cloth_top.min()) > 3.0:
        return
    edge = shot.cloth_top + 0.12 * face.x * face.x
    folds = 1.0 + 0.08 * texture(STRANDS, face.y * 24.0 + 300.0, face.x * 9.0 + 300.0)
    blend(colour, shot.cloth * folds, clamp((face.y - edge) * view.scale + 0.5))


def add_hair(view: View, person: Person, shot: Shot, face: Surface, colour: Pixels) -> None:
    """A shell of hair (or a cap) over the skull, with this person's hair line, and its shadow on the forehead."""
    fresh = 1.0 - shot.cap
    volume = person.hair_volume * (1.0 + 0.15 * shot.hair_change) * (1.0 - 0.4 * shot.cap) + 0.03
    middle, half = 0.5 * (person.chin + person.crown), 0.5 * (person.chin - person.crown)
    shell = Ellipsoid(
        (0.0, middle - 0.10, -0.06),
        (person.width + 0.02 + 0.75 * volume, half - 0.02 + volume, person.depth + 0.5 * volume),
    )
    cover, hit = shell.cast(view)
    x, y, z = (view.origin(axis) + hit * view.pose[6 + axis] for axis in range(3))
    side = np.abs(x)
    freq = 24.0 + 30.0 * person.curl
    strand = texture(STRANDS, (x + 0.15 * y) * freq + (300.0 + person.skin_shift), (y + z) * (6.0 + 20.0 * person.curl) + 300.0)
    line = person.hair_line + 0.02 * shot.hair_change
    line = fresh * line + shot.cap * -0.72
    beyond = np.maximum(side - person.hair_side, 0.0)
    edge = line + fresh * (person.hair_part * x - person.hair_recede * side * side) + beyond * beyond * 40.0
    edge = np.minimum(edge, fresh * person.hair_length - 0.4 * shot.cap) - y
    ragged = edge + (0.03 * fresh) * strand
    weight = clamp(ragged * (view.scale * 0.45) + 0.5)
    weight *= cover
    shadow = 1.0 - 0.35 * clamp(1.0 + edge * 6.0) * face.cover
    colour *= shadow
    gloss = 1.0 + fresh * person.strands * 0.3 * strand
    tone = fresh * person.hair + shot.cap * shot.cloth
    blend(colour, tone * gloss, weight)
    face.lay(shell.normal(x, y, z), weight)
    face.nx += (0.25 * fresh) * weight * strand
    np.maximum(face.cover, weight, out=face.cover)


def back_hair(view: View, person: Person, shot: Shot) -> tuple[Pixels, Pixels]:
    """Long hair behind head and neck: coverage and brightness, (n, H, W)."""
    volume = person.hair_volume * (1.0 + 0.15 * shot.hair_change)
    mass = Ellipsoid((0.0, 0.45, -0.45), (person.width + 0.1 + 0.8 * volume, 1.3 + 0.6 * person.hair_length, 0.8))
    cover, hit = mass.cast(view)
    x = view.origin(0) + hit * view.pose[6]
    strand = texture(STRANDS, x * 26.0 + 300.0, view.down * 5.0 + 300.0 + 0.0 * x)
    return cover * person.hair_long, 0.65 + (0.15 * person.strands) * strand


def wear_glasses(view: View, person: Person, shot: Shot, face: Surface, image: Pixels) -> None:
    """Spectacles on a plane before the eyes, and their arms along the temples; `image` is lit, (3, n, H, W)."""
    ahead = person.depth + 0.12
    near = (ahead - view.origin(2)) / view.pose[8]
    x, y = view.origin(0) + near * view.pose[6], view.origin(1) + near * view.pose[7]
    side = np.abs(x)
    centre = 0.5 * person.eye_spacing + 0.02
    u, v = (side - centre) / person.frame_width, (y - 0.04) / person.frame_height
    u, v = u * u, v * v
    round_, square = u + v, np.sqrt(u * u + v * v)
    reach = np.sqrt(round_ + person.frame_square * (square - round_))
    sharp = view.scale * person.frame_height
    thick = person.frame_weight / person.frame_height
    lens = clamp((1.0 - reach) * sharp + 0.5)
    rim = clamp((thick - np.abs(reach - 1.0)) * sharp + 0.5)
    bar = clamp((person.frame_weight - np.abs(y + 0.03)) * view.scale + 0.5)
    bar *= clamp((centre - person.frame_width - side) * view.scale + 0.5)
    arm = clamp((person.frame_weight - np.abs(face.y + 0.02)) * view.scale + 0.5) * face.cover
    arm *= clamp((np.abs(face.x) - centre - 0.9 * person.frame_width) * view.scale) * clamp((face.z + 0.15) * 9.0)
    arm *= clamp((reach - 1.0) * sharp)
    frame = np.maximum(np.maximum(rim, bar), arm)
    glare = 0.10 * lens * clamp(0.6 - np.abs(x * np.float32(0.8) + y + 0.2) * 4.0)
    image *= 1.0 - lens * shot.shades
    image += glare
    blend(image, person.frame * (0.55 + 0.6 * np.maximum(-shot.light[1], 0.0)), frame)
