"""How well photos are recognised: dlib's own numbers, the LFW folds, photos end to end, and the ONNX export.

Needs the real faces at ../shared/data (or FEDVISAGE_DATA); without them there is nothing to measure.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

from benchmarks.common import Row, Scale
from fedvisage.evaluation import kfold_accuracy
from fedvisage.export import export_model
from fedvisage.faces.align import read_photo
from fedvisage.faces.template import ARCFACE_POINTS, align, similarity
from fedvisage.models import MODEL_FILES, DlibResNet, open_model
from fedvisage.recognise import DLIB_ON_LFW, Recogniser

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
ALIGNED, PHOTOS = DATA / "lfw112-dev", DATA / "lfw-photos-dev"
SIZES = {"smoke": (2, 100), "normal": (40, 15), "full": (1000, 1)}
"""Faces compared with dlib's own numbers, and of how many pairs one is taken."""

Pair = tuple[str, str, bool]


def measure(scale: Scale) -> list[Row]:
    if not ALIGNED.is_dir():
        print(f"recognition: no real faces in {DATA}, nothing measured")
        return []
    count, every = SIZES[scale]
    rows = [against_dlib(count), *photos(every)]
    if scale != "smoke":
        rows.append(onnx(min(count, 100)))
    return [*rows, folds()] if scale == "full" else rows


def against_dlib(count: int) -> Row:
    """Largest difference of any of the 128 numbers, over chips cut from LFW faces."""
    import dlib

    files = sorted((ALIGNED / "images").glob("*/*.jpg"))
    chosen = [files[n] for n in np.linspace(0, len(files) - 1, count).astype(int)]
    chips = np.stack([np.asarray(Image.open(file).resize((150, 150))) for file in chosen])
    original: Any = dlib.face_recognition_model_v1(str(MODEL_FILES["dlib"].path))
    network = open_model("dlib")
    assert isinstance(network, DlibResNet)
    ours = np.concatenate([network.descriptors(chips[n : n + 50]) for n in range(0, count, 50)])
    theirs = np.stack([original.compute_face_descriptor(chip) for chip in chips])
    worst = float(np.abs(ours - theirs).max())
    return Row.of(f"descriptors of {count} faces", worst, 1e-4, "difference", "dlib's own, tolerance 1e-4", "<= 1")


def onnx(count: int) -> Row:
    files = sorted((ALIGNED / "images").glob("*/*.jpg"))[:: max(1, 7000 // count)][:count]
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    with TemporaryDirectory() as folder:
        export_model("dlib", Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
        theirs = session.run(None, {"images": images})[0]
    ours = open_model("dlib").embed(images, flip=False)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    name = f"ONNX on {len(files)} faces, least cosine"
    return Row.of(name, float(cosines.min()), 0.9999, "cosine", "PyTorch, at least 0.9999", ">= 1")


def photos(every: int) -> list[Row]:
    """Original photos of fold 1: found, aligned, decided at the default threshold; given landmarks beside it."""
    with (PHOTOS / "landmarks.tsv").open() as file:
        given = {
            row[0]: np.array(row[1:], dtype=np.float64).reshape(5, 2)
            for row in list(csv.reader(file, delimiter="\t"))[1:]
        }
    pairs = read_pairs(PHOTOS / "pairs.txt")[::every]
    recogniser = Recogniser()
    found: dict[str, NDArray[np.float32]] = {}
    by_hand: dict[str, NDArray[np.float32]] = {}
    errors, names = [], sorted({name for pair in pairs for name in pair[:2]})
    for name in names:
        photo = read_photo(PHOTOS / "images" / name)
        by_hand[name] = recogniser.model.embed(align(photo, given[name])[None], normalise=True)[0]
        seen = recogniser.look(photo)
        if seen and seen[0].embedding is not None:
            found[name] = seen[0].embedding
            place, wanted = (in_photo(matrix) for matrix in (seen[0].face.matrix, similarity(given[name])))
            eyes = float(np.linalg.norm(given[name][0] - given[name][1]))
            errors.append(float(np.linalg.norm(place - wanted, axis=1).mean()) / eyes)
    right, right_by_hand = (share_right(pairs, embeddings) for embeddings in (found, by_hand))
    return [
        Row.of(f"faces found in {len(names)} photos", len(found) / len(names), 1.0, "share", "all of them", ">= 0.99"),
        Row.of("alignment error, median", float(np.median(errors)), 1.0, "eye distances", "given landmarks", "<= 0.06"),
        Row.of(f"verify on {len(pairs)} pairs of photos", right, 0.98, "share right", "at least 98%", ">= 1"),
        Row.of("verify with found faces", right, right_by_hand, "share right", "with given landmarks", ">= 0.99"),
    ]


def in_photo(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the template's points are in the photo (5, 2)."""
    points: NDArray[np.float64] = (ARCFACE_POINTS - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
    return points


def share_right(pairs: list[Pair], embeddings: dict[str, NDArray[np.float32]]) -> float:
    """Pairs decided rightly; a photo without a face counts as wrong."""
    limit = DLIB_ON_LFW.at(0.01)
    usable = [pair for pair in pairs if pair[0] in embeddings and pair[1] in embeddings]
    return sum((float(embeddings[a] @ embeddings[b]) > limit) == same for a, b, same in usable) / len(pairs)


def folds() -> Row:
    """7-fold accuracy over the official pairs, from the aligned images."""
    pairs = read_pairs(ALIGNED / "pairs.txt")
    names = sorted({name for pair in pairs for name in pair[:2]})
    network = open_model("dlib")
    parts = []
    for start in range(0, len(names), 64):
        images = [np.asarray(Image.open(ALIGNED / "images" / name)) for name in names[start : start + 64]]
        parts.append(network.embed(np.stack(images), normalise=True))
    embeddings, place = np.concatenate(parts), {name: number for number, name in enumerate(names)}
    left, right = np.array([place[a] for a, _, _ in pairs]), np.array([place[b] for _, b, _ in pairs])
    same = np.array([same for _, _, same in pairs])
    accuracy = kfold_accuracy(embeddings[left], embeddings[right], same, folds=7).mean
    return Row.of("LFW, 7 folds from aligned images", accuracy, 0.985, "accuracy", "at least 98.5%", ">= 1")


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of an LFW list, as names of files."""

    def file(name: str, number: str) -> str:
        return f"{name}/{name}_{int(number):04d}.jpg"

    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return [
        (file(r[0], r[1]), file(r[0], r[2]), True) if len(r) == 3 else (file(r[0], r[1]), file(r[2], r[3]), False)
        for r in rows
    ]
