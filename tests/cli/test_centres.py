"""A centre from the command line: fitted to a folder, then named in every command that embeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from drawn_photos import ANN, ANN_AGAIN, draw

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.align import Detector, aligned, read_photo
from fedvisage.faces.faceset import Faces, FaceSet, open_faceset, write_faceset
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import MODEL_FILES, create_backbone, load_model, open_model, read_model_metadata, save_model
from fedvisage.training import fit_centre

PEOPLE = 22


def write_people(folder: Path, count: int, size: int, seed: int) -> Path:
    drawn = SyntheticFaces(seed, count, 2, size, "daylight")
    write_faceset(folder, FaceSet(drawn, drawn.labels, tuple(f"p{n:02d}" for n in range(count))))
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("faces") / "people", PEOPLE, 48, 5)


@pytest.fixture(scope="module")
def centred(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose embeddings lie in a cone, with the centre `people`."""
    model = create_backbone("ir-tiny", image_size=48, embedding_size=16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        model.features.bias += 3.0  # type: ignore[operator, union-attr]
    whole = open_faceset(faces)
    model.centres["people"] = fit_centre(model.eval(), Faces(whole, range(len(whole))))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, model, {"recipe": "mine"})
    return path


def least_cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / lengths).min())


def by_definition(model: Path, pixels: np.ndarray, flip: bool) -> np.ndarray:
    """unit(unit(f) - c) from the model's raw embeddings, in double precision."""
    opened = load_model(model)
    raw = opened.embed(pixels, flip=flip).astype(np.float64)
    return raw / np.linalg.norm(raw, axis=1, keepdims=True) - opened.centres["people"].vector.numpy()


