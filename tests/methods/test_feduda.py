"""Domain adaptation against a loop by hand, its stages and switches, and that target labels cannot be reached."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from small import FACES, SIZE, Ran, federate, get, mean, network, put, random_head
from torch import Tensor

from fedvisage.clustering import c_finch, in_order
from fedvisage.config import Faces as Settings
from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import ArrayImages, FaceSet, open_faceset, write_description, write_faceset
from fedvisage.faces.opening import open_source, synthetic_faces
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.faces.records import RecordWriter
from fedvisage.losses import cosface
from fedvisage.methods.fedprox import proximal
from fedvisage.methods.feduda import FedUDA, pseudo_labelled
from fedvisage.privacy import read_ledger
from fedvisage.training import batches, with_features
from fedvisage.training.optimisers import SGD, Group

WORK = Training(batch_size=8, learning_rate=0.02, weight_decay=1e-3)
PARTITION = Partition((), (), {"ann": Share("source", tuple(range(8))), "bob": Share("target", tuple(range(8, 20)))})
"""Ann has persons a and b with labels; bob has c, d and e without."""
CLOSE = 0.785
BOB = Share("target", (8, 9, 10, 12, 13, 14, 16, 17, 18, 19), (11, 15))
KINDS = ["array", "file", "records", "resized", "joined folders", "synthetic", "joined synthetic", "features"]
"""What images can be read from."""


def feduda(folder: Path, *, rounds: int = 1, partition: Partition = PARTITION, **options: Any) -> Ran:
    method = FedUDA(training=WORK, rounds=rounds, distance=CLOSE, **options)
    return federate(folder, method, rounds=rounds, partition=partition, weighting="equal")


def source_of(kind: str, folder: Path) -> FaceSet:
    """Five people with four images each, read in one way or another."""
    names = tuple(f"the secret {name}" for name in FACES.names)
    named = replace(FACES, names=names)
    home = folder / "faces"
    settings = {"identities": 5, "images_per_identity": 4, "size": SIZE}
    if kind == "synthetic":
        return synthetic_faces(Settings(**settings))
    if kind == "joined synthetic":
        return synthetic_faces(Settings(domain=("daylight", "infrared"), **settings))
    if kind == "array":
        return named
    if kind == "records":
        writer = RecordWriter(home)
        for pixels in FACES.images.read(np.arange(20)):
            writer.add(encode(pixels, "PNG"))
        writer.close()
        write_description(home, named, (SIZE, SIZE))
        return open_faceset(home)
    if kind == "joined folders":
        for name in ("one", "other"):
            part = np.arange(8) if name == "one" else np.arange(8, 20)
            write_faceset(home / name, FaceSet(ArrayImages(FACES.images.read(part)), FACES.labels[part], names))
        return open_source(Settings(source=(str(home / "one"), str(home / "other")), size=SIZE), folder)
    write_faceset(home, named)
    if kind == "resized":
        return open_source(Settings(source=str(home), size=24, resize=True), folder)
    faces = open_faceset(home)
    if kind == "features":
        return with_features(network().train_from("layer4"), faces, np.arange(20), folder / "cache")
    return faces


def reachable(start: Any) -> list[Any]:
    """Everything that an object refers to, however indirectly; not what its classes and functions are defined among."""
    found: dict[int, Any] = {}
    stack = [start]
    while stack:
        thing = stack.pop()
        if id(thing) in found or isinstance(thing, type | ModuleType):
            continue
        found[id(thing)] = thing
        assert len(found) < 100_000
        if isinstance(thing, FunctionType):
            stack += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            stack += gc.get_referents(thing)
        if isinstance(thing, np.ndarray) and thing.base is not None:
            stack.append(thing.base)
    return list(found.values())


def tells_apart(array: Any, labels: np.ndarray) -> bool:
    """Whether it gives bob's images the people they show: an array with an entry for each, or for the whole set."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        return False
    for images in (BOB.train, BOB.train + BOB.held_out):
        own = labels[list(images)]
        for part in [array] if len(array) == len(images) else [array[list(images)]] if len(array) == 20 else []:
            if np.array_equal(in_order(part), in_order(own)):
                return True
    return False


def clusters(state: dict[str, Tensor]) -> np.ndarray:
    model = network().eval()
    put(model, state)
    return c_finch(model.embed(FACES.images.read(np.arange(8, 20))), CLOSE)


