"""FedAvg and its kin against loops written by hand with torch alone, over the same random streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import (
    EMBEDDING,
    FACES,
    PARTITION,
    WORK,
    Ran,
    close,
    faces_of,
    federate,
    get,
    mean,
    network,
    put,
    random_head,
    work_locally,
)

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Joined
from fedvisage.core.parcel import BACKBONE, BUFFERS, PRIVATE_EMBEDDINGS
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import Faces
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.faces.shares import POOLED
from fedvisage.methods import EvaluateAtParties
from fedvisage.methods.alone import Alone
from fedvisage.methods.central import Central
from fedvisage.methods.fedavg import FedAvg, FedPE
from fedvisage.methods.fedprox import FedProx, proximal
from fedvisage.methods.weightings import BySamples, Equal
from fedvisage.privacy import read_ledger
from fedvisage.training.views import Mixture, Part

SAMPLES = {"ann": 5, "bob": 12}
CLASSES = {"ann": 2, "bob": 3}


def by_hand(ran: Ran, rounds: int, weights: dict[str, float] = SAMPLES, **options: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[assignment]
    """Two parties, one after the other, and their mean."""
    backbone, buffers = ran.start[BACKBONE], ran.start[BUFFERS]
    heads = {name: random_head(name, CLASSES[name]) for name in SAMPLES}
    model = network()
    for round in range(1, rounds + 1):
        answers = []
        for name in SAMPLES:
            put(model, backbone)
            put(model, buffers)
            heads[name] = work_locally(model, heads[name], faces_of(name), name, round, **options)
            answers.append(get(model, [*backbone, *buffers]))
        averaged = mean(answers, list(weights.values()))
        backbone = {name: averaged[name] for name in backbone}
        buffers = {name: averaged[name] for name in buffers}
    return {BACKBONE: backbone, BUFFERS: buffers}, heads


def test_fedavg_with_private_embeddings_equals_a_loop_by_hand(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedPE(training=WORK, rounds=2))
    wanted, heads = by_hand(ran, 2)
    assert close(ran.server[BACKBONE], wanted[BACKBONE], 1e-5)
    assert close(ran.server[BUFFERS], wanted[BUFFERS], 1e-5)
    for name, head in heads.items():
        assert torch.allclose(ran.party(name)["class_embeddings"], head, atol=1e-5)
    assert {name: (j.samples, j.classes) for name, j in ran.book.joined.items()} == {"ann": (5, 2), "bob": (12, 3)}


def test_equal_weighting_counts_every_party_the_same(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedPE(training=WORK, rounds=1), rounds=1, weighting="equal")
    wanted, _ = by_hand(ran, 1, weights={"ann": 1.0, "bob": 1.0})
    assert close(ran.server[BACKBONE], wanted[BACKBONE], 1e-5)


def test_a_shared_classifier_trains_each_partys_own_rows_and_is_averaged(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedAvg(training=WORK, rounds=1, classifier="shared"), rounds=1)
    everybody = torch.randn(5, EMBEDDING, generator=Streams(1, "server").torch("class embeddings")) * 0.1
    model, answers = network(), []
    for name, offset in (("ann", 0), ("bob", 2)):
        put(model, ran.start[BACKBONE])
        put(model, ran.start[BUFFERS])
        head = work_locally(model, everybody, faces_of(name), name, 1, offset)
        answers.append({**get(model, list(ran.start[BACKBONE])), "head": head})
    wanted = mean(answers, [5, 12])
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["all"], wanted.pop("head"), atol=1e-5)
    assert close(ran.server[BACKBONE], wanted, 1e-5)
    assert ran.server["offsets"] == {"ann": 0, "bob": 2}


def test_the_mean_start_is_each_persons_mean_embedding_at_unit_length(tmp_path: Path) -> None:
    ran = federate(
        tmp_path, FedPE(training=WORK.model_copy(update={"learning_rate": 1e-20}), embeddings_start="mean"), rounds=1
    )
    model = network()
    for name in SAMPLES:
        faces = faces_of(name)
        assert faces.labels is not None
        head = ran.party(name)["class_embeddings"]
        for person in range(faces.classes):
            images = [faces.read(np.array([i])) for i in np.flatnonzero(faces.labels == person)]
            vectors = [model.embed(image, flip=False)[0].astype(np.float64) for image in images]
            slow = np.mean(vectors, axis=0)
            assert np.allclose(head[person].numpy(), slow / np.linalg.norm(slow), atol=1e-4)


def test_the_start_model_goes_down_at_joining_only_for_the_mean_start(tmp_path: Path) -> None:
    for start, groups in (("mean", {BACKBONE, BUFFERS}), ("random", {"statistics"})):
        ran = federate(tmp_path / start, FedPE(training=WORK, embeddings_start=start), rounds=1)
        rows = [row for row in read_ledger(ran.folder / "ledger.jsonl") if row.get("phase") == "join"]
        assert {row["group"] for row in rows if row["direction"] == "down"} == groups


def test_fedprox_equals_autograd_of_the_squared_distance(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedProx(training=WORK, rounds=1, mu=0.7), rounds=1)
    wanted, _ = by_hand(ran, 1, anchor=0.7)
    assert close(ran.server[BACKBONE], wanted[BACKBONE], 1e-5)
    plain, _ = by_hand(ran, 1)
    assert not close(ran.server[BACKBONE], plain[BACKBONE], 1e-5)


def test_the_proximal_gradient_is_that_of_half_mu_times_the_squared_norm() -> None:
    anchor = {"a": torch.randn(3), "b": torch.randn(2, 2)}
    parameters = {name: torch.randn_like(value).requires_grad_() for name, value in anchor.items()}
    parameters["head"] = torch.randn(4).requires_grad_()
    sum(0.3 / 2 * (parameters[n] - anchor[n]).square().sum() for n in anchor).backward()  # type: ignore[union-attr]
    wanted = {name: parameters[name].grad.clone() for name in anchor}  # type: ignore[union-attr]
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        proximal(anchor, 0.3)(parameters)
    assert all(torch.allclose(parameters[name].grad, wanted[name]) for name in anchor)
    assert parameters["head"].grad.abs().sum() == 0  # type: ignore[union-attr]


def test_fedprox_without_mu_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    one = federate(tmp_path / "prox", FedProx(training=WORK, mu=0.0), rounds=1)
    other = federate(tmp_path / "avg", FedAvg(training=WORK), rounds=1)
    assert all(torch.equal(one.server[BACKBONE][name], value) for name, value in other.server[BACKBONE].items())


def test_alone_each_party_equals_training_by_itself_and_no_tensor_leaves(tmp_path: Path) -> None:
    ran = federate(tmp_path, Alone(training=WORK, rounds=2), rounds=2)
    for name in SAMPLES:
        model, head = network(), random_head(name, CLASSES[name])
        for round in (1, 2):
            head = work_locally(model, head, faces_of(name), name, round)
        own = Alone(training=WORK).personal(ran.party(name))
        assert own is not None
        assert close(dict(own), get(model, list(own)), 1e-5)
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "direction" in row]
    assert {row["group"] for row in rows if row["direction"] == "up"} == {"statistics"}
    assert {row["group"] for row in rows if row["phase"] == "train"} == {"statistics"}
    assert all(torch.equal(ran.server[BACKBONE][name], value) for name, value in ran.start[BACKBONE].items())


def test_central_equals_training_directly_on_all_images(tmp_path: Path) -> None:
    pooled = PARTITION.pooled()
    ran = federate(tmp_path, Central(training=WORK, rounds=2), partition=pooled)
    faces = faces_of(POOLED, pooled)
    assert (len(faces), faces.classes) == (17, 5)
    model, head = network(), random_head(POOLED, 5)
    for round in (1, 2):
        head = work_locally(model, head, faces, POOLED, round)
    assert close(ran.server[BACKBONE], get(model, list(ran.server[BACKBONE])), 1e-5)
    assert close(ran.server[BUFFERS], get(model, list(ran.server[BUFFERS])), 1e-5)


def test_central_may_pool_the_public_people_too(tmp_path: Path) -> None:
    """Persons a and b are public; their class embeddings follow those of the parties' people."""
    shares = {"bob": Share("trainer", tuple(range(8, 20)))}
    pooled = Partition(tuple(range(8)), (), shares).pooled()
    ran = federate(tmp_path, Central(training=WORK, rounds=1, public="all"), partition=pooled, rounds=1)
    own, public = faces_of(POOLED, pooled), Faces(FACES, pooled.public)
    parts = [Part(own, np.arange(12), own.labels), Part(public, np.arange(8), 3 + public.labels)]
    second = torch.randn(2, 128, generator=Streams(1, "parties", 0, POOLED, "public").torch("class embeddings")) * 0.1
    model, head = network(), torch.cat([random_head(POOLED, 3), second])
    work_locally(model, head, Mixture(parts, 5), POOLED, 1)  # type: ignore[arg-type]
    assert close(ran.server[BACKBONE], get(model, list(ran.server[BACKBONE])), 1e-5)
    with pytest.raises(FedVisageError, match="needs public people"):
        federate(tmp_path / "none", Central(training=WORK, public="all"), partition=PARTITION.pooled())


