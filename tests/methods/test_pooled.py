"""Pooled comparators: who is pooled, what an aligned step is, and that targets' labels stay out of reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import EMBEDDING, FACES, close, federate, get, network, put, random_head
from torch import Tensor

from fedvisage.config import Training, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, Method
from fedvisage.core.parcel import BACKBONE, BUFFERS
from fedvisage.core.phase import SOURCE, TARGET
from fedvisage.core.randomness import Streams
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.losses import cosface, domain_adversarial, domain_classifier, multi_kernel_mmd, reversal_strength
from fedvisage.methods.central import Central
from fedvisage.methods.dan import DAN
from fedvisage.methods.dann import DANN
from fedvisage.pipeline import run
from fedvisage.training import batches
from fedvisage.training.views import Mixture, Part

WORK = Training(batch_size=10, learning_rate=0.02, weight_decay=1e-3)
PARTITION = Partition((), (), {"ann": Share(SOURCE, tuple(range(8))), "bob": Share(TARGET, tuple(range(8, 20)))})
"""Ann has persons a and b with labels; bob has c, d and e without."""


def pooled(method: Method, partition: Partition = PARTITION) -> Partition:
    return partition.pooled(method.pooled_roles, method.pools_without_labels)


def test_central_pools_everybody_or_one_side() -> None:
    assert pooled(Central()).parties["pooled"] == Share("trainer", tuple(range(20)))
    assert pooled(Central(of="source")).parties["pooled"] == Share("trainer", tuple(range(8)))
    assert pooled(Central(of="target")).parties["pooled"] == Share("trainer", tuple(range(8, 20)))
    with pytest.raises(FedVisageError, match="no party of this partition has images to pool: it has no target"):
        pooled(Central(of="target"), Partition((), (), {"ann": Share(SOURCE, (0, 1))}))


@pytest.mark.parametrize("name", ["dan", "dann"])
def test_a_comparator_pools_target_images_without_their_labels(name: str) -> None:
    method = METHODS[name]()
    assert method.pools, "it must be marked as breaking the constraint"
    partition = pooled(method)
    share = partition.parties["pooled"]
    assert (share.train, share.unlabelled) == (tuple(range(8)), tuple(range(8, 20)))
    faces = party_faces(FACES, partition, "pooled")[1]
    assert faces.unlabelled is not None
    assert faces.unlabelled.labels is None
    assert len(faces.unlabelled) == 12
    seen: set[int] = set()
    stack: list[Any] = [faces]
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray) and thing.shape == (20,):
            assert len(np.unique(thing[8:])) == 1, "the targets' people can be told apart"
        stack += list(getattr(thing, "__dict__", {}).values())
        stack += [getattr(thing, name) for name in getattr(thing, "__dataclass_fields__", ())]


def aligned_by_hand(method: DAN | DANN, state: dict[str, Tensor], rounds: int) -> tuple[dict[str, Tensor], Tensor]:
    faces = party_faces(FACES, pooled(method), "pooled")[1]
    assert faces.unlabelled is not None
    parts = [Part(faces.train, np.arange(8), faces.train.labels), Part(faces.unlabelled, np.arange(12), np.full(12, 2))]
    images = Mixture(parts, 3)
    model, head = network(), random_head("pooled", 2)
    generator = Streams(1, "parties", 1, "pooled").torch("domain classifier")
    domains = domain_classifier(EMBEDDING, 64, generator) if isinstance(method, DANN) else {}
    for round in range(1, rounds + 1):
        put(model, state)
        head = head.clone().requires_grad_()
        domains = {name: tensor.clone().requires_grad_() for name, tensor in domains.items()}
        parameters = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": [*parameters, head]}]
        groups += [{"params": [tensor], "lr": 0.02 * 10} for tensor in domains.values()]
        optimiser = torch.optim.SGD(groups, lr=0.02, momentum=0.9, weight_decay=1e-3)
        model.train()
        for batch in batches(images, WORK, Streams(1, "parties", round, "pooled", "train"), torch.device("cpu")):
            features = model(model.preprocess(batch.images))
            target = batch.labels == 2
            assert 0 < int(target.sum()) < len(target), "every batch must have both domains for this test"
            loss = cosface(features[~target], head, batch.labels[~target])
            if isinstance(method, DANN):
                strength = reversal_strength((round - 0.5) / rounds)
                loss = loss + method.alignment * domain_adversarial(features, target, domains, strength)
            else:
                loss = loss + method.alignment * multi_kernel_mmd(features[~target], features[target])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        head, state = head.detach(), get(model, list(state))
        domains = {name: tensor.detach() for name, tensor in domains.items()}
    return state, head


@pytest.mark.parametrize("kind", [DAN, DANN])
def test_two_rounds_equal_a_loop_by_hand(kind: type[DAN] | type[DANN], tmp_path: Path) -> None:
    method = kind(training=WORK, rounds=2, alignment=0.7)
    ran = federate(tmp_path, method, rounds=2, partition=pooled(method))
    state, head = aligned_by_hand(method, {**ran.start[BACKBONE], **ran.start[BUFFERS]}, 2)
    assert close({**ran.server[BACKBONE], **ran.server[BUFFERS]}, state, 1e-5)
    assert torch.allclose(ran.party("pooled")["class_embeddings"], head, atol=1e-5)


def test_without_alignment_the_targets_matter_for_batchnorm_only(tmp_path: Path) -> None:
    """The gradient of the class embeddings comes from the source alone: they are two, one for each of its people."""
    method = DAN(training=WORK, rounds=1, alignment=0.0)
    ran = federate(tmp_path, method, rounds=1, partition=pooled(method))
    assert ran.party("pooled")["class_embeddings"].shape == (2, EMBEDDING)


def test_a_partition_without_targets_is_refused(tmp_path: Path) -> None:
    method = DAN(training=WORK, rounds=1)
    only = pooled(method, Partition((), (), {"ann": Share(SOURCE, tuple(range(8)))}))
    with pytest.raises(FedVisageError, match="this partition has no target"):
        federate(tmp_path, method, rounds=1, partition=only)


def test_losses_of_domains_add_up_to_the_loss_and_change_nothing(tmp_path: Path) -> None:
    """Every round's loss is the mean over the domains' images, by how many of them were in its batches."""
    changes: dict[str, Any] = {
        "faces.domain": ["daylight", "webcam"],
        "faces.identities": 20,
        "faces.images_per_identity": 3,
        "faces.size": 32,
        "partition.public": 0,
        "partition.test": 0,
        "partition.parties": 2,
        "partition.identities_per_party": 10,
        "partition.held_out": 0.0,
        "pretrain.epochs": 0,
        "training.steps": 3,
        "training.epochs": None,
        "training.batch_size": 20,
        "method.name": "central",
        "federation.rounds": 2,
        "compare": [],
    }
    told = {**changes, "method.losses_of": ["daylight", "webcam"]}
    plain, apart = (
        run(load_recipe("smoke", some), out=tmp_path / name) for name, some in (("a", changes), ("b", told))
    )
    assert apart.model_path.read_bytes() == plain.model_path.read_bytes()
    lines = [json.loads(line) for line in (apart.folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [line["parties"]["pooled"] for line in lines if line["phase"] == "train"]
    assert len(rounds) == 2
    for numbers in rounds:
        day, cam = numbers["loss of daylight"], numbers["loss of webcam"]
        # sixty images in batches of twenty: three steps see each image once, thirty of either domain
        assert numbers["loss"] == pytest.approx((day + cam) / 2, rel=1e-5)
        assert abs(day - cam) > 1e-4
    public = {**told, "faces.identities": 24, "partition.public": 4, "method.public": "all"}
    lines = run(load_recipe("smoke", public), out=tmp_path / "public").folder.joinpath("metrics.jsonl").read_text()
    assert lines.count("loss of daylight") > 0, "public people are of some domain, too"
    with pytest.raises(FedVisageError, match="nobody of domain 'webcams' is trained on: did you mean 'webcam'"):
        run(load_recipe("smoke", {**changes, "method.losses_of": ["webcams"]}), out=tmp_path / "c")
