"""Recognising people in photos: photo to face to embedding to decision, and galleries of enrolled people.

Two faces match when the cosine of their embeddings is above a threshold. A threshold belongs to a model and to a
false-match rate measured on a named set of faces: that of `dlib` comes with the package, any other model is calibrated
on a folder of faces (`calibrate`), and the result is kept beside it. A gallery is a folder that its user owns; it holds
embeddings and names, and no picture unless that is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import all_pairs_verification
from fedvisage.faces.align import Detector, Face, aligned, fault, read_photo
from fedvisage.faces.faceset import Faces, FaceSet, Pixels
from fedvisage.models import MODEL_FILES, NO_CENTRE, Backbone, open_model
from fedvisage.training import embed_images

Floats = NDArray[np.float32]

FORMAT = 1
DEFAULT_MODEL = "dlib"
DEFAULT_RATE = 0.01
RATES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class Calibration:
    """Thresholds by false-match rate, the set of faces they were measured on, and which model's they are."""

    model: str
    faces: str
    impostor_pairs: int
    thresholds: Mapping[float, float]
    centre: str = ""
    """The model's centre that embeddings are about, if they are about one."""

    def at(self, rate: float) -> float:
        """The threshold for a false-match rate."""
        if rate not in self.thresholds:
            known = ", ".join(f"{known:g}" for known in sorted(self.thresholds, reverse=True))
            raise FedVisageError(
                f"no threshold is known for a false-match rate of {rate:g} on {self.faces}: try {known}"
            )
        return self.thresholds[rate]


DLIB_ON_LFW = Calibration(
    "dlib",
    "LFW, the 2,513 people of its pairs in folds 2 to 7",
    10_389_478,
    {1e-1: 0.88328, 1e-2: 0.91134, 1e-3: 0.92903, 1e-4: 0.94207, 1e-5: 0.95267},
)


def model_file(source: str | Path) -> Path:
    """The file behind a model's name, path or run folder."""
    if str(source) in MODEL_FILES:
        return MODEL_FILES[str(source)].path
    path = Path(source)
    return path / "model.safetensors" if path.is_dir() else path


