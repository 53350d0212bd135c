"""Photos and a party's folder: after a run on real hosts its operator enrols people and finds them in other photos."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_hosts import recipe_with, started
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli.main import app
from fedvisage.deploy.party import GLOBAL_MODEL, MODEL, PartyFolder, open_party_folder
from fedvisage.faces.align import Detector, aligned, read_photo
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.models import MODEL_FILES

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
PHOTOS = DATA / "lfw-photos-dev" / "images"
pytestmark = pytest.mark.skipif(not PHOTOS.is_dir(), reason="no real faces: set FEDVISAGE_DATA")

KEPT_APART = 2
"""Photos of each person that no faces are made of: one to enrol with, one to be found in."""
RECIPE: dict[str, Any] = {
    "faces.size": 112,
    "partition.parties": 2,
    "partition.identities_per_party": 3,
    "partition.public": 6,
    "pretrain.epochs": 0,
    "backbone.name": "dlib-resnet",
    "backbone.start": "dlib",
    "backbone.train_from": "stage4",
    "training.learning_rate": 3e-4,
    "method": {"name": "fedfr", "threshold": 0.9},
    "federation.rounds": 1,
    "federation.evaluate_every": 0,
    "federation.keep_local": False,
}


def people() -> dict[str, list[Path]]:
    """Twelve people with five photos each."""
    found = {folder.name: sorted(folder.glob("*.jpg"))[:5] for folder in sorted(PHOTOS.iterdir())}
    return dict([(name, photos) for name, photos in found.items() if len(photos) == 5][:12])


def write_faces(folder: Path) -> None:
    """The aligned faces of the first photos of everybody."""
    detector = Detector(MODEL_FILES["dlib-5-points"].path)
    pixels, labels = [], []
    for person, photos in enumerate(people().values()):
        for path in photos[:-KEPT_APART]:
            photo = read_photo(path)
            pixels.append(aligned(photo, detector.find(photo)[0], 112))
            labels.append(person)
    write_faceset(folder, FaceSet(ArrayImages(np.stack(pixels)), np.array(labels), tuple(people())))


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> list[PartyFolder]:
    """The folders of two parties after a run of FedFR between their hosts."""
    folder = tmp_path_factory.mktemp("photos")
    write_faces(folder / "faces")
    recipe = recipe_with(folder, RECIPE | {"faces.source": str(folder / "faces")})
    with started(folder, recipe) as hosts:
        fv.run(recipe, out=folder / "run", on=hosts.folder)
        names = list(hosts.deployment.roles)
    return [open_party_folder(hosts.deployment.party(name)) for name in names]


def command(*words: object) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_people_are_found_in_new_photos_with_the_partys_own_model(parties: list[PartyFolder], tmp_path: Path) -> None:
    """All six are; strangers are less like anybody. Eighteen public images are too few for a threshold to rely on."""
    photos = people()
    for party, other in (parties, parties[::-1]):
        assert fv.load_model(party.folder / MODEL).transformation is not None, "the branch of FedFR"
        own = ("--model", party.folder, "--gallery", tmp_path / party.settings.name)
        assert command("calibrate", party.folder, "--data", party.folder / "public")[0] == 0
        for name in party.faces().names:
            code, found = command("enrol", name, photos[name][-2], *own)
            assert (code, found["name"]) == (0, name)
        asked = {
            name: command("identify", photos[name][-1], *own, "--fmr", "0.01")
            for name in (*party.faces().names, *other.faces().names)
        }
        scores = {name: found["faces"][0]["score"] for name, (_, found) in asked.items()}
        for name in party.faces().names:
            code, found = asked[name]
            assert (code, found["faces"][0]["name"]) == (0, name)
            assert "on public" in found["basis"]
        for name in other.faces().names:
            code, found = asked[name]
            assert (code == 0) == (scores[name] > found["threshold"]) == (found["faces"][0]["name"] is not None)
        mine, theirs = ([scores[name] for name in one.faces().names] for one in (party, other))
        assert min(mine) > max(theirs)


def test_the_gallery_of_a_partys_own_model_is_not_for_the_one_that_all_have(
    parties: list[PartyFolder], tmp_path: Path
) -> None:
    party, photos = parties[0], people()
    name = party.faces().names[0]
    assert command("enrol", name, photos[name][-2], "--model", party.folder, "--gallery", tmp_path / "own")[0] == 0
    shared = party.newest() / GLOBAL_MODEL
    words = ["identify", photos[name][-1], "--model", shared, "--gallery", tmp_path / "own", "--threshold", "0.9"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert "was made with another model" in str(done.exception or done.output)
    assert done.exit_code != 0