def work_by_hand(model: Any, head: Tensor, images: Any, name: str, round: int, pull: float) -> Tensor:
    head = head.clone().requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    fixed = [p.detach().clone() for p in parameters]
    optimiser = torch.optim.SGD([*parameters, head], lr=0.02, momentum=0.9, weight_decay=1e-3)
    model.train()
    for batch in batches(images, WORK, Streams(1, "parties", round, name, "train"), torch.device("cpu")):
        loss = cosface(model(model.preprocess(batch.images)), head, batch.labels)
        apart = sum((p - f).square().sum() for p, f in zip(parameters, fixed, strict=True))
        optimiser.zero_grad()
        (loss + pull / 2 * apart).backward()
        optimiser.step()
    return head.detach()


def test_two_rounds_equal_a_loop_by_hand(tmp_path: Path) -> None:
    ran = feduda(tmp_path, rounds=2, constraint=3.0)
    state = {**ran.start[BACKBONE], **ran.start[BUFFERS]}
    labels = clusters(state)
    count = int(labels.max()) + 1
    assert 1 < count < 12, "the clustering must have something to do"
    images = {
        "ann": party_faces(FACES, PARTITION, "ann")[1].train,
        "bob": pseudo_labelled(party_faces(FACES, PARTITION, "bob")[1].train, labels),
    }
    heads = {"ann": random_head("ann", 2), "bob": random_head("bob", count)}
    model = network()
    for round in (1, 2):
        answers = []
        for name, pull in (("ann", 3.0), ("bob", 0.0)):
            put(model, state)
            heads[name] = work_by_hand(model, heads[name], images[name], name, round, pull)
            answers.append(get(model, list(state)))
        state = mean(answers, [1, 1])
    everything = {**ran.server[BACKBONE], **ran.server[BUFFERS]}
    assert all(torch.allclose(everything[name], value, atol=1e-5) for name, value in state.items())
    assert torch.equal(ran.party("bob")["pseudo_labels"], torch.from_numpy(labels))
    assert all(torch.allclose(ran.party(name)["class_embeddings"], head, atol=1e-5) for name, head in heads.items())


def test_stage_one_trains_at_the_source_only_and_labels_come_from_its_model(tmp_path: Path) -> None:
    ran = feduda(tmp_path, pretrain_rounds=2)
    state = {**ran.start[BACKBONE], **ran.start[BUFFERS]}
    model, head = network(), random_head("ann", 2)
    for repeat in range(2):
        put(model, state)
        streams = Streams(1, "parties", 0, "ann", *(("repeat", repeat) if repeat else ()), "train")
        head = head.clone().requires_grad_()
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD([*parameters, head], lr=0.02, momentum=0.9, weight_decay=1e-3)
        model.train()
        faces = party_faces(FACES, PARTITION, "ann")[1].train
        for batch in batches(faces, WORK, streams, torch.device("cpu")):
            optimiser.zero_grad()
            cosface(model(model.preprocess(batch.images)), head, batch.labels).backward()
            optimiser.step()
        head, state = head.detach(), get(model, list(state))
    assert torch.equal(ran.party("bob")["pseudo_labels"], torch.from_numpy(clusters(state)))
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "party" in row]
    assert {row["party"] for row in rows if row["phase"] == "pretrain"} == {"ann"}
    assert {row["party"] for row in rows if row["phase"] == "label"} == {"bob"}


def test_only_the_model_and_numbers_cross(tmp_path: Path) -> None:
    feduda(tmp_path, pretrain_rounds=1)
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "party" in row]
    assert {row["group"] for row in rows} == {BACKBONE, BUFFERS, "statistics"}


def test_a_target_reads_its_images_and_has_no_labels() -> None:
    faces = party_faces(FACES, PARTITION, "bob")[1]
    assert faces.train.labels is None
    assert faces.train.names == ()
    assert np.array_equal(faces.train.all(), FACES.images.read(np.arange(8, 20)))