def digest(source: str | Path) -> str:
    """Names a model by its weights: `dlib`, or the digest of its file."""
    if str(source) == DEFAULT_MODEL:
        return DEFAULT_MODEL
    try:
        return hashlib.sha256(model_file(source).read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise FedVisageError(f"cannot read the model {source}: {error.strerror}") from None


def calibration_file(source: str | Path, centre: str = "") -> Path:
    """Where the calibration of a model, or of one of its centres, is kept: beside it."""
    return model_file(source).with_suffix(f".{centre}.calibration.json" if centre else ".calibration.json")


def calibrate(source: str | Path, faces: FaceSet, name: str, centre: str = "") -> Calibration:
    """Measure a model's thresholds over all pairs of a face set, and keep them beside it."""
    embeddings = embed_images(open_model(source, centre), Faces(faces, np.arange(len(faces))), normalise=True)
    pairs = all_pairs_verification(embeddings, faces.labels, RATES)
    known = {rate.far: float(rate.threshold) for rate in pairs.rates if np.isfinite(rate.threshold)}
    found = Calibration(digest(source), name, pairs.impostor, known, centre)
    table = {"format": FORMAT, **asdict(found), "thresholds": {f"{rate:g}": value for rate, value in known.items()}}
    write_atomically(calibration_file(source, centre), [(json.dumps(table, indent=1) + "\n").encode()])
    return found


def calibration_of(source: str | Path, centre: str = "") -> Calibration:
    """The calibration of a model, or of one of its centres: the one that comes with the package, or the one beside it.

    A threshold belongs to embeddings about one centre, and tells nothing of those about another.
    """
    if str(source) == DEFAULT_MODEL and not centre:
        return DLIB_ON_LFW
    path, words = calibration_file(source, centre), f"calibrate {source} --data FACES"
    words += f" --centre {centre}" if centre else ""
    if not path.exists():
        about = f" about its centre '{centre}'" if centre else ""
        raise FedVisageError(
            f"no threshold is known for {source}{about}: measure it with `fedvisage {words}`, or give --threshold"
        )
    try:
        table = json.loads(path.read_text("utf-8"))
        rates = {float(rate): float(value) for rate, value in table["thresholds"].items()}
        found = Calibration(str(table["model"]), str(table["faces"]), int(table["impostor_pairs"]), rates)
        version, own = table["format"], str(table.get("centre", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedVisageError(f"cannot read the calibration {path}: {error}") from None
    if version != FORMAT or found.model != digest(source) or own != centre:
        raise FedVisageError(f"{path} belongs to another model: run `fedvisage {words}` again")
    return replace(found, centre=own)


@dataclass(frozen=True)
class Seen:
    """A face in a photo: where, aligned, as an embedding (d,) of length one; or why it cannot be recognised."""

    face: Face
    pixels: Pixels
    embedding: Floats | None
    fault: str | None


class Recogniser:
    """A model with what it needs to look at photos; embeddings are about one of its centres where one is named."""

    def __init__(self, source: str | Path = DEFAULT_MODEL, centre: str = "") -> None:
        self.model: Backbone = open_model(source, centre)
        self.digest = digest(source)
        self.width = self.model.metadata.embedding_size
        self._detector = Detector(MODEL_FILES["dlib-5-points"].path)

    def look(self, photo: Pixels) -> list[Seen]:
        """The faces in a photo (H, W, 3), the largest first."""
        seen = []
        for face in self._detector.find(photo):
            why = fault(face, aligned(photo, face))
            pixels = aligned(photo, face, self.model.metadata.image_size)
            embedding = None if why else self.model.embed(pixels[None], normalise=True)[0]
            seen.append(Seen(face, pixels, embedding, why))
        return seen

    def main_face(self, path: Path) -> tuple[Seen, int]:
        """The largest face of a photo and how many there are; refused where it is absent, too small or blurred."""
        seen = self.look(read_photo(path))
        if not seen:
            raise FedVisageError(f"{path}: no face found")
        if seen[0].fault is not None:
            raise FedVisageError(f"{path}: {seen[0].fault}")
        return seen[0], len(seen)


class Gallery:
    """Enrolled people: names and embeddings (n, d) in a folder."""

    def __init__(self, folder: Path, model: str, names: list[str], embeddings: Floats, centre: str = "") -> None:
        self.folder, self.model, self.names, self.embeddings = folder, model, names, embeddings
        self.centre = centre

    @staticmethod
    def open(folder: Path, model: str, width: int, create: bool = False, centre: str = "") -> Gallery:
        """The gallery in a folder, made with the same model of this width about the same centre.

        A new one where that is asked for.
        """
        path = folder / "gallery.json"
        if not path.exists():
            if not create:
                raise FedVisageError(f"no gallery in {folder}: enrol somebody first (`fedvisage enrol NAME PHOTO`)")
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise FedVisageError(f"{folder} is no gallery and not empty: choose another folder")
            return Gallery(folder, model, [], np.empty((0, 0), np.float32), centre)
        try:
            table = json.loads(path.read_text("utf-8"))
            names, made_with, version = [str(name) for name in table["names"]], table["model"], table["format"]
            rows, made_about = np.array(table["embeddings"], dtype=np.float32), str(table.get("centre", ""))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedVisageError(f"cannot read the gallery {folder}: {error}") from None
        if version != FORMAT or rows.ndim != 2 or len(rows) != len(names) or not np.isfinite(rows).all():
            raise FedVisageError(f"{path} does not hold a gallery that this version reads")
        if made_with != model:
            raise FedVisageError(
                f"the gallery {folder} was made with another model: embeddings of two cannot be compared"
            )
        if made_about != centre:
            made = f"about the centre '{made_about}'" if made_about else "without a centre"
            raise FedVisageError(f"the gallery {folder} was made {made}: say --centre {made_about or NO_CENTRE}")
        if names and rows.shape[1] != width:
            raise FedVisageError(
                f"{path} holds embeddings of {rows.shape[1]} dimensions, and the model's have {width}: enrol again"
            )
        return Gallery(folder, model, names, rows, centre)

    def add(self, name: str, seen: Seen, keep_picture: bool = False) -> None:
        """Enrol a face under a name."""
        if not name.strip() or len(name) > 200 or any(ord(letter) < 32 for letter in name):
            raise FedVisageError("a name needs one to 200 printable letters")
        assert seen.embedding is not None
        self.embeddings = np.vstack([self.embeddings.reshape(-1, len(seen.embedding)), seen.embedding])
        self.names.append(name)
        table = {"format": FORMAT, "model": self.model, "centre": self.centre}
        table |= {"names": self.names, "embeddings": self.embeddings.tolist()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if keep_picture:
                (self.folder / "pictures").mkdir(exist_ok=True)
                Image.fromarray(seen.pixels).save(self.folder / "pictures" / f"{len(self.names) - 1}.png")
            write_atomically(self.folder / "gallery.json", [json.dumps(table).encode()])
        except OSError as error:
            raise FedVisageError(f"cannot write the gallery {self.folder}: {error.strerror or error}") from None

    def people(self) -> tuple[list[str], Floats]:
        """The people in order of name, each as the normalised mean of their embeddings (people, d)."""
        everybody = sorted(set(self.names))
        owner = np.array([everybody.index(name) for name in self.names])
        sums = np.stack([self.embeddings[owner == number].sum(axis=0) for number in range(len(everybody))])
        return everybody, sums / np.linalg.norm(sums, axis=1, keepdims=True)

    def nearest(self, embedding: Floats) -> tuple[str, float]:
        """The person most similar to an embedding, and the cosine."""
        if not self.names:
            raise FedVisageError(f"the gallery {self.folder} is empty")
        everybody, means = self.people()
        cosines = means @ embedding
        best = int(cosines.argmax())
        return everybody[best], float(cosines[best])


def verdict(one: Seen, other: Seen, threshold: float) -> dict[str, Any]:
    """Whether two faces show one person: `same`, `score` (cosine) and `threshold`."""
    assert one.embedding is not None
    assert other.embedding is not None
    score = float(one.embedding @ other.embedding)
    return {"same": score > threshold, "score": score, "threshold": threshold}
