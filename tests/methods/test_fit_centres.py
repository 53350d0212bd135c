"""The trained model's centres are means over training people, from sums that small parties withhold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvisage as fv
from fedvisage.build import build_parts, open_faces, resolve
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Party
from fedvisage.core.parcel import CENTRES, Parcel
from fedvisage.core.sealing import Answer
from fedvisage.faces.faceset import Faces
from fedvisage.methods import FitCentres
from fedvisage.models import Backbone, load_model
from fedvisage.planning import make_plan
from fedvisage.privacy import Policy, declared_groups, read_ledger

SIZE = 128
CHANGES: dict[str, Any] = {
    "faces.identities": 80,
    "faces.images_per_identity": 3,
    "faces.domain": ["daylight", "lamplight"],
    "partition.public": 0,
    "partition.test": 10,
    "partition.validation": 8,
    "partition.held_out": 0.34,
    "partition.groups": {
        "sun": {"domain": "daylight", "parties": 1, "identities_per_party": 22},
        "lamp": {"domain": "lamplight", "parties": 1, "identities_per_party": 20},
        "few": {"parties": 2, "identities_per_party": 4},
    },
    "pretrain.epochs": 0,
    "federation.rounds": 1,
    "federation.workers": 1,
    "compare": ["central", "alone"],
    "evaluation.pairs": 0,
    "evaluation.fars": [0.1],
    "centre.groups": ["all", "lamp", "few", "sun-00"],
}


def recipe(**changes: Any) -> Any:
    return fv.load_recipe("smoke", CHANGES | {name.replace("__", "."): value for name, value in changes.items()})


@pytest.fixture(scope="module")
def sent() -> dict[str, tuple[tuple[str, ...], dict[str, torch.Tensor]]]:
    """By party: whose images it embedded for its sums, and the sums."""
    return {}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, sent: dict[str, Any]) -> Path:
    folder, answer = tmp_path_factory.mktemp("runs") / "run", FitCentres.centre

    def noted(self: FitCentres, party: Party, parcel: Parcel) -> Answer:
        found = answer(self, party, parcel)
        sent[party.name] = party.faces.train.names, found[CENTRES]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitCentres, "centre", noted)
        fv.run(recipe(), out=folder)
    return folder


def pooled(model: Backbone, folder: Path, shares: list[dict[str, Any]]) -> np.ndarray:
    """The mean over the shares' people of their mean unit embeddings, with all training images in one place."""
    whole = open_faces(recipe(), folder / "faces")
    faces = Faces(whole, [image for share in shares for image in share["train"]])
    unit = model.embed(faces.read(np.arange(len(faces))), normalise=True).astype(np.float64)
    assert faces.labels is not None
    return np.mean([unit[faces.labels == person].mean(axis=0) for person in range(faces.classes)], axis=0)


def test_a_centre_is_the_pooled_mean_over_training_people(ran: Path) -> None:
    model, partition = load_model(ran / "model.safetensors"), json.loads((ran / "partition.json").read_text())
    assert {name: one.people for name, one in model.centres.items()} == {"all": 42, "lamp": 20, "sun-00": 22}
    for name, parties in {"all": ["sun-00", "lamp-00"], "lamp": ["lamp-00"], "sun-00": ["sun-00"]}.items():
        expected = pooled(model, ran, [partition["parties"][party] for party in parties])
        np.testing.assert_allclose(model.centres[name].vector.numpy(), expected, atol=1e-6)


def test_nobody_who_is_tested_on_is_in_a_centre(ran: Path, sent: dict[str, Any]) -> None:
    partition = json.loads((ran / "partition.json").read_text())
    others = {name for part in ("test", "validation", "public") for name in partition[part]["identities"]}
    assert len(others) == 18
    assert set(sent) == {*partition["parties"], "pooled"}
    for party, share in partition["parties"].items():
        names, sums = sent[party]
        assert set(names) == set(share["identities"])
        assert not set(names) & others
        assert float(sums["all"][-1]) in (0, len(names))
    assert not set(sent["pooled"][0]) & others


