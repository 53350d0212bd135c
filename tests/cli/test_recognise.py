"""Recognising people in photos from the command line: decisions, galleries, thresholds and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_photos import ANN, ANN_AGAIN, BOB, draw
from PIL import Image

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation.verification import cosines
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.faces.lists import PairList
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import create_backbone, save_model
from fedvisage.protocols import Data, Options, open_subject
from fedvisage.recognise import DLIB_ON_LFW, Gallery, Recogniser, calibration_of, verdict

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
PHOTOS = DATA / "lfw-photos-dev"


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drawn people that dlib's detector finds: two photos of ann, one of bob, one of both, one of nobody."""
    folder = tmp_path_factory.mktemp("photos")
    shown = {"ann": (ANN,), "ann2": (ANN_AGAIN,), "bob": (BOB,), "both": (ANN, BOB), "nobody": ()}
    return {name: draw(folder / f"{name}.png", *people) for name, people in shown.items()}


def test_two_photos_are_compared_and_the_exit_code_says_how_it_went(fedvisage, photos, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = fedvisage("verify", photos["ann"], photos["ann2"], "--json", "--picture", tmp_path / "pair.png")
    same = json.loads(out)
    assert code == 0
    assert same["same"]
    assert same["threshold"] == DLIB_ON_LFW.thresholds[0.01] < same["score"] <= 1
    assert size_of(tmp_path / "pair.png") == (928, 300)
    code, out, _ = fedvisage("verify", photos["ann"], photos["ann2"], "--threshold", "0.9999")
    assert code == 1
    assert out.startswith("different people: 0.")
    code, out, _ = fedvisage("verify", photos["both"], photos["both"])
    assert code == 0
    assert "shows 2 faces: the largest was compared" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "{ann}", "{nobody}"], "nobody.png: no face found"),
        (["verify", "{ann}", "/no/such.jpg"], "cannot read /no/such.jpg: No such file"),
        (["verify", "{ann}", "{ann2}", "--fmr", "0.5"], "no threshold is known for a false-match rate of 0.5 on LFW"),
        (["verify", "{ann}", "{ann2}", "--threshold", "nan"], "--threshold must be a number, got nan"),
        (["identify", "{ann}", "--threshold=-inf"], "--threshold must be a number, got -inf"),
        (["verify", "{ann}", "{ann2}", "--model", "dlip"], "cannot read the calibration|no threshold|no model"),
        (["identify", "{ann}", "--gallery", "/no/gallery"], "no gallery in /no/gallery: enrol somebody first"),
        (["enrol", "", "{ann}", "--gallery", "{tmp}/new"], "a name needs one to 200 printable letters"),
        (["calibrate", "dlib", "--data", "/no/faces"], "dlib's thresholds come with the package"),
        (["export", "{tmp}/model.pt"], "the suffix must be .safetensors or .onnx"),
    ],
)
def test_a_users_mistake_is_one_line(fedvisage, photos, tmp_path: Path, words, message) -> None:  # type: ignore[no-untyped-def]
    code, out, err = fedvisage(*(word.format(**photos, tmp=tmp_path) for word in words))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(message, err), err