@pytest.mark.parametrize("kind", KINDS)
def test_true_labels_of_a_target_cannot_be_reached(kind: str, tmp_path: Path) -> None:
    """Whatever one follows from what a target's party half is given, there is no label, name or folder of its people.

    Looked at before and after the images were read, with public people beside them, whose labels are there.
    """
    whole = source_of(kind, tmp_path)
    people = np.unique(whole.labels[list(BOB.train + BOB.held_out)])
    secret = {whole.names[person] for person in people}
    partition = Partition(tuple(range(4)), (), {"ann": Share("source", (4, 5, 6, 7)), "bob": BOB})
    faces = party_faces(whole, partition, "bob")[1]
    pixels = whole.images.read(np.asarray(BOB.train))
    for _ in range(2):
        for thing in reachable(faces):
            if isinstance(thing, str):
                assert thing not in secret
            if isinstance(thing, Path | str):
                assert str(tmp_path / "faces") not in str(thing)
            for array in (thing, getattr(thing, "labels", None)):
                assert not tells_apart(array, whole.labels)
        assert np.array_equal(faces.train.all(), pixels)
        assert faces.held_out is not None
        assert len(faces.held_out.all()) == 2
        assert faces.public is not None
        assert faces.public.labels is not None
        assert faces.public.names == tuple(whole.names[person] for person in np.unique(whole.labels[:4]))
    if kind == "features":
        assert faces.train.features is not None
        assert len(faces.train.features.read(np.arange(2), np.array([False, True]))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_true_labels_of_a_target_cannot_be_reached_where_images_are_pooled(kind: str, tmp_path: Path) -> None:
    """DAN and DANN: the source's labels are there, the target's are not."""
    whole = source_of(kind, tmp_path)
    partition = Partition((), (), {"ann": Share("source", tuple(range(8))), "bob": BOB})
    faces = party_faces(whole, partition.pooled({"source", "target"}, {"target"}), "pooled")[1]
    assert faces.unlabelled is not None
    assert np.array_equal(faces.unlabelled.all(), whole.images.read(np.asarray(BOB.train)))
    assert np.array_equal(faces.train.all(), whole.images.read(np.arange(8)))
    assert faces.train.labels is not None
    assert faces.train.labels.tolist() == in_order(whole.labels[:8]).tolist()
    for thing in reachable(faces):
        assert not any(tells_apart(array, whole.labels) for array in (thing, getattr(thing, "labels", None)))
        assert not isinstance(thing, Path | str) or str(tmp_path / "faces") not in str(thing)


def test_the_walk_would_find_labels_that_are_there(tmp_path: Path) -> None:
    """The check of the test above has teeth: from the whole set, and from a party with labels, it finds them."""
    for kind in KINDS:
        whole = source_of(kind, tmp_path / kind)
        labelled = party_faces(whole, Partition((), (), {"ann": Share("source", BOB.train)}), "ann")[1]
        labelled.train.all()
        for start in (whole, labelled):
            assert any(tells_apart(thing, whole.labels) for thing in reachable(start))


@pytest.mark.parametrize(("strength", "least", "most"), [(0.01, 1e-6, 1e-4), (1.0, 1e-4, 1e-2), (1000.0, 0.5, 1.0)])
def test_the_constraint_takes_back_next_to_nothing_of_a_short_round(strength: float, least: float, most: float) -> None:
    """The share of the way that is lost, of eight steps at rate 3e-4: why Table 3's last two rows are level here."""

    def way(pull: float) -> float:
        weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        steps, correct = SGD([Group({"w": weight}, 3e-4, 0.9)], 5e-4), proximal({"w": torch.zeros(1)}, pull)
        for _ in range(8):
            weight.grad = torch.ones_like(weight)
            with torch.no_grad():
                correct({"w": weight})
            steps.step()
        return abs(float(weight.detach()))

    assert least < 1 - way(strength) / way(0.0) < most


def test_with_the_source_left_out_only_targets_train(tmp_path: Path) -> None:
    feduda(tmp_path, source_joins=False)
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row.get("phase") == "train"]
    assert {row["party"] for row in rows} == {"bob"}