def test_kept_momentum_is_private_and_makes_a_difference(tmp_path: Path) -> None:
    keep = WORK.model_copy(update={"optimiser_state": "keep"})
    kept = federate(tmp_path / "keep", FedPE(training=keep, rounds=2))
    reset = federate(tmp_path / "reset", FedPE(training=WORK, rounds=2))
    assert not close(kept.server[BACKBONE], reset.server[BACKBONE], 1e-6)
    assert "class_embeddings" in kept.party("ann")["optimiser"]
    assert "optimiser" not in reset.party("ann")
    groups = {row["group"] for row in read_ledger(tmp_path / "keep" / "ledger.jsonl")}
    assert groups == {BACKBONE, BUFFERS, "statistics"}


def slow_rank_one(model: Any, own: Any) -> float:
    right = 0
    gallery = []
    for person in range(own.train.classes):
        images = own.train.read(np.flatnonzero(own.train.labels == person))
        vector = model.embed(images, normalise=True).sum(axis=0)
        gallery.append(vector / np.linalg.norm(vector))
    for index in range(len(own.held_out)):
        probe = model.embed(own.held_out.read(np.array([index])), normalise=True)[0]
        right += int(np.argmax([probe @ mean_vector for mean_vector in gallery]) == own.held_out.labels[index])
    return right / len(own.held_out)


