"""How a picture is taken: pose, expression, light, things worn and camera, a function of (seed, identity, index)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.synthetic.chance import Draws, Values
from fedvisage.faces.synthetic.domains import Domain
from fedvisage.faces.synthetic.person import PICTURE, Person, between

NO_CLOTH = 9.0  # below every chin


def turn(angle: Values) -> tuple[Values, Values]:
    """Cosine and sine of a moderate angle, exactly on the unit circle and without a transcendental function."""
    half = angle * (0.5 + angle * angle * (1.0 / 24.0))
    square = half * half
    return (1.0 - square) / (1.0 + square), 2.0 * half / (1.0 + square)


@dataclass(frozen=True)
class Shot:
    """One array per setting, (n,), (3, n) for colours and directions, (9, n) for the pose, row by row."""

    pose: Values  # rotation from the head to the camera
    shift_x: Values  # what alignment left over
    shift_y: Values
    zoom: Values
    smile: Values
    mouth_open: Values
    brow_raise: Values
    lids: Values  # 1 open, 0 closed
    gaze_x: Values
    gaze_y: Values
    light: Values  # direction towards the key light, camera's axes
    key: Values  # its strength
    ambient: Values  # strength of the light from everywhere
    white: Values  # what the camera makes of a white surface in this light
    contrast: Values
    saturation: Values
    backdrop: Values
    backdrop_end: Values
    backdrop_x: Values  # centre of a blurred disc behind
    backdrop_y: Values
    hair_change: Values  # of volume and hair line, from day to day
    cap: Values
    cloth_top: Values  # y above which a mask or scarf leaves the face free
    cloth: Values
    glasses: Values
    shades: Values  # darkness of the lenses
    occluder: Values
    occluder_x: Values
    occluder_y: Values
    occluder_size: Values
    occluder_colour: Values
    shine: Values
    blur: Values
    noise: Values
    noise_shift: Values
    coarseness: Values  # 0 for an image that is not compressed


def draw_shots(
    seed: int, identity: NDArray[np.int64], index: NDArray[np.int64], people: Person, domain: Domain
) -> Shot:
    """How each of these images was taken."""
    key = Draws(np.full(identity.shape, seed, np.int64), identity, index, np.full(identity.shape, PICTURE, np.int64))
    n, u = key.normal, key.uniform
    smile = np.maximum(n(0.25, 0.45), -0.35)
    glasses = key.chance(people.wears_glasses)
    face_covered = key.chance(0.04)
    light = _light(key, domain)
    saturation = np.maximum(n(1.0, 0.15), 0.0) * domain.saturation
    gain = _warm(n(*domain.warmth), n(0.0, 0.3 * domain.warmth[1])) * np.maximum(n(*domain.exposure), 0.4)
    white = pale(gain * _warm(n(*domain.warmth), np.zeros(len(identity))), saturation)
    return Shot(
        pose=_pose(key, domain),
        shift_x=n(0.0, 0.028),
        shift_y=n(0.0, 0.028),
        zoom=n(1.0, 0.035),
        smile=smile,
        mouth_open=np.maximum(n(-0.03, 0.07), 0.0) + 0.04 * np.maximum(smile - 0.5, 0.0),
        brow_raise=n(0.0, 0.035),
        lids=np.where(u() < 0.04, 0.12, np.minimum(n(1.0, 0.14), 1.3)) - 0.12 * np.maximum(smile, 0.0),
        gaze_x=n(0.0, 0.2),
        gaze_y=n(0.0, 0.08),
        light=light,
        key=np.maximum(n(*domain.key), 0.3),
        ambient=np.maximum(n(*domain.ambient), 0.05),
        white=white,
        contrast=n(1.0, 0.12),
        saturation=saturation,
        backdrop=pale(gain * _backdrop(key), saturation) * domain.background,
        backdrop_end=pale(gain * _backdrop(key), saturation) * domain.background,
        backdrop_x=u(-1.0, 1.0),
        backdrop_y=u(-1.0, 1.0),
        hair_change=n(0.0, 1.0),
        cap=key.chance(0.05),
        cloth_top=np.where(face_covered > 0, np.where(u() < 0.5, 0.42, 1.3), NO_CLOTH),
        cloth=pale(_backdrop(key), saturation) * white,
        glasses=glasses,
        shades=glasses * np.where(u() < 0.08, 0.93, u(0.0, 0.12)),
        occluder=key.chance(0.05),
        occluder_x=np.where(u() < 0.5, -1.0, 1.0) * u(0.55, 0.95),
        occluder_y=u(-0.6, 0.9),
        occluder_size=u(0.3, 0.55),
        occluder_colour=pale(between(u(), (0.6, 0.4, 0.3), (0.05, 0.06, 0.12)), saturation),
        shine=u(0.1, 0.5),
        blur=key.chance(domain.blur) * u(0.2, 1.0),
        noise=domain.noise[0] + domain.noise[1] * u() * u(),
        noise_shift=np.floor(u(0.0, 65536.0)),
        coarseness=key.chance(domain.compressed) * (domain.coarseness[0] + domain.coarseness[1] * u()),
    )


def pale(colour: Values, saturation: Values) -> Values:
    """A colour, (3, n), as a camera of this saturation sees it."""
    grey = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]
    return np.asarray(np.maximum(grey + saturation * (colour - grey), 0.0))


def photographed(people: Person, shots: Shot) -> Person:
    """People with the colours that the camera sees in the light of each image."""
    names = ("skin", "lips", "iris", "hair", "frame")
    seen = {name: pale(getattr(people, name), shots.saturation) * shots.white for name in names}
    return replace(people, blush=people.blush * shots.saturation, **seen)


def _warm(warmth: Values, tint: Values) -> Values:
    """The colour of a light (or gain of a camera), (3, n): orange when warm, blue when cold."""
    return np.stack([1.0 + 0.5 * warmth, 1.0 + tint, np.maximum(1.0 - 0.7 * warmth, 0.1)])


def _backdrop(key: Draws) -> Values:
    """Mostly greyish walls and greenery, (3, n)."""
    brightness, warmth, green = key.uniform(0.02, 0.62), key.normal(0.05, 0.32), key.normal(0.0, 0.16)
    return brightness * _warm(warmth, green)


def _light(key: Draws, domain: Domain) -> Values:
    azimuth, height = key.normal(0.0, domain.side_light), key.normal(*domain.high_light)
    across, up = turn(np.minimum(np.maximum(azimuth, -1.4), 1.4)), turn(height)
    return np.stack([across[1] * up[0], -up[1], across[0] * up[0]])


def _pose(key: Draws, domain: Domain) -> Values:
    """Rotation matrices, (9, n): first yaw, then pitch, then roll."""
    limit = 0.82
    yaw = np.minimum(np.maximum(key.normal(0.0, domain.yaw), -limit), limit)
    (cy, sy), (cp, sp), (cr, sr) = (
        turn(yaw),
        turn(key.normal(0.0, domain.pitch)),
        turn(key.normal(0.0, 0.06)),
    )
    across = np.stack([cy, np.zeros_like(cy), sy])
    down = np.stack([-sp * -sy, cp, -sp * cy])
    out = np.stack([cp * -sy, sp, cp * cy])
    return np.concatenate([cr * across - sr * down, sr * across + cr * down, out])
