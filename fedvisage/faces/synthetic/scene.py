"""A batch of people before the camera, and the steps from there to pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.synthetic import camera, geometry, paint
from fedvisage.faces.synthetic.geometry import Pixels, Quadric, Skull, Surface, View, blend, cut, window
from fedvisage.faces.synthetic.person import Person
from fedvisage.faces.synthetic.shot import NO_CLOTH, Shot

T = TypeVar("T")


@dataclass(frozen=True)
class Scene:
    """Everything about n images that is not per pixel."""

    person: Person
    shot: Shot
    view: View
    skull: Skull
    nose: tuple[Quadric, Quadric, Quadric]
    ears: tuple[Quadric, Quadric]
    neck: Quadric
    hair: Quadric
    back_hair: Quadric


def set_scene(size: int, person: Person, shot: Shot) -> Scene:
    """Place the surfaces of these heads before the camera."""
    view = geometry.aim(size, person, shot)
    return Scene(
        person,
        shot,
        view,
        skull=geometry.skull(view, person),
        nose=geometry.nose_parts(view, person),
        ears=(geometry.ear(view, person, -1), geometry.ear(view, person, 1)),
        neck=geometry.neck(view, person),
        hair=paint.hair_shell(view, person, shot),
        back_hair=paint.back_hair(view, person, shot),
    )


def per_pixel(traits: T, order: NDArray[np.intp]) -> T:
    """Every array of a dataclass, reordered, as float32 (..., n, 1, 1), to be broadcast over pixels."""
    values = {name: np.ascontiguousarray(value[..., order], np.float32) for name, value in vars(traits).items()}
    return type(traits)(**{name: value[..., None, None] for name, value in values.items()})


def rows_of(tree: T, rows: slice) -> T:
    """These images of every array in a dataclass: views, not copies."""
    if isinstance(tree, np.ndarray):
        return cast(T, tree[..., rows, :, :])
    if isinstance(tree, tuple):
        return cast(T, tuple([rows_of(part, rows) for part in tree]))
    part = object.__new__(type(tree))  # past the constructor, which is slow for a frozen dataclass of 60 fields
    part.__dict__.update({name: rows_of(value, rows) for name, value in vars(tree).items()})
    return part


def take_pictures(scene: Scene, final: int) -> NDArray[np.uint8]:
    """Render the images of a scene and resample them to their final size, (n, final, final, 3)."""
    shot, size = scene.shot, scene.view.across.shape[-1]
    face = geometry.cast_skull(scene.skull, scene.view)
    colour = _paint(scene, face, size)
    camera.shade(scene.view, shot, face, colour)
    if shot.glasses.any():
        part = window(size, 0.22, 0.68, 0.0, 1.0)
        piece = cut(colour, part)
        paint.wear_glasses(scene.person, shot, scene.view.crop(part), face.crop(part), piece)
        colour[(..., *part)] = piece
    image = camera.backdrop(size, shot)
    if scene.person.hair_long.any():
        paint.hang_hair(scene.back_hair, scene.person, shot, scene.view, image)
    blend(image, colour, face.cover)
    if shot.occluder.any():
        camera.hold_before(shot, image)
    np.sqrt(image, out=image)
    _on_some(camera.defocus, shot.blur, image)
    camera.add_noise(shot, image)
    _on_some(camera.compress, shot.coarseness, image)
    planes = camera.to_bytes(shot, image)
    return np.stack(list(planes), axis=-1) if size == final else camera.enlarge(planes, final)


def _paint(scene: Scene, face: Surface, size: int) -> Pixels:
    """Add what grows on the head to its surface, and return the reflectance of everything, (3, n, H, W)."""
    person, shot, view = scene.person, scene.shot, scene.view
    colour = np.empty(face.point.shape, np.float32)
    colour[...] = person.skin
    part = window(size, 0.37, 0.80, 0.24, 0.76)
    piece = face.crop(part)
    geometry.add_nose(tuple(shape.crop(part) for shape in scene.nose), view.crop(part), piece)
    face.paste(part, piece)
    for ear, left in zip(scene.ears, (0.0, 0.66), strict=True) if not person.hair_long.all() else ():
        part = window(size, 0.34, 0.80, left, left + 0.34)
        piece = face.crop(part)
        colour[(..., *part)] *= geometry.add_ear(ear.crop(part), person, view.crop(part), piece)
        face.paste(part, piece)
    part = window(size, 0.74, 1.0, 0.0, 1.0)
    piece = face.crop(part)
    colour[(..., *part)] *= geometry.add_neck(scene.neck.crop(part), person, view.crop(part), piece)
    face.paste(part, piece)
    for painter, part in (
        (paint.paint_skin, window(size, 0.2, 1.0, 0.1, 0.9)),
        (paint.paint_lower_face, window(size, 0.56, 0.98, 0.18, 0.82)),
        (paint.paint_mouth, window(size, 0.64, 0.96, 0.24, 0.76)),
        (paint.paint_eyes, window(size, 0.28, 0.58, 0.14, 0.86)),
    ):
        normal, tint = cut(face.normal[:2], part), cut(colour, part)
        painter(person, shot, view, cut(face.point[:2], part), normal, tint)
        face.normal[(slice(2), ..., *part)] = normal
        colour[(..., *part)] = tint
    if (shot.cloth_top < NO_CLOTH).any():
        paint.paint_cloth(shot, view, face, colour)
    cover = paint.add_hair(scene.hair, person, shot, view, face, colour)
    if shot.cap.any():
        paint.put_on_cap(shot, view, face, cover, colour)
    return colour


def _on_some(effect: Callable[[Pixels, Pixels], None], strength: Pixels, image: Pixels) -> None:
    """Apply an effect of the camera to the images where it has a strength."""
    chosen = np.flatnonzero(strength.ravel() > 0)
    if len(chosen):
        some = image[:, chosen]
        effect(strength[chosen], some)
        image[:, chosen] = some