def test_relabelling_happens_every_few_rounds_with_heads_that_fit(tmp_path: Path) -> None:
    ran = feduda(tmp_path, rounds=3, relabel_every=2)
    rows = list(map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert [row["round"] for row in rows if row["phase"] == "relabel"] == [2]
    state = ran.party("bob")
    assert len(state["class_embeddings"]) == int(state["pseudo_labels"].max()) + 1


def test_images_of_small_clusters_are_left_out(tmp_path: Path) -> None:
    labels = clusters({})
    sizes = np.bincount(labels)
    smallest = int(np.sort(sizes)[-1])
    ran = feduda(tmp_path, smallest_cluster=smallest)
    kept = ran.party("bob")["pseudo_labels"]
    assert int((kept >= 0).sum()) == sizes[sizes >= smallest].sum()


def test_a_clustering_without_clusters_says_so(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="no cluster has 13 images"):
        feduda(tmp_path, smallest_cluster=13)


@pytest.mark.parametrize(
    "options", [{"clustering": "finch"}, {"clustering": "k-means", "clusters": 3}, {"clustering": "dbscan"}]
)
def test_other_clusterings_train_too(options: dict[str, Any], tmp_path: Path) -> None:
    ran = feduda(tmp_path, **options)
    labels = ran.party("bob")["pseudo_labels"]
    assert len(ran.party("bob")["class_embeddings"]) == int(labels.max()) + 1 >= 1
    if options["clustering"] == "k-means":
        assert int(labels.max()) == 2


def test_the_mean_start_puts_heads_at_their_clusters(tmp_path: Path) -> None:
    work = WORK.model_copy(update={"learning_rate": 1e-20})
    method = FedUDA(training=work, rounds=1, distance=CLOSE, embeddings_start="mean")
    ran = federate(tmp_path, method, rounds=1, partition=PARTITION, weighting="equal")
    model = network().eval()
    labels = ran.party("bob")["pseudo_labels"].numpy()
    vectors = model.embed(FACES.images.read(np.arange(8, 20)), flip=False)
    for number, head in enumerate(ran.party("bob")["class_embeddings"]):
        slow = vectors[labels == number].mean(axis=0)
        assert np.allclose(head.numpy(), slow / np.linalg.norm(slow), atol=1e-4)


def test_a_target_that_was_not_labelled_at_the_start_is_labelled_when_it_trains() -> None:
    weights, faces = Weights(network()), party_faces(FACES, PARTITION, "bob")[1]
    party = Party("bob", "target", 1, faces, {}, weights, Streams(1, "parties", 1, "bob"), rates=lambda round: 0.02)
    method = FedUDA(training=WORK, rounds=1, distance=CLOSE)
    parcel = Parcel({BACKBONE: snapshot(weights.backbone), BUFFERS: snapshot(weights.buffers)})
    answer = method.train(party, parcel)
    assert answer.statistics["samples"] == 12
    assert len(party.state["class_embeddings"]) == int(party.state["pseudo_labels"].max()) + 1


def test_a_finch_partition_beyond_the_coarsest_is_the_coarsest() -> None:
    party: Any = None
    embeddings = network().eval().embed(FACES.images.read(np.arange(8, 20)))
    coarsest, beyond = (FedUDA(clustering="finch", partition=p).cluster(embeddings, party) for p in (-1, 50))
    assert np.array_equal(coarsest, beyond)


def test_images_of_others_are_not_at_hand_where_a_targets_were_copied(tmp_path: Path) -> None:
    faces = party_faces(source_of("synthetic", tmp_path), PARTITION, "bob")[1]
    with pytest.raises(FedVisageError, match="only 12 of 20 images are at hand"):
        faces.train._images.read(np.array([8, 7]))


@pytest.mark.parametrize("kind", ["file", "records"])
def test_a_target_that_reads_beyond_its_file_hears_which_one_without_the_way_to_it(kind: str, tmp_path: Path) -> None:
    faces = party_faces(source_of(kind, tmp_path), PARTITION, "bob")[1]
    with pytest.raises(FedVisageError, match=r"^images\.(npy|bin) of 'faces': image 20 of 20"):
        faces.train._images.read(np.array([20]))


@pytest.mark.parametrize("centroids", ["unit", "mean"])
@pytest.mark.parametrize(("metric", "distance"), [("euclidean", 0.8), ("squared-euclidean", 0.64), ("cosine", 0.32)])
def test_metric_and_centroids_are_options(metric: Any, distance: float, centroids: Any) -> None:
    party: Any = None
    x = np.random.default_rng(0).normal(size=(60, 3))
    found = FedUDA(distance=distance, metric=metric, centroids=centroids).cluster(x, party)
    assert np.array_equal(found, c_finch(x, distance, metric=metric, normalise_centroids=centroids == "unit"))


def test_an_option_that_the_clustering_has_no_use_for_is_refused() -> None:
    with pytest.raises(ValueError, match="dbscan makes no use of metric and centroids"):
        FedUDA(clustering="dbscan", metric="cosine", centroids="mean")