def test_a_party_of_few_people_sends_zeros_and_the_run_says_so(ran: Path, sent: dict[str, Any]) -> None:
    for party in ("few-00", "few-01"):
        assert all(not total.any() for total in sent[party][1].values())
    assert not sent["lamp-00"][1]["sun-00"].any(), "nor does anybody for a group of others"
    said = (ran / "failures.log").read_text()
    assert "the centre 'all' is without few-00, few-01: with fewer than 20 labelled people" in said
    assert "the model has no centre 'few': no party gave a sum for it" in said
    assert "'lamp'" not in said
    rows = [json.loads(line) for line in (ran / "metrics.jsonl").read_text().splitlines()]
    [row] = [row for row in rows if row["phase"] == "centre"]
    assert (row["people of centre all"], row["people of centre lamp"]) == (42, 20)


def test_a_pooled_model_has_centres_by_domain_and_parties_own_models_have_none(ran: Path) -> None:
    model = load_model(ran / "compare" / "central" / "model.safetensors")
    parties = json.loads((ran / "partition.json").read_text())["parties"].values()
    names = {name for share in parties for name in share["identities"]}
    lamp = {name for name in names if name.startswith("lamplight/")}
    assert {name: one.people for name, one in model.centres.items()} == {"all": len(names), "lamp": len(lamp)}
    assert not load_model(ran / "compare" / "alone" / "parties" / "sun-00" / "model.safetensors").centres


def test_the_sums_are_in_the_ledger_the_privacy_table_the_policy_and_the_plan(ran: Path) -> None:
    rows = [row for row in read_ledger(ran / "ledger.jsonl") if row.get("group") == CENTRES and "party" in row]
    assert {(row["phase"], row["direction"], row["bytes"]) for row in rows} == {("centre", "up", 4 * (SIZE + 1) * 8)}
    assert len(rows) == 4
    parts = build_parts(recipe()).components
    assert declared_groups(parts)["centre"]["up"] == {CENTRES: "mean"}
    assert Policy().objections("fedavg", parts, 1) == ["centres may not leave, and phase 'centre' sends it"]
    assert not Policy(groups=(*Policy().groups, CENTRES)).objections("fedavg", parts, 1)
    [planned] = [row for row in make_plan(resolve(recipe()))["wire"] if row["group"] == CENTRES]
    assert planned["bytes"] == rows[0]["bytes"]


def test_workers_give_the_same_bits_and_without_the_key_there_is_no_centre(ran: Path, tmp_path: Path) -> None:
    fv.run(recipe(federation__workers=2, compare=[]), out=tmp_path / "workers")
    assert (tmp_path / "workers" / "model.safetensors").read_bytes() == (ran / "model.safetensors").read_bytes()
    fv.run(recipe(centre__groups=[], compare=[]), out=tmp_path / "none")
    without = load_model(tmp_path / "none" / "model.safetensors")
    assert not without.centres
    trained = load_model(ran / "model.safetensors").state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in without.state_dict().items())
    assert CENTRES not in {row.get("group") for row in read_ledger(tmp_path / "none" / "ledger.jsonl")}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"centre__groups": ["lmap"]}, "no party belongs to 'lmap': did you mean 'lamp'"),
        ({"centre__groups": ["pairs"]}, "no centre can be called 'pairs'"),
        ({"method__name": "alone", "compare": []}, "'alone' has no global model to fit a centre to"),
        ({"federation__batchnorm": "local", "partition__test": 0, "partition__validation": 0}, "leaves no generic"),
        ({"aggregation__name": "median"}, "needs plain sums: aggregation 'median' breaks them"),
    ],
)
def test_a_centre_that_cannot_be_is_refused_before_the_run(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=says):
        fv.run(recipe(**changes), out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
