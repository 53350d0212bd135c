"""A run over two domains: scores of each domain by themselves, and its pseudo-labels against the true people."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedvisage as fv
from fedvisage.clustering import bcubed_f, c_finch, pairwise_f
from fedvisage.config import Faces as FacesSettings
from fedvisage.core.codec import load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import all_pairs_verification
from fedvisage.faces.faceset import Faces, FaceSet
from fedvisage.faces.opening import open_source
from fedvisage.faces.partition import Partition
from fedvisage.models import load_model
from fedvisage.protocols import Data, Options, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.training import embed_images

SETTINGS = FacesSettings(domain=("daylight", "infrared"), identities=52, images_per_identity=4, size=32)
SOURCE = {"role": "source", "domain": "daylight", "identities_per_party": 4}
TARGET = {"role": "target", "domain": "infrared", "parties": 2, "identities_per_party": 3}
DISTANCE = 0.7
RECIPE = {
    "faces.domain": SETTINGS.domain,
    "faces.identities": SETTINGS.identities,
    "faces.images_per_identity": SETTINGS.images_per_identity,
    "faces.size": SETTINGS.size,
    "partition": {
        "test": [{"domain": "daylight", "count": 20}, {"domain": "infrared", "count": 8}],
        "groups": {"source": SOURCE, "target": TARGET},
    },
    "method": {"name": "feduda", "distance": DISTANCE},
    "pretrain.epochs": 0,
    "federation": {"rounds": 1, "workers": 1},
    "compare": [],
    "evaluation": {"pairs": 40, "fars": [0.1], "every": 1},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "domains"
    fv.run(fv.load_recipe("smoke", RECIPE), out=folder)
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> FaceSet:
    return open_source(SETTINGS, tmp_path_factory.mktemp("faces"))


def test_every_domain_of_the_test_is_scored_by_itself(finished: Path, faces: FaceSet) -> None:
    scores = json.loads((finished / "evaluation.json").read_text())["models"]["feduda"]
    test = np.array(Partition.load(finished / "partition.json").test)
    embeddings = embed_images(load_model(finished / "model.safetensors"), Faces(faces, test), normalise=True)
    assert faces.domain is not None
    for number, name in enumerate(SETTINGS.domain):
        here = faces.domain[test] == number
        own, people = embeddings[here], faces.labels[test][here]
        rate = float(all_pairs_verification(own, people, (0.1,)).rates[0])
        assert scores["domains"][name]["tar"]["0.1"] == pytest.approx(rate, abs=1e-6)
        assert 1 / len(np.unique(people)) <= scores["domains"][name]["rank-1"] <= 1
    assert 0 <= scores["domains"]["daylight"]["accuracy"] <= 1
    assert "accuracy" not in scores["domains"]["infrared"], "8 people are too few for ten folds"


def test_the_learning_curves_have_each_domain(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["phase"] == "test"]
    assert {"tar@0.1", "daylight tar@0.1", "infrared tar@0.1", "infrared rank-1", "daylight accuracy"} <= row.keys()


def test_pseudo_labels_are_scored_over_all_targets(finished: Path, faces: FaceSet) -> None:
    result = evaluate("pseudo-labels", Data(finished), open_subject(str(finished)))
    partition = Partition.load(finished / "partition.json")
    truth: list[int] = []
    found: list[str] = []
    model, begin = load_model(finished / "model.safetensors"), load_state(finished / "start.safetensors")
    model.load_state_dict({**model.state_dict(), **begin["backbone"], **begin["buffers"]})
    for name in ("target-00", "target-01"):
        images = np.array(partition.parties[name].train)
        labels = c_finch(embed_images(model, Faces(faces, images)), DISTANCE)
        truth += faces.labels[images].tolist()
        found += [f"{name} {label}" for label in labels]
    assert result.metrics["pairwise F"] == pytest.approx(pairwise_f(truth, found), abs=1e-9)
    assert result.metrics["BCubed F"] == pytest.approx(bcubed_f(truth, found), abs=1e-9)
    assert result.counts["clusters"] == len(set(found))
    assert (result.counts["images"], result.counts["people"], result.counts["parties"]) == (24, 6, 2)


def test_a_run_without_targets_has_no_pseudo_labels(tmp_path: Path) -> None:
    partition = {"test": 0, "parties": 2, "identities_per_party": 3}
    changes = RECIPE | {"method": {"name": "fedavg"}, "partition": partition, "evaluation.pairs": 0}
    fv.run(fv.load_recipe("smoke", changes), out=tmp_path / "run")
    result = evaluate("pseudo-labels", Data(tmp_path / "run"), open_subject(str(tmp_path / "run")))
    assert np.isnan(result.metrics["pairwise F"])
    assert result.notes == ["no party of this run has pseudo-labels: only the targets of 'feduda' make some"]
    with pytest.raises(FedVisageError, match="needs a run's folder"):
        evaluate("pseudo-labels", Data(tmp_path), open_subject(str(tmp_path / "run" / "model.safetensors")))


def test_own_statistics_scores_each_domain_with_the_statistics_of_its_own_trainers(
    finished: Path, faces: FaceSet
) -> None:
    subject = open_subject(str(finished))
    before = {name: value.clone() for name, value in subject.model.named_buffers()}
    found = evaluate("own-statistics", Data(finished), subject)
    partition, domains = Partition.load(finished / "partition.json"), np.array(faces.domains)[faces.domain]
    expected = {}
    for domain in SETTINGS.domain:
        model = load_model(finished / "model.safetensors").train()
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
                layer.reset_running_stats()
                layer.momentum = None  # PyTorch's own cumulative average
        own = [i for share in partition.parties.values() for i in share.train if domains[i] == domain]
        with torch.no_grad():
            model(model.preprocess(Faces(faces, np.array(own)).read(np.arange(len(own)))))
        test = Faces(faces, np.array([i for i in partition.test if domains[i] == domain]))
        embeddings = embed_images(model.eval(), test, flip=True, normalise=True)
        assert test.labels is not None
        expected[f"{domain} TAR@0.1"] = all_pairs_verification(embeddings, test.labels, (0.1,)).rates[0].value
    assert found.metrics == {**expected, "mean TAR@0.1": np.mean(list(expected.values()))}
    assert found.counts["daylight images for statistics"] <= 64  # one batch, so that the reference needs no second
    assert all(torch.equal(value, before[name]) for name, value in subject.model.named_buffers())
    assert all(not module.training for module in subject.model.modules())


def test_own_statistics_says_what_each_person_does(finished: Path, faces: FaceSet) -> None:
    """People of one domain move its rate and a share of the mean; everybody twice as often would move nothing."""
    found = evaluate("own-statistics", Data(finished), open_subject(str(finished)), Options(influence=True))
    test = np.array(Partition.load(finished / "partition.json").test)
    assert faces.domain is not None
    parts = []
    for number, name in enumerate(SETTINGS.domain):
        moved = found.influence[f"{name} TAR@0.1"]
        inside = np.isin(np.arange(len(faces.names)), faces.labels[test][faces.domain[test] == number])
        assert np.abs(moved[inside]).max() > 0
        assert not moved[~inside].any()
        assert abs(moved.sum()) < 1e-9
        parts.append(moved)
    np.testing.assert_allclose(found.influence["mean TAR@0.1"], np.mean(parts, axis=0))
    assert found.people == tuple(faces.names)


def test_own_statistics_needs_several_domains(tmp_path: Path) -> None:
    fv.run(fv.load_recipe("smoke", {"federation.rounds": 1, "compare": []}), out=tmp_path / "run")
    with pytest.raises(FedVisageError, match="compares domains"):
        evaluate("own-statistics", Data(tmp_path / "run"), open_subject(str(tmp_path / "run")))
