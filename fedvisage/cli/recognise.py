"""`fedvisage verify`, `enrol`, `identify`, `calibrate` and `centre`: recognising people in photos."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFont

from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.align import read_photo
from fedvisage.faces.faceset import Faces, Pixels, open_faceset
from fedvisage.models import MODEL_FILES, NO_CENTRE, check_centre_name, open_model, read_model_metadata, save_model
from fedvisage.recognise import (
    DEFAULT_MODEL,
    DEFAULT_RATE,
    Gallery,
    Recogniser,
    Seen,
    calibrate,
    calibration_file,
    calibration_of,
    model_file,
    verdict,
)
from fedvisage.training import fit_centre

Model = Annotated[str, typer.Option(help="`dlib`, a model file (a run's or a party's own), or a run's folder.")]
Centre = Annotated[
    str,
    typer.Option(
        help="One of the model's centres, by name; embeddings are about it.",
        callback=lambda name: "" if name == NO_CENTRE else name,
    ),
]
Rate = Annotated[float, typer.Option("--fmr", help="False-match rate that the threshold is calibrated to.")]
Threshold = Annotated[float | None, typer.Option(help="Cosine above which two faces match, instead of --fmr.")]
Picture = Annotated[Path | None, typer.Option(help="Picture to write, with boxes and names.")]
GalleryFolder = Annotated[Path, typer.Option(help="Folder of the enrolled people.")]


def verify_command(
    first: Annotated[Path, typer.Argument(help="A photo.")],
    second: Annotated[Path, typer.Argument(help="Another photo.")],
    model: Model = DEFAULT_MODEL,
    centre: Centre = NO_CENTRE,
    fmr: Rate = DEFAULT_RATE,
    threshold: Threshold = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Do two photos show the same person? Exit code 0 if so, 1 if not. The largest face of each photo counts."""
    recogniser = Recogniser(model, centre)
    limit, basis = _limit(model, fmr, threshold, centre)
    (one, ones), (other, others) = recogniser.main_face(first), recogniser.main_face(second)
    result = verdict(one, other, limit) | {"basis": basis, "faces": [ones, others]}
    if picture is not None:
        word = "same" if result["same"] else "different"
        sheets = [_drawn(read_photo(path), [(seen, word)]) for path, seen in ((first, one), (second, other))]
        _save(picture, _side_by_side(sheets))
    if as_json:
        show_json(result)
    else:
        print(
            f"{'the same person' if result['same'] else 'different people'}: {result['score']:.3f}, threshold {basis}"
        )
        for path, count in ((first, ones), (second, others)):
            if count > 1:
                print(f"  {path} shows {count} faces: the largest was compared")
    if not result["same"]:
        raise typer.Exit(1)