def test_a_centre_is_fitted_to_a_folder_and_written_with_the_model(fedvisage, centred: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    others, out = write_people(tmp_path / "others", 20, 48, 6), tmp_path / "two.safetensors"
    code, printed, err = fedvisage("centre", centred, "--data", others, "--out", out, "--json")
    assert code == 0, err
    assert json.loads(printed) == {"file": str(out), "centre": "others", "people": 20}
    found, before = load_model(out), load_model(centred)
    whole = open_faceset(others)
    assert torch.equal(found.centres["others"].vector, fit_centre(before, Faces(whole, range(len(whole)))).vector), (
        "by the model itself, not about the centre it has"
    )
    assert torch.equal(found.centres["people"].vector, before.centres["people"].vector)
    assert read_model_metadata(out) == {"recipe": "mine"}
    for words, says in (
        ([centred, "--data", others, "--name", "people"], "has a centre 'people' already: choose another --name"),
        ([centred, "--data", others, "--name", "none"], "no centre can be called 'none'"),
        ([centred, "--data", write_people(tmp_path / "few", 19, 48, 7)], "a centre of 19 people is close to their"),
    ):
        code, _, err = fedvisage("centre", *words, "--out", tmp_path / "x.safetensors")
        assert (code, says in err, err.count("\n")) == (2, True, 1), err


def test_dlibs_network_takes_a_centre_too(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    people, out = write_people(tmp_path / "people", 20, 112, 8), tmp_path / "dlib-people.safetensors"
    assert fedvisage("centre", "dlib", "--data", people, "--out", out)[0] == 0
    model, images = load_model(out), open_faceset(people).images.read(np.arange(4))
    assert 0.5 < float(model.centres["people"].vector.norm()) < 1, "a cone"
    assert np.array_equal(model.embed(images), open_model("dlib").embed(images))
    code, _, err = fedvisage("verify", people, people, "--centre", "people")
    assert (code, "dlib has no centre 'people'; it has none" in err) == (2, True)


def test_onnx_and_embeddings_files_are_about_the_centre(fedvisage, centred: Path, faces: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    images = open_faceset(faces).images.read(np.arange(2 * PEOPLE))
    code, out, err = fedvisage("export", tmp_path / "m.onnx", "--model", centred, "--centre", "people", "--json")
    assert code == 0, err
    result = json.loads(out)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    theirs = session.run(["embeddings"], {"images": images})[0]
    assert result["least_cosine"] >= 0.9999
    assert least_cosine(theirs, by_definition(centred, images, flip=False)) >= 0.9999
    assert least_cosine(theirs, load_model(centred).embed(images, flip=False)) < 0.99
    assert result["metadata"]["fedvisage.centre"].startswith(f"people, of {PEOPLE} people")
    assert "Embeddings are about the centre `people`." in Path(result["card"]).read_text()
    assert fedvisage("embed", centred, "--data", faces, "--out", tmp_path / "e", "--centre", "people")[0] == 0
    code, out, err = fedvisage("evaluate", tmp_path / "e", "--data", faces, "--pairs", "0", "--far", "0.1", "--json")
    _, same, _ = fedvisage(
        "evaluate", centred, "--data", faces, "--pairs", "0", "--far", "0.1", "--centre", "people", "--json"
    )
    assert json.loads(out)["results"][0]["metrics"] == json.loads(same)["results"][0]["metrics"]
    code, _, err = fedvisage("export", tmp_path / "m.safetensors", "--model", centred, "--centre", "people")
    assert (code, "keeps every centre of the model: leave --centre out" in err) == (2, True)
    assert fedvisage("export", tmp_path / "m.safetensors", "--model", centred)[0] == 0
    assert load_model(tmp_path / "m.safetensors").centres["people"].people == PEOPLE
    assert f"| `people` | {PEOPLE} |" in (tmp_path / "m.card.md").read_text()


def test_a_gallery_knows_its_centre_and_thresholds_have_theirs(
    fedvisage, centred: Path, faces: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    photos = [draw(tmp_path / f"{n}.png", who) for n, who in enumerate((ANN, ANN_AGAIN))]
    about, gallery = ("--model", centred, "--centre", "people"), ("--gallery", tmp_path / "gallery")
    code, out, err = fedvisage("enrol", "Ann", photos[0], *about, *gallery, "--json")
    assert code == 0, err
    code, _, err = fedvisage("identify", photos[1], *about, *gallery)
    assert (code, "about its centre 'people': measure it with `fedvisage calibrate" in err) == (2, True)
    assert fedvisage("calibrate", centred, "--data", faces, "--centre", "people")[0] == 0
    code, out, err = fedvisage("identify", photos[1], *about, *gallery, "--fmr", "0.1", "--json")
    found = json.loads(out)
    face = Detector(MODEL_FILES["dlib-5-points"].path)
    pixels = np.stack([aligned(read_photo(path), face.find(read_photo(path))[0], 48) for path in photos])
    own = by_definition(centred, pixels, flip=True)
    enrolled = np.array(json.loads((tmp_path / "gallery" / "gallery.json").read_text())["embeddings"])
    assert least_cosine(enrolled, own[:1]) >= 0.9999
    assert found["faces"][0]["score"] == pytest.approx(least_cosine(own[:1], own[1:]), abs=1e-4)
    whole = by_definition(centred, open_faceset(faces).images.read(np.arange(2 * PEOPLE)), flip=True)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    apart = np.arange(2 * PEOPLE)[:, None] // 2 != np.arange(2 * PEOPLE) // 2
    assert np.mean((whole @ whole.T)[apart] > found["threshold"]) == pytest.approx(0.1, abs=2 / apart.sum())
    for words, says in (
        (["identify", photos[1], "--model", centred, "--threshold", "0"], "'people': say --centre people"),
        (["enrol", "Ann", photos[1], "--model", centred, "--centre", "x"], "no centre 'x'; its centres: people"),
        (["identify", photos[1], "--model", centred], "no threshold is known for"),
    ):  # fmt: skip
        code, _, err = fedvisage(*words, *gallery)
        assert (code, says in err, err.count("\n")) == (2, True, 1), err
    with pytest.raises(FedVisageError, match="has no centre"):
        load_model(centred).use_centre("x")
