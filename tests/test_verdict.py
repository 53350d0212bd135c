"""The answer of a run: which variant counts, what the control is, and what is said of numbers that mislead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedvisage as fv
from fedvisage.core.phase import TARGET, TRAINER, VALIDATOR
from fedvisage.evaluation.influence import packed, unpacked
from fedvisage.faces.faceset import Faces
from fedvisage.faces.opening import synthetic_faces
from fedvisage.faces.shares import Share
from fedvisage.models import create_backbone
from fedvisage.training import embed_images
from fedvisage.verdict import EVERYBODY, chosen_variant, run_answer, training_centres, warnings

PEOPLE = 100
GENERATOR = torch.Generator().manual_seed(1)


def model(raw, centred=None, validation=None, impostor=0.2, accuracy=0.9, influence=None, **more):
    """A scored model as `evaluation.json` keeps it."""
    test = {"raw": raw} | ({} if centred is None else {"centred": centred})
    moved = packed(np.zeros(PEOPLE) if influence is None else influence)
    people = {"test": test, "validation": validation or {}, "influence": dict.fromkeys(test, moved)}
    return {"accuracy": accuracy, "tar": {}, "people": people | {"spread": {"impostor": impostor, "rank": 20.0}}} | more


SWINGS = np.tile([0.001, -0.001], PEOPLE // 2)


def said(scores, method="fedavg", rule="exact"):
    return warnings(scores, method, run_answer(scores, method, True), rule)


def test_validation_people_choose_the_variant_and_the_control_with_it():
    scores = {
        "start": model(0.70, 0.80, {"raw": 0.6, "centred": 0.7}),
        "fedavg": model(0.82, 0.75, {"raw": 0.8, "centred": 0.7}, influence=SWINGS),
        "central": model(0.90, 0.91, {"raw": 0.8, "centred": 0.9}),
    }
    found = run_answer(scores, "fedavg", True)
    assert found["variants"] == {"start": "centred", "fedavg": "raw", "central": "centred"}
    assert found["gain"]["value"] == pytest.approx(0.02)  # not the 0.12 over the raw start
    assert found["gap"]["value"] == pytest.approx(0.11)
    assert "than the start centred on the training people" in found["sentence"]


def test_test_people_choose_nothing():
    scores = {"start": model(0.70, 0.80), "fedavg": model(0.75, 0.70, influence=SWINGS)}
    assert chosen_variant(scores["start"]["people"]) == "raw"
    assert any("Centred on the training people" in warning and "80.0%" in warning for warning in said(scores))


def test_the_control_of_a_start_that_nobody_trained_is_a_party_alone():
    scores = {"start": model(0.02), "alone": model(0.3), "fedavg": model(0.4, influence=SWINGS)}
    assert run_answer(scores, "fedavg", False)["control"] == "alone"
    assert run_answer(scores, "fedavg", True)["control"] == "start"
    assert run_answer({"alone": model(0.3)}, "alone", False) is None


def test_the_sentence_says_what_the_interval_allows():
    start = model(0.40)
    better = {"start": start, "fedavg": model(0.50, influence=SWINGS), "central": model(0.60)}
    helps = run_answer(better, "fedavg", True)
    # the standard error is 0.01 * sqrt(100 / 99); the share's interval is that of the gain over the gap of 0.2
    assert helps["sentence"].startswith("Federating helps: fedavg accepts 50.0% of genuine pairs")
    assert "10.0 points (95% interval 8." in helps["sentence"]
    assert "That is 50% (4" in helps["sentence"]
    hurts = run_answer({"start": start, "fedavg": model(0.30, influence=SWINGS)}, "fedavg", True)
    assert hurts["sentence"].startswith("Federating hurts: fedavg accepts 30.0%")
    assert "10.0 points (95% interval 8." in hurts["sentence"]
    assert "less than the start" in hurts["sentence"]
    unsure = run_answer({"start": start, "fedavg": model(0.41, influence=SWINGS)}, "fedavg", True)
    assert unsure["sentence"].startswith("Cannot tell from 100 people whether federating helps")
    assert unsure["sentence"].endswith("people would do.")


def test_what_misleads_is_said():
    fine = {"start": model(0.40), "fedavg": model(0.50, influence=SWINGS)}
    assert said(fine) == []
    together = fine | {"fedavg": model(0.50, impostor=0.996)}
    assert said(together) == [
        "The embeddings of fedavg have drawn together: two people have a mean cosine of 0.996, 0.200 at the start."
    ]
    grid = fine | {"fedavg": model(0.50, accuracy=0.553, exact_accuracy=0.988)}
    assert any("accuracy 55.3%, by an exact threshold 98.8%" in warning for warning in said(grid, rule="insightface"))
    assert any("disagree" in warning for warning in said(grid))
    below = fine | {"fedavg": model(0.30, accuracy=0.8)}
    assert said(below) == ["fedavg is below its control, the start."]
    chance = fine | {"fedavg": model(0.012, accuracy=0.8)}
    assert "The score of fedavg is at chance." in said(chance)


def test_dlibs_cone_is_no_collapse():
    scores = {"start": model(0.75, impostor=0.836), "fedavg": model(0.80, impostor=0.85, influence=SWINGS)}
    assert said(scores) == []


def test_the_centre_is_the_mean_of_the_training_peoples_means():
    whole = synthetic_faces(fv.load_recipe("smoke", {"faces.identities": 7, "faces.images_per_identity": 4}).faces)
    network = create_backbone("ir-tiny", image_size=whole.images.read(np.array([0])).shape[1], generator=GENERATOR)
    shares = [
        Share(TRAINER, (0, 1, 2, 4, 5), (3,)),  # people 0 (three images) and 1 (two)
        Share(TARGET, (8, 9, 12)),  # without labels: every image counts as somebody
        Share(VALIDATOR, (16, 17)),
    ]
    unit = embed_images(network, Faces(whole, range(28)), flip=False, normalise=True).astype(np.float64)
    people = [unit[[0, 1, 2]].mean(axis=0), unit[[4, 5]].mean(axis=0), unit[8], unit[9], unit[12]]
    assert training_centres(network, whole, shares)[EVERYBODY] == pytest.approx(np.mean(people, axis=0), abs=1e-7)


def test_each_domain_has_an_answer_and_a_centre_of_its_own(tmp_path):
    changes = {
        "faces.domain": ["daylight", "infrared"],
        "faces.identities": 40,
        "partition.test": 16,
        "evaluation.pairs": 0,
    }
    recipe = fv.load_recipe("smoke", changes | {"partition.parties": 2, "federation.rounds": 1, "compare": []})
    run = fv.run(recipe, out=tmp_path / "run")
    assert set(run.answers) == {"daylight", "infrared"}
    parts = [domain["people"] for domain in run.scores["fedavg"]["domains"].values()]
    assert [set(part["test"]) for part in parts] == [{"raw", "centred", "own domain"}] * 2
    assert sum(len(unpacked(part["influence"]["raw"])) for part in parts) == 16
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    for found in run.answers.values():
        assert found["sentence"].startswith("Cannot tell from ")
        assert found["sentence"] in page