def test_parties_score_the_global_and_their_local_model_and_send_numbers_only(tmp_path: Path) -> None:
    method = FedPE(training=WORK, rounds=1)
    ran = federate(tmp_path, method, rounds=1, others=[EvaluateAtParties(method=method)], keep_local=True)
    row = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][-1]
    assert row["phase"] == "evaluate"
    assert row["parties"]["bob"] == {}, "nothing is held out at bob's"
    own = party_faces(FACES, PARTITION, "ann")[1]
    model = network()
    put(model, ran.server[BACKBONE])
    put(model, ran.server[BUFFERS])
    assert row["parties"]["ann"]["global_rank1"] == pytest.approx(slow_rank_one(model, own))
    put(model, ran.party("ann")["local_model"])
    assert row["parties"]["ann"]["local_rank1"] == pytest.approx(slow_rank_one(model, own))
    ups = {
        r["group"]
        for r in read_ledger(tmp_path / "ledger.jsonl")
        if r.get("phase") == "evaluate" and r["direction"] == "up"
    }
    assert ups == {"statistics"}


def test_weights_by_samples_and_equal() -> None:
    joined = Joined("trainer", 7, 2)
    assert BySamples().weight({}, "ann", joined, {}) == 7.0
    assert Equal().weight({}, "ann", joined, {}) == 1.0


def test_a_party_cannot_raise_its_weight_by_what_it_reports() -> None:
    assert BySamples().weight({}, "ann", Joined("trainer", 7, 2), {"samples": 1e9}) == 7.0


def test_answers_do_not_share_memory_with_what_went_down(tmp_path: Path) -> None:
    ran = federate(tmp_path, FedPE(training=WORK), rounds=1)
    fresh = network()
    assert all(torch.equal(value, get(fresh, [name])[name]) for name, value in ran.start[BACKBONE].items())


def test_the_length_of_random_class_embeddings_is_a_setting_and_their_direction_is_not() -> None:
    usual = FedAvg().random_embeddings(300, 64, Streams(1))
    short = FedAvg(embeddings_deviation=0.01).random_embeddings(300, 64, Streams(1))
    assert usual.std().item() == pytest.approx(0.1, rel=0.02)
    torch.testing.assert_close(short, usual / 10)
