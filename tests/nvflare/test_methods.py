"""Every federated method gives the same bits in one process and over NVFlare's hosts with mutual TLS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from real_hosts import Hosts, recipe_with, rows, started
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.chosen import CHOSEN
from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS
from fedvisage.deploy.party import PartyFolder, open_party_folder
from fedvisage.faces.align import Detector, aligned, read_photo
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import MODEL_FILES
from fedvisage.privacy import read_ledger
from fedvisage.recognise import calibration_of

ROLES: dict[str, dict[str, Any]] = {
    "feduda": {
        "partition.groups": {
            "source": {"role": "source", "parties": 1, "identities_per_party": 3},
            "target": {"role": "target", "parties": 2, "identities_per_party": 3},
        },
        "method.pretrain_rounds": 1,
    },
    "pfm": {
        "faces.identities": 20,
        "partition.parties": 2,
        "partition.validation": 4,
        "partition.validators": 1,
        "partition.identities_per_validator": 4,
        "weighting": {"name": "fv", "pairs": 8, "folds": 2, "smoothing": 0.5, "overlap": True},
        "federation.rounds": 3,
        "federation.workers": 2,
        "evaluation.every": 1,
        "evaluation.fars": [0.1],
        "evaluation.choose": "tar@0.1",
    },
}
"""Methods that need, or are tried with, parties of other roles: a federation of their own."""
FEDERATED = sorted(name for name, kind in METHODS.items() if not kind.pools and name != "feduda")


@pytest.fixture(scope="module")
def both(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All methods in one run, so that one job serves them: the first is the recipe's, the others are compared."""
    folder = tmp_path_factory.mktemp("methods")
    first, *others = FEDERATED
    recipe = recipe_with(folder, {"method.name": first, "compare": others})
    fv.run(recipe, out=folder / "here")
    fv.run(recipe, out=folder / "hosts", on=hosts.folder)
    return folder / "here", folder / "hosts"


def part(run: Path, name: str) -> Path:
    return run if name == FEDERATED[0] else run / "compare" / name


@pytest.mark.parametrize("name", FEDERATED)
def test_the_model_has_the_same_bits_on_hosts_as_in_process(both: tuple[Path, Path], name: str) -> None:
    here, there = (part(run, name) for run in both)
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
    assert rows(here) == rows(there), "losses, counts and the parties' own scores are the same numbers"
    assert not (there / "failures.log").exists()


@pytest.mark.parametrize("name", FEDERATED)
def test_a_party_wrote_down_what_the_server_saw_of_it(both: tuple[Path, Path], hosts: Hosts, name: str) -> None:
    run = (both[1] / "run-id").read_text() + ("" if name == FEDERATED[0] else f"-{name}")
    keys = ("round", "phase", "direction", "group", "bytes")
    for party in hosts.deployment.roles:
        own = read_ledger(hosts.deployment.party(party) / "log" / f"{run}.jsonl")
        server = read_ledger(part(both[1], name) / "ledger.jsonl")
        lines = [
            [tuple(row[key] for key in keys) for row in rows if row.get("party") == party] for rows in (own, server)
        ]
        assert sorted(lines[0]) == sorted(lines[1])
        assert lines[0]


def test_private_state_stays_on_the_partys_disk(both: tuple[Path, Path], hosts: Hosts) -> None:
    run = (both[1] / "run-id").read_text()
    assert not list(both[1].glob("**/states.sqlite"))
    for party in hosts.deployment.roles:
        assert (hosts.deployment.party(party) / "state" / run / "states.sqlite").is_file()


