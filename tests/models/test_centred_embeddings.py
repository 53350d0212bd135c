"""Centres of a model: fitted over people, kept in its file, and embeddings about them as the definition has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from safetensors.torch import load_file, save_file

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import Backbone, Centre, create_backbone, load_model, open_model, save_model
from fedvisage.models.centres import about, check_centre_name
from fedvisage.training import fit_centre

PEOPLE = 24


@pytest.fixture(scope="module")
def whole() -> FaceSet:
    """24 people, of whom the first has images that nobody else has as many of."""
    synthetic = SyntheticFaces(3, PEOPLE, 4, 32, "daylight")
    kept = np.array([index for index in range(4 * PEOPLE) if index < 4 or index % 4 < 2])
    pixels = synthetic.read(kept)
    return FaceSet(ArrayImages(pixels), kept // 4, tuple(f"p{n:02d}" for n in range(PEOPLE)))


@pytest.fixture(scope="module")
def faces(whole: FaceSet) -> Faces:
    return Faces(whole, range(len(whole)))


@pytest.fixture
def centred(faces: Faces) -> Backbone:
    model = create_backbone("ir-tiny", image_size=32, embedding_size=16, generator=torch.Generator().manual_seed(1))
    model.centres["all"] = fit_centre(model.eval(), faces)
    return model


def slow_centre(model: Backbone, faces: Faces) -> np.ndarray:
    """The definition, image by image in double precision."""
    means = []
    for person in range(faces.classes):
        images = faces.read(np.flatnonzero(faces.labels == person))
        each = [model.embed(image[None], centre="none")[0].astype(np.float64) for image in images]
        means.append(np.mean([one / np.linalg.norm(one) for one in each], axis=0))
    return np.mean(means, axis=0)


def test_a_centre_is_the_mean_over_people_of_their_mean_unit_embedding(
    centred: Backbone, whole: FaceSet, faces: Faces
) -> None:
    centre = centred.centres["all"]
    assert centre.people == PEOPLE
    np.testing.assert_allclose(centre.vector.numpy(), slow_centre(centred, faces), atol=1e-6)
    with pytest.raises(FedVisageError, match=r"a centre of 5 people is close to their templates: .* at least 20"):
        fit_centre(centred, Faces(whole, range(12)))


def test_embeddings_about_a_centre_are_as_defined_and_keep_their_length(centred: Backbone, faces: Faces) -> None:
    pixels, c = faces.read(np.arange(6)), centred.centres["all"].vector.numpy().astype(np.float64)
    raw = centred.embed(pixels).astype(np.float64)
    moved = raw / np.linalg.norm(raw, axis=1, keepdims=True) - c
    expected = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(centred.embed(pixels, normalise=True, centre="all"), expected, atol=1e-5)
    lengths = np.linalg.norm(centred.embed(pixels, centre="all"), axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(raw, axis=1), rtol=1e-5)
    assert np.array_equal(centred.embed(pixels, centre="none"), centred.embed(pixels)), "without a name, no centre"
    used = centred.use_centre("all").embed(pixels)
    assert np.array_equal(used, centred.embed(pixels, centre="all"))
    assert np.array_equal(centred.use_centre("none").embed(pixels), raw.astype(np.float32))


@given(some.integers(1, 6), some.integers(2, 9), some.integers(0, 99))
def test_the_direction_about_a_centre_does_not_depend_on_the_length(count: int, size: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(count, size, generator=draw, dtype=torch.float64)
    centre = 0.5 * torch.nn.functional.normalize(torch.randn(size, generator=draw, dtype=torch.float64), dim=0)
    torch.testing.assert_close(about(3 * features, centre), 3 * about(features, centre))
    torch.testing.assert_close(about(features, 0 * centre), features)


def test_a_file_keeps_the_centres_of_its_model(centred: Backbone, faces: Faces, tmp_path: Path) -> None:
    path, pixels = tmp_path / "model.safetensors", faces.read(np.arange(4))
    centred.centres["b"] = Centre(torch.zeros(16), 30)
    save_model(path, centred)
    found = load_model(path)
    assert {name: one.people for name, one in found.centres.items()} == {"all": PEOPLE, "b": 30}
    assert np.array_equal(found.embed(pixels, centre="all"), centred.embed(pixels, centre="all"))
    assert np.array_equal(open_model(path, "all").embed(pixels), centred.embed(pixels, centre="all"))
    with pytest.raises(FedVisageError, match=r"model\.safetensors has no centre 'lfw'; its centres: all, b"):
        open_model(path, "lfw")
    centred.centres.clear()
    save_model(path, centred)
    with pytest.raises(FedVisageError, match="has no centre 'all'; it has none"):
        load_model(path).embed(pixels, centre="all")


@pytest.mark.parametrize(
    ("tensors", "people"),
    [
        ({"centres.all": torch.zeros(16)}, None),
        ({}, {"all": 20}),
        ({"centres.all": torch.zeros(15)}, {"all": 20}),
        ({"centres.all": torch.full((16,), torch.nan)}, {"all": 20}),
        ({"centres.all": torch.zeros(16)}, {"all": "many"}),
        ({"centres.all": torch.zeros(16)}, ["all"]),
    ],
)
def test_a_file_whose_centres_are_damaged_is_refused(
    tensors: dict[str, torch.Tensor], people: object, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, create_backbone("ir-tiny", image_size=32, embedding_size=16))
    table = {"format": 1, "backbone": "ir-tiny", "image_size": 32, "embedding_size": 16, "metadata": {}}
    table |= {} if people is None else {"centres": people}
    save_file(load_file(path) | tensors, path, {"fedvisage": json.dumps(table)})
    with pytest.raises(FedVisageError, match=r"model\.safetensors.*(damaged|is not 16 finite numbers)"):
        load_model(path)


@pytest.mark.parametrize("name", ["", "none", "pairs", "a/b", "-a", "a b", "x" * 65])
def test_a_name_that_commands_could_not_tell_is_no_centres(name: str) -> None:
    with pytest.raises(FedVisageError, match="no centre can be called"):
        check_centre_name(name)
    assert check_centre_name("party-03.lfw_b") == "party-03.lfw_b"
