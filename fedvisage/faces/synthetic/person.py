"""Who is in the picture: the shape, colours and habits of a person, a function of (seed, identity).

Lengths are in half face widths (about 68 mm), measured from the point between the eyes: x to the right of the
image, y down, z out of the face.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.synthetic.chance import Draws, Values
from fedvisage.faces.synthetic.domains import Domain

PERSON, PICTURE = 1, 2  # keep the draws of a person apart from those of their pictures


def colours(*channels: Values) -> Values:
    """Red, green and blue, each (n,), as one (3, n) array kept within what a surface can reflect."""
    return np.minimum(np.maximum(np.stack(channels), 0.004), 0.95)


def between(weight: Values, *palette: tuple[float, float, float]) -> Values:
    """A colour along the Bezier curve of two or three colours, (3, n); weight 0 is the first, 1 the last."""
    rest = 1.0 - weight
    weights = [rest, weight] if len(palette) == 2 else [rest * rest, 2.0 * weight * rest, weight * weight]
    mixed = [sum(w * c[k] for w, c in zip(weights, palette, strict=True)) for k in range(3)]
    return np.stack(mixed)


@dataclass(frozen=True)
class Person:
    """One array per trait, (n,), or (3, n) for colours."""

    width: Values  # of the head at the cheekbones
    chin: Values  # y of the chin
    crown: Values  # y of the top of the skull, negative
    depth: Values
    taper: Values  # wider below (positive) or above
    jaw: Values  # extra width at the angle of the jaw
    chin_width: Values
    chin_depth: Values
    cheeks: Values  # how much they stand out
    brow_ridge: Values
    eye_spacing: Values  # between the pupils
    eye_width: Values  # half width of an eye
    eye_open: Values
    eye_tilt: Values
    eye_depth: Values  # shade of the sockets
    crease: Values  # height of the fold of the lid
    bags: Values
    iris_size: Values
    brow_y: Values
    brow_length: Values
    brow_thickness: Values
    brow_arch: Values
    brow_tilt: Values
    brow_density: Values
    nose_length: Values
    nose_width: Values
    bridge_width: Values
    bridge_height: Values
    tip_size: Values
    nose_depth: Values
    nose_lift: Values  # the tip up (positive) or down
    mouth_y: Values
    mouth_width: Values
    upper_lip: Values
    lower_lip: Values
    cupid: Values  # dip in the middle of the upper lip
    mouth_curve: Values
    ear_size: Values
    ear_flare: Values
    ear_y: Values
    hair_line: Values  # y where hair begins, above the brow
    hair_recede: Values  # hair line higher at the temples (positive)
    hair_part: Values
    hair_side: Values  # z behind which hair covers the side
    hair_length: Values  # y to which the sides reach
    hair_volume: Values
    hair_long: Values  # 1 with hair behind the neck
    strands: Values  # contrast of the strands
    curl: Values  # frequency of the strands
    beard: Values
    beard_line: Values
    freckles: Values
    age: Values
    mole: Values  # how dark, 0 without
    mole_x: Values
    mole_y: Values
    mole_size: Values
    blush: Values
    skin_shift: Values  # where this skin lies in the texture
    frame_height: Values  # of their glasses
    frame_width: Values
    frame_square: Values
    frame_weight: Values
    wears_glasses: Values  # probability
    skin: Values
    lips: Values
    iris: Values
    hair: Values
    frame: Values


def draw_people(seed: int, identity: NDArray[np.int64], domain: Domain) -> Person:
    """The people of these identities, (n,)."""
    key = Draws(np.full(identity.shape, seed, np.int64), identity, np.full(identity.shape, PERSON, np.int64))
    n, u = key.normal, key.uniform
    man = key.chance(0.5)
    age = u()
    melanin = np.minimum(np.maximum(n(*domain.melanin), 0.0), 1.0)
    skin, lips, hair, iris, frame = _colours(key, melanin, age)
    nose = n()
    long_hair = key.chance(0.12 + 0.6 * (1.0 - man))
    bald = key.chance(0.16 * man * (0.3 + age))
    fringe = key.chance(0.14 + 0.16 * (1.0 - man)) * (1.0 - bald)
    bearded = key.chance(0.55 * man)
    return Person(
        width=n(1.0, 0.055) + 0.02 * man,
        chin=n(1.60, 0.1) + 0.05 * man,
        crown=n(-1.62, 0.05),
        depth=n(1.17, 0.05),
        taper=n(0.0, 0.035),
        jaw=n(-0.01, 0.07) + 0.07 * man,
        chin_width=n(0.06, 0.11) + 0.08 * man,
        chin_depth=n(0.33, 0.06),
        cheeks=n(0.35, 0.2),
        brow_ridge=n(0.25, 0.15) + 0.25 * man,
        eye_spacing=n(0.93, 0.055),
        eye_width=n(0.215, 0.019),
        eye_open=n(1.0, 0.16) - 0.06 * man,
        eye_tilt=n(-0.04, 0.11),
        eye_depth=n(0.35, 0.18),
        crease=u(0.08, 0.42),
        bags=u(0.0, 0.22) + 0.2 * age * u(),
        iris_size=n(0.46, 0.035),
        brow_y=n(-0.375, 0.05) + 0.03 * man,
        brow_length=n(0.31, 0.032),
        brow_thickness=n(0.05, 0.015) + 0.018 * man,
        brow_arch=n(0.065, 0.045) - 0.02 * man,
        brow_tilt=n(-0.01, 0.05),
        brow_density=u(0.4, 1.0),
        nose_length=n(0.63, 0.065) + 0.02 * man,
        nose_width=n(0.265, 0.038) + 0.05 * melanin + 0.02 * man,
        bridge_width=n(0.135, 0.022),
        bridge_height=n(0.0, 0.05),
        tip_size=n(0.17, 0.022),
        nose_depth=n(1.40, 0.07) + 0.02 * nose,
        nose_lift=n(0.0, 0.04),
        mouth_y=n(1.02, 0.055),
        mouth_width=n(0.385, 0.045),
        upper_lip=n(0.082, 0.022) + 0.025 * melanin - 0.012 * man,
        lower_lip=n(0.118, 0.026) + 0.025 * melanin - 0.012 * man,
        cupid=u(0.0, 0.45),
        mouth_curve=n(0.0, 0.035),
        ear_size=n(0.33, 0.04),
        ear_flare=n(0.06, 0.05),
        ear_y=n(0.28, 0.06),
        hair_line=n(-0.98, 0.1) + 0.42 * fringe - 0.5 * bald,
        hair_recede=n(0.05, 0.14) * (1.0 - 0.5 * fringe),
        hair_part=n(0.0, 0.2) + 0.1 * n() * fringe,
        hair_side=n(0.22, 0.09) + 0.1 * long_hair,
        hair_length=u(-0.2, 0.3) + long_hair * u(0.7, 2.0),
        hair_volume=(u(0.06, 0.3) + 0.06 * long_hair) * (1.0 - 0.8 * bald),
        hair_long=long_hair,
        strands=u(0.35, 1.0),
        curl=u(0.0, 1.0),
        beard=bearded * u(0.15, 0.95) + 0.08 * man,
        beard_line=n(0.0, 0.1),
        freckles=key.chance(0.3) * u(0.3, 1.0) * (1.0 - melanin),
        age=age,
        mole_x=u(-0.75, 0.75),
        mole_y=u(0.25, 1.35),
        mole=key.chance(0.6) * u(0.6, 0.9),
        mole_size=u(0.03, 0.06),
        blush=u(0.0, 1.0),
        skin_shift=u(0.0, 100.0),
        frame_height=n(0.24, 0.035),
        frame_width=n(0.345, 0.03),
        frame_square=u(),
        frame_weight=u(0.018, 0.05),
        wears_glasses=np.where(u() < 0.3, 0.7, 0.06) * domain.glasses,
        skin=skin,
        lips=lips,
        iris=iris,
        hair=hair,
        frame=frame,
    )


def _colours(key: Draws, melanin: Values, age: Values) -> tuple[Values, Values, Values, Values, Values]:
    """Reflectance of skin, lips, hair, iris and spectacle frame, (3, n) each."""
    n, u = key.normal, key.uniform
    red, yellow = n(0.0, 0.05), n(0.0, 0.05)
    tone = between(melanin, (0.80, 0.56, 0.44), (0.45, 0.23, 0.13), (0.13, 0.06, 0.038))
    skin = colours(tone[0] * (1.0 + red), tone[1], tone[2] * (1.0 - yellow))
    rouge = u(0.1, 1.0)
    lips = colours(skin[0] * (0.86 - 0.08 * rouge), skin[1] * (0.66 - 0.24 * rouge), skin[2] * (0.70 - 0.18 * rouge))
    fair = np.maximum(1.0 - melanin - 0.25, 0.0) * 1.3
    light = u() * fair
    brown = between(np.minimum(light, 1.0), (0.014, 0.011, 0.010), (0.12, 0.06, 0.03), (0.66, 0.48, 0.26))
    ginger = key.chance(0.12 * fair)
    base = brown + ginger * (np.array([[0.30], [0.10], [0.03]]) - brown)
    grey = key.chance(np.maximum(age - 0.55, 0.0) * 1.6) * u(0.4, 1.0)
    silver = u(0.25, 0.65)
    hair = colours(*(base + grey * (silver - base)))
    blue = u() * (u() < 0.15 + 0.75 * fair)
    green = u(0.0, 1.0)
    pale = between(green, (0.16, 0.30, 0.46), (0.17, 0.24, 0.11))
    dark = between(u(), (0.05, 0.024, 0.012), (0.16, 0.08, 0.03))
    iris = colours(*(dark + np.minimum(1.6 * blue, 1.0) * (pale - dark)))
    shade = u() * u()
    frame = colours(0.02 + 0.5 * shade, 0.02 + 0.45 * shade * u(), 0.02 + 0.4 * shade * u())
    return skin, lips, hair, iris, frame