def enrol_command(
    name: Annotated[str, typer.Argument(help="The person's name.")],
    photos: Annotated[list[Path], typer.Argument(help="Photos of them; the largest face of each counts.")],
    gallery: GalleryFolder = Path("gallery"),
    model: Model = DEFAULT_MODEL,
    centre: Centre = NO_CENTRE,
    keep_pictures: Annotated[
        bool, typer.Option("--keep-pictures", help="Keep the aligned faces, not only embeddings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a person to a gallery. All photos are looked at before any is added."""
    recogniser = Recogniser(model, centre)
    people = Gallery.open(gallery, recogniser.digest, recogniser.width, create=True, centre=centre)
    for seen in [recogniser.main_face(path)[0] for path in photos]:
        people.add(name, seen, keep_pictures)
    result = {"name": name, "added": len(photos), "faces": people.names.count(name), "people": len(set(people.names))}
    if as_json:
        show_json(result | {"gallery": str(gallery)})
    else:
        print(f"{name}: {result['faces']} faces; {result['people']} people in {gallery}")


def identify_command(
    photo: Annotated[Path, typer.Argument(help="A photo with any number of faces.")],
    gallery: GalleryFolder = Path("gallery"),
    model: Model = DEFAULT_MODEL,
    centre: Centre = NO_CENTRE,
    fmr: Rate = DEFAULT_RATE,
    threshold: Threshold = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Who in a gallery is in a photo? Exit code 0 if somebody is recognised, 1 if nobody."""
    recogniser = Recogniser(model, centre)
    limit, basis = _limit(model, fmr, threshold, centre)
    people = Gallery.open(gallery, recogniser.digest, recogniser.width, centre=centre)
    pixels = read_photo(photo)
    found, drawn = [], []
    for seen in recogniser.look(pixels):
        entry: dict[str, Any] = {"box": list(seen.face.box), "name": None, "nearest": None, "score": None}
        if seen.embedding is None:
            entry["fault"] = seen.fault
        else:
            entry["nearest"], entry["score"] = people.nearest(seen.embedding)
            entry["name"] = entry["nearest"] if entry["score"] > limit else None
        found.append(entry)
        drawn.append((seen, entry["name"] or ("unusable" if seen.fault else "unknown")))
    if not found:
        raise FedVisageError(f"{photo}: no face found")
    if picture is not None:
        _save(picture, _drawn(pixels, drawn))
    if as_json:
        show_json({"faces": found, "threshold": limit, "basis": basis})
    else:
        for entry in found:
            who = entry["name"] or entry.get("fault") or f"unknown (nearest: {entry['nearest']})"
            score = f", {entry['score']:.3f}" if entry["score"] is not None else ""
            print(f"face at {tuple(entry['box'])}: {who}{score}")
        print(f"threshold {basis}")
    if not any(entry["name"] for entry in found):
        raise typer.Exit(1)


def calibrate_command(
    model: Annotated[str, typer.Argument(help="A model file or a run's folder.")],
    data: Annotated[Path, typer.Option(help="A folder of faces of people the model was not trained on.")],
    name: Annotated[str, typer.Option(help="What to call these faces; by default the folder's name.")] = "",
    centre: Centre = NO_CENTRE,
    as_json: Json = False,
) -> None:
    """Measure a model's thresholds over all pairs of a folder of faces, and keep them beside the model."""
    if model == DEFAULT_MODEL and not centre:
        raise FedVisageError("dlib's thresholds come with the package: give --threshold where you want others")
    found = calibrate(model, open_faceset(data), name or data.resolve().name, centre)
    kept = calibration_file(model, centre)
    thresholds = {f"{rate:g}": value for rate, value in found.thresholds.items()}
    if as_json:
        show_json({"file": str(kept), "thresholds": thresholds, "pairs": found.impostor_pairs})
        return
    show_table(["false-match rate", "threshold"], [[rate, f"{value:.4f}"] for rate, value in thresholds.items()])
    print(f"over {found.impostor_pairs:,} pairs of different people in {found.faces}; kept in {kept}")


def centre_command(
    model: Annotated[str, typer.Argument(help="A model's name such as dlib, a model file, or a run's folder.")],
    data: Annotated[Path, typer.Option(help="A folder of faces of the people to centre on; no test people.")],
    out: Annotated[Path, typer.Option(help="Model file to write, with the centre in it (.safetensors).")],
    name: Annotated[str, typer.Option(help="What to call the centre; by default the folder's name.")] = "",
    as_json: Json = False,
) -> None:
    """Fit a centre of a model to the people of a folder of faces, and write the model with it."""
    opened, called = open_model(model), check_centre_name(name or data.resolve().name)
    if called in opened.centres:
        raise FedVisageError(f"{model} has a centre '{called}' already: choose another --name")
    faces = open_faceset(data)
    opened.centres[called] = fit_centre(opened, Faces(faces, np.arange(len(faces))))
    save_model(out, opened, {} if model in MODEL_FILES else read_model_metadata(model_file(model)))
    people = opened.centres[called].people
    if as_json:
        show_json({"file": str(out), "centre": called, "people": people})
    else:
        print(f"{out}: {model} with the centre '{called}' of {people:,} people")


def _limit(model: str, fmr: float, threshold: float | None, centre: str) -> tuple[float, str]:
    """The threshold and, in words, where it comes from."""
    if threshold is not None:
        if not math.isfinite(threshold):
            raise FedVisageError(f"--threshold must be a number, got {threshold}")
        return threshold, f"{threshold:.3f} as given"
    calibration = calibration_of(model, centre)
    limit = calibration.at(fmr)
    return limit, f"{limit:.3f} (false-match rate {fmr:g} on {calibration.faces})"


def _drawn(photo: Pixels, named: list[tuple[Seen, str]]) -> Image.Image:
    image = Image.fromarray(photo)
    pen = ImageDraw.Draw(image)
    width = max(2, max(image.size) // 300)
    letters = max(12, max(image.size) // 30)
    font = ImageFont.load_default(size=letters)
    for seen, word in named:
        left, top, right, bottom = seen.face.box
        pen.rectangle((left, top, right, bottom), outline=(40, 220, 90), width=width)
        place = (left, max(0, top - letters * 1.2))
        pen.text(place, word, font=font, fill=(255, 255, 255), stroke_width=2, stroke_fill=(0, 0, 0))
    return image


def _side_by_side(images: list[Image.Image]) -> Image.Image:
    height = max(image.height for image in images)
    sheet = Image.new("RGB", (sum(image.width for image in images) + 8, height), (255, 255, 255))
    sheet.paste(images[0], (0, 0))
    sheet.paste(images[1], (images[0].width + 8, 0))
    return sheet


def _save(path: Path, image: Image.Image) -> None:
    try:
        image.save(path)
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot write {path}: {error}") from None