def test_enrolled_people_are_found_again(fedvisage, photos, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gallery = tmp_path / "gallery"
    for name in ("ann", "bob"):
        assert fedvisage("enrol", name, photos[name], "--gallery", gallery, "--json")[0] == 0
    assert [path.name for path in gallery.iterdir()] == ["gallery.json"]  # embeddings only
    picture = tmp_path / "named.png"
    code, out, _ = fedvisage("identify", photos["both"], "--gallery", gallery, "--json", "--picture", picture)
    faces = sorted(json.loads(out)["faces"], key=lambda face: face["box"])
    assert code == 0
    assert [face["name"] for face in faces] == ["ann", "bob"]
    assert size_of(picture) == (460, 300)
    code, out, _ = fedvisage("identify", photos["both"], "--gallery", gallery, "--threshold", "1.1")
    assert code == 1
    assert out.count("unknown (nearest: ") == 2
    assert fedvisage("enrol", "ann", photos["ann2"], "--gallery", gallery, "--keep-pictures")[0] == 0
    assert len(list((gallery / "pictures").iterdir())) == 1
    with pytest.raises(FedVisageError, match="was made with another model"):
        Gallery.open(gallery, "another", 128)
    table = json.loads((gallery / "gallery.json").read_text())
    (gallery / "gallery.json").write_text(json.dumps(table | {"embeddings": [[0.6, 0.8]] * 3}))
    for words in (["identify", photos["ann"]], ["enrol", "ann", photos["ann"]]):
        code, _, err = fedvisage(*words, "--gallery", gallery)
        assert (code, "embeddings of 2 dimensions, and the model's have 128" in err) == (2, True), err
    (gallery / "gallery.json").write_text("{}")
    assert fedvisage("identify", photos["ann"], "--gallery", gallery)[0] == 2


def test_a_model_of_any_run_works_once_it_is_calibrated(fedvisage, photos, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Generic and personal models are the same kind of file; the latter may end in a layer of their own."""
    personal = create_backbone("ir-tiny", image_size=48, embedding_size=16)
    personal.transformation = torch.nn.Linear(16, 16)
    path = tmp_path / "parties" / "a" / "model.safetensors"
    path.parent.mkdir(parents=True)
    save_model(path, personal)
    code, _, err = fedvisage("verify", photos["ann"], photos["bob"], "--model", path)
    assert (code, "measure it with `fedvisage calibrate" in err) == (2, True)
    source = SyntheticFaces(5, 10, 4, 48, "daylight")
    pixels = source.read(np.arange(40))
    write_faceset(tmp_path / "faces", FaceSet(ArrayImages(pixels), np.arange(40) // 4, tuple("abcdefghij")))
    code, out, err = fedvisage("calibrate", path, "--data", tmp_path / "faces", "--json")
    assert code == 0, err
    assert json.loads(out)["pairs"] == 40 * 39 // 2 - 10 * 6
    embeddings = personal.eval().embed(pixels, normalise=True).astype(np.float64)
    cosines = (embeddings @ embeddings.T)[np.triu_indices(40, 1)]
    apart = (np.arange(40)[:, None] // 4 != np.arange(40) // 4)[np.triu_indices(40, 1)]
    assert np.mean(cosines[apart] > calibration_of(path).at(0.1)) == pytest.approx(0.1, abs=1 / 720)
    code, out, err = fedvisage("verify", photos["ann"], photos["bob"], "--model", path, "--fmr", "0.1", "--json")
    assert code in (0, 1), err
    assert "on faces" in json.loads(out)["basis"]
    save_model(path, create_backbone("ir-tiny", image_size=48, embedding_size=16))
    code, _, err = fedvisage("verify", photos["ann"], photos["bob"], "--model", path, "--fmr", "0.1")
    assert (code, "belongs to another model" in err) == (2, True)


def test_photos_are_aligned_into_the_same_tree_and_the_rest_is_listed(fedvisage, photos, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source, out = tmp_path / "mine", tmp_path / "aligned"
    (source / "ann").mkdir(parents=True)
    for name in ("ann", "both", "nobody"):
        (source / "ann" / f"{name}.png").write_bytes(photos[name].read_bytes())
    (source / "ann" / "text.jpg").write_text("no photo")
    code, printed, err = fedvisage("data", "align", source, "--out", out, "--several", "all", "--json")
    assert code == 0, err
    result = json.loads(printed)
    assert (result["photos"], result["faces"]) == (4, 3)
    assert result["left_out"] == {"ann/nobody.png": "no face found", "ann/text.jpg": "no image: cannot identify image"}
    assert sorted(path.name for path in (out / "ann").iterdir()) == ["ann.png", "both-2.png", "both.png"]
    assert size_of(out / "ann" / "ann.png") == (112, 112)
    recogniser = Recogniser()
    with Image.open(out / "ann" / "ann.png") as image:
        stored = recogniser.model.embed(np.asarray(image)[None], normalise=True)[0]
    seen = recogniser.main_face(photos["ann"])[0].embedding
    assert seen is not None
    assert float(stored @ seen) == pytest.approx(1, abs=1e-6)  # evaluation of stored faces decides as `verify` does
    for words, message in (
        (["data", "align", source, "--out", out], "is not empty"),
        (["data", "align", source, "--out", photos["ann"]], "ann.png is a file: choose a folder"),
        (["data", "align", tmp_path / "nothing", "--out", tmp_path / "x"], "no folder"),
        (["data", "align", out.parent / "empty", "--out", tmp_path / "x"], "no photos in"),
    ):
        (out.parent / "empty").mkdir(exist_ok=True)
        code, _, err = fedvisage(*words)
        assert (code, message in err) == (2, True), err


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="no real faces: set FEDVISAGE_DATA")
def test_pairs_of_real_photos_are_told_apart_and_evaluated_as_they_were(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Twenty of the 600 pairs; all of them are measured by `python -m benchmarks recognition`.

    The same photos aligned, imported and scored by the protocol `lfw` are decided as `verify` decides them.
    """
    recogniser, limit = Recogniser(), DLIB_ON_LFW.at(0.01)
    lines = (PHOTOS / "pairs.txt").read_text().splitlines()[1:][::30]
    decided = []
    for pair in (line.split("\t") for line in lines):
        first = (pair[0], pair[1])
        second = (pair[0], pair[2]) if len(pair) == 3 else (pair[2], pair[3])
        seen = []
        for name, number in (first, second):
            file = Path(name) / f"{name}_{int(number):04d}.jpg"
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(PHOTOS / "images" / file, tmp_path / "photos" / file)
            seen.append(recogniser.main_face(PHOTOS / "images" / file)[0])
        decided.append(verdict(*seen, limit))
    truth = [line.count("\t") == 2 for line in lines]
    assert sum(found["same"] == same for found, same in zip(decided, truth, strict=True)) >= 19

    (tmp_path / "pairs.txt").write_text("\n".join(["1\t10", *lines]) + "\n")
    assert fedvisage("data", "align", tmp_path / "photos", "--out", tmp_path / "aligned")[0] == 0
    words = ("--out", tmp_path / "faces", "--pairs", tmp_path / "pairs.txt")
    code, _, err = fedvisage("data", "import", tmp_path / "aligned", *words)
    assert code == 0, err
    data, subject = Data(tmp_path / "faces"), open_subject("dlib")
    pairs = data.list("pairs", PairList)
    scored = cosines(*(subject.chosen(data, side, Options().flips(subject)) for side in (pairs.left, pairs.right)))
    assert pairs.same.tolist() == truth
    assert scored == pytest.approx([found["score"] for found in decided], abs=1e-5)
    assert (scored > limit).tolist() == [found["same"] for found in decided]