@pytest.mark.parametrize("name", FEDERATED)
def test_a_party_has_the_final_model_and_its_own(both: tuple[Path, Path], hosts: Hosts, name: str) -> None:
    """What the run in process wrote for a party, the host wrote for itself: its own model never left it."""
    here, there = (part(run, name) for run in both)
    run = (both[1] / "run-id").read_text() + ("" if name == FEDERATED[0] else f"-{name}")
    for party in hosts.deployment.roles:
        own, home = here / "parties" / party / "model.safetensors", hosts.deployment.party(party) / "models" / run
        model = (home / "model.safetensors").read_bytes()
        if own.exists():
            assert model == own.read_bytes()
            assert (home / "global.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
        else:
            assert model == (there / "model.safetensors").read_bytes()
        assert not (there / "parties").exists()


@pytest.fixture
def owner(both: tuple[Path, Path], hosts: Hosts) -> PartyFolder:
    """party-01, whose newest model is the one of the run in `both`."""
    party = open_party_folder(hosts.deployment.party("party-01"))
    party.use(party.models((both[1] / "run-id").read_text()))
    return party


def command(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_partys_own_model_serves_its_operator_from_the_partys_folder(owner: PartyFolder, tmp_path: Path) -> None:
    own = owner.folder / "model.safetensors"
    assert command("export", tmp_path / "own.safetensors", "--model", owner.folder)["format"] == "safetensors"
    exported, kept = fv.load_model(tmp_path / "own.safetensors"), fv.load_model(own)
    pixels = owner.faces().images.read(np.arange(3))
    assert np.array_equal(exported.embed(pixels), kept.embed(pixels))
    made = command("embed", owner.folder, "--data", owner.folder / "faces", "--out", tmp_path / "e.safetensors")
    assert made["embeddings"] == len(owner.faces())
    command("calibrate", owner.folder, "--data", owner.folder / "public", "--name", "public")
    assert calibration_of(owner.folder).faces == "public", "which `verify` and `identify` take from the same folder"


def test_its_operator_enrols_and_identifies_with_the_partys_own_model(
    both: tuple[Path, Path], owner: PartyFolder, tmp_path: Path
) -> None:
    """With drawn people; `test_recognition.py` does it with photos. The branch's layer is part of what is compared."""
    owner.use(owner.models(f"{(both[1] / 'run-id').read_text()}-fedfr"))
    command("calibrate", owner.folder, "--data", owner.folder / "public")
    drawn = SyntheticFaces(3, 6, 2, 144, "daylight").read(np.arange(2))
    for name, face in zip(("enrolled", "asked"), drawn, strict=True):
        Image.fromarray(np.pad(face, ((80, 80), (90, 90), (0, 0)), constant_values=120)).save(tmp_path / f"{name}.png")
    gallery = ("--model", owner.folder, "--gallery", tmp_path / "gallery")
    assert command("enrol", "Ada", tmp_path / "enrolled.png", *gallery)["people"] == 1
    [face] = command("identify", tmp_path / "asked.png", *gallery, "--fmr", "0.1")["faces"]
    detector, scores = Detector(MODEL_FILES["dlib-5-points"].path), {}
    for name in ("model", "global"):
        model = fv.load_model(owner.newest() / f"{name}.safetensors")
        photos = [read_photo(tmp_path / f"{photo}.png") for photo in ("enrolled", "asked")]
        one, other = model.embed(np.stack([aligned(p, detector.find(p)[0], 32) for p in photos]), normalise=True)
        scores[name] = float(one @ other)
    assert face["nearest"] == "Ada"
    assert face["score"] == pytest.approx(scores["model"], abs=1e-5)
    assert abs(scores["global"] - scores["model"]) > 1e-4
    assert face["name"] == ("Ada" if face["score"] > calibration_of(owner.folder).at(0.1) else None)


def test_the_impostors_of_a_hosts_personal_evaluation_are_public_faces(owner: PartyFolder, tmp_path: Path) -> None:
    """Two of the four images of each of the party's three people are held out; three public people have four each."""
    party = tmp_path / "party"
    for name in ("faces", "public", "models"):
        shutil.copytree(owner.folder / name, party / name)
    shutil.copy2(owner.folder / "party.toml", party)
    labels = owner.faces().labels
    held_out = [int(image) for person in range(3) for image in np.flatnonzero(labels == person)[:2]]
    train = sorted(set(range(12)) - set(held_out))
    (party / "split.json").write_text(json.dumps({"train": train, "held_out": held_out}))
    there = open_party_folder(party)
    there.use(there.models(owner.newest().name))
    [row] = command("evaluate", party, "--protocol", "personal", "--far", 0.1, "--fpir", 0.1)["results"]
    counts = row["counts"]
    assert (counts["genuine"], counts["impostor_local"], counts["impostor_others"]) == (3, 3 * 2 * 2, 6 * 12)
    assert any("impostors are the party's public faces" in note for note in row["notes"])
    assert any("1 of 1 parties have a model of their own" in note for note in row["notes"])


def test_a_party_that_has_no_model_yet_says_so(tmp_path: Path, owner: PartyFolder) -> None:
    (tmp_path / "party.toml").write_bytes((owner.folder / "party.toml").read_bytes())
    with pytest.raises(FedVisageError, match="no model yet: a run gives one when it has finished"):
        open_party_folder(tmp_path).recipe()


@pytest.mark.parametrize("name", sorted(ROLES))
def test_sources_targets_and_validators_are_hosts_like_any_other(name: str, tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, {"method.name": name, "federation.evaluate_every": 0, **ROLES[name]})
    here, there = tmp_path / "here", tmp_path / "there"
    fv.run(recipe, out=here)
    with started(tmp_path, recipe) as hosts:
        assert len(hosts.deployment.roles) == 3
        assert len(set(hosts.deployment.roles.values())) == 2
        meeting = let_meet(hosts) if recipe.weighting.get("overlap") else []
        fv.run(recipe, out=there, on=hosts.folder)
        assert all((hosts.deployment.party(party) / "at-work").exists() for party in meeting)
        if meeting:
            killed = tmp_path / "killed"
            for party, task in zip(meeting, OVERLAPPED, strict=True):
                hosts.faults(party, {task: "kill"})
            fv.run(recipe, out=killed, on=hosts.folder)
            assert "the job was lost" in (killed / "failures.log").read_text()
            assert models(here) == models(killed)
            assert rows(here) == rows(killed)
    assert models(here) == models(there)
    assert (f"{CHOSEN}/model.safetensors" in models(here)) == bool(recipe.evaluation.choose)
    assert rows(here) == rows(there)
    assert not (there / "failures.log").exists()


def models(run: Path) -> dict[str, bytes]:
    """The last round's model, and that of the round which was chosen."""
    return {str(path.relative_to(run)): path.read_bytes() for path in run.glob("**/model.safetensors")}


OVERLAPPED = ("train 2", "validate 1")
"""What a trainer and a validator do at the same time where the search overlaps with training."""


def let_meet(hosts: Hosts) -> list[str]:
    """A trainer of the second round and a validator of the first go on only once both are at work."""
    roles = hosts.deployment.roles
    pair = [min(party for party in roles if roles[party] == role) for role in ("trainer", "validator")]
    for party, other, task in zip(pair, reversed(pair), OVERLAPPED, strict=True):
        hosts.faults(party, {task: f"meet {other}"})
    return pair
