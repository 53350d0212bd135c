"""`fedvisage data align`: find the faces in photos and align them to the five-point template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from PIL import Image

from fedvisage.cli.output import Json, show_json
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.align import Detector, aligned, fault, read_photo
from fedvisage.faces.decoding import SUFFIXES
from fedvisage.faces.faceset import Pixels
from fedvisage.models import MODEL_FILES

REPORT = "align.json"


def align_command(
    photos: Annotated[Path, typer.Argument(help="A folder of photos, with a folder per person or without.")],
    out: Annotated[Path, typer.Option(help="Folder to write: the same tree, aligned faces as PNG.")],
    size: Annotated[int, typer.Option(min=16, max=1024, help="Width and height in pixels.")] = 112,
    points: Annotated[
        Literal["5", "68"],
        typer.Option(help="Landmarks. Those for 68 points were trained on data that excludes commercial use."),
    ] = "5",
    detector: Annotated[
        Literal["hog", "network"], typer.Option(help="dlib's detectors: the network is slower, and sees more poses.")
    ] = "hog",
    several: Annotated[
        Literal["largest", "skip", "all"], typer.Option(help="What to take from a photo with several faces.")
    ] = "largest",
    as_json: Json = False,
) -> None:
    """Find the faces in a folder of photos and align them; photos without a usable face are listed."""
    if not photos.is_dir():
        raise FedVisageError(f"no folder {photos}")
    if out.exists() and not out.is_dir():
        raise FedVisageError(f"{out} is a file: choose a folder")
    if out.exists() and any(out.iterdir()):
        raise FedVisageError(f"{out} is not empty: choose another folder")
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise FedVisageError(f"no photos in {photos}: looked for {', '.join(sorted(SUFFIXES))}")
    network = MODEL_FILES["dlib-detector"].path if detector == "network" else None
    finder = Detector(MODEL_FILES[f"dlib-{points}-points"].path, network)
    written, left_out = 0, dict[str, str]()
    for path in files:
        name = path.relative_to(photos)
        try:
            photo = read_photo(path)
            faces = finder.find(photo)
        except FedVisageError as error:
            left_out[str(name)] = str(error).removeprefix(f"{path}: ")
            continue
        if not faces or (several == "skip" and len(faces) > 1):
            left_out[str(name)] = f"{len(faces)} faces" if faces else "no face found"
            continue
        for number, face in enumerate(faces if several == "all" else faces[:1]):
            pixels = aligned(photo, face, size)
            if (why := fault(face, aligned(photo, face))) is not None:
                left_out[str(name) if number == 0 else f"{name} (face {number + 1})"] = why
                continue
            _save(out / name.parent / f"{name.stem}{'' if number == 0 else f'-{number + 1}'}.png", pixels)
            written += 1
    if not written:
        raise FedVisageError(f"no usable face in any of the {len(files):,} photos of {photos}")
    result = {"photos": len(files), "faces": written, "left_out": left_out, "folder": str(out)}
    (out / REPORT).write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        show_json(result)
        return
    print(f"{written:,} faces from {len(files):,} photos in {out}; {len(left_out):,} left out ({out / REPORT})")
    for photo_name, why in list(left_out.items())[:20]:
        print(f"  {photo_name}: {why}")


def _save(path: Path, pixels: Pixels) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    except OSError as error:
        raise FedVisageError(f"cannot write {path}: {error.strerror or error}") from None
