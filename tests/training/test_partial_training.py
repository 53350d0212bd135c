"""Training the last stages only: what stays, what travels, and that computing the rest once changes no bit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvisage as fv
from fedvisage.build import resolve
from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.losses import cosface
from fedvisage.models import BACKBONES, Backbone, create_backbone, save_model
from fedvisage.planning import make_plan
from fedvisage.training import Trainer, embed_images, features_for, with_features

EVERY = [("ir-tiny", 1), ("ir-tiny", 3), ("ir-tiny", -1), ("dlib-resnet", 4), ("mobilefacenet", 3), ("sphere-20", -2)]


def network(name: str = "ir-tiny", size: int = 32) -> Backbone:
    return create_backbone(name, image_size=size, embedding_size=16, generator=torch.Generator().manual_seed(1))


def faceset(count: int = 40, size: int = 32) -> FaceSet:
    pixels = np.random.default_rng(2).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return FaceSet(ArrayImages(pixels), np.arange(count) // 4, tuple(f"p{n}" for n in range(count // 4)))


def trained(model: Backbone, images: Faces, work: Training) -> dict[str, torch.Tensor]:
    head = torch.randn(images.classes, 16, generator=torch.Generator().manual_seed(3))
    trainer = Trainer(model, {"head": head}, work, 0.05)
    trainer.fit(images, lambda features, batch: cosface(features, trainer.others["head"], batch.labels), Streams(1))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()} | trainer.values()


@pytest.mark.parametrize("name", list(BACKBONES))
def test_a_network_is_its_stages_and_every_parameter_is_in_one(name: str) -> None:
    model = create_backbone(name, device="meta")
    stages = model.all_stages()
    inside = [id(p) for stage in stages for module in stage.modules for p in module.parameters()]
    assert sorted(inside) == sorted(id(p) for p in model.parameters())
    assert len({stage.name for stage in stages}) == len(stages)
    model.train_from(stages[-1].name)
    fixed = {"features.weight"} if name.startswith("ir-") else set()
    trainable = {id(p) for module in stages[-1].modules for p in module.parameters()}
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if id(p) in trainable and n not in fixed
    }


@pytest.mark.parametrize(("name", "stage"), EVERY)
def test_computing_the_frozen_stages_once_changes_no_bit_of_training(name: str, stage: int, tmp_path: Path) -> None:
    plain, cached = network(name), network(name)
    cut = plain.all_stages()[stage].name
    for model in (plain, cached):
        model.train_from(cut)
    faces = faceset()
    chosen = np.arange(1, 22)
    with_cache = with_features(cached, faces, chosen, tmp_path)
    work = Training(batch_size=8, epochs=1)
    without = trained(plain, Faces(faces, chosen), work)
    images = Faces(with_cache, chosen)
    assert features_for(cached, images) is not None
    from_cache = trained(cached, images, work)
    assert without.keys() == from_cache.keys()
    for key, tensor in without.items():
        assert torch.equal(tensor, from_cache[key]), key
    for flip in (True, False):
        expected = embed_images(plain, Faces(faces, chosen), flip=flip, batch_size=16)
        assert np.array_equal(embed_images(cached, images, flip=flip, batch_size=16), expected)


def test_the_frozen_stages_do_not_change_and_the_others_do() -> None:
    model = network().train_from("layer3")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = trained(model, Faces(faceset(), np.arange(40)), Training(batch_size=8))
    frozen = set(model.frozen)
    assert {"conv1.weight", "bn1.running_mean", "layer2.0.bn1.running_var"} <= frozen
    for name, tensor in before.items():
        if name == "features.weight":  # fixed at one in every IR network
            continue
        assert torch.equal(tensor, after[name]) == (name in frozen), name


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=15)
def test_what_frozen_stages_make_of_an_image_is_the_same_in_any_batch(first: int, batch: int) -> None:
    model = network().train_from("layer2").eval()
    images = torch.from_numpy(np.array(faceset(80).images.read(np.arange(80))))
    alone = model.to_cut(model.preprocess(images[first : first + 1]))
    among = model.to_cut(model.preprocess(images[first - 1 : first - 1 + batch + 1]))
    assert torch.equal(alone[0], among[1])


def test_only_what_is_trained_travels() -> None:
    model = network().train_from("layer4")
    weights = Weights(model)
    for name in (*weights.backbone, *weights.buffers):
        assert name.startswith(("layer4.", "bn2.", "fc.", "features.")), name
    assert "layer4.0.bn1.running_mean" in weights.buffers
    assert not set(model.frozen) & (set(weights.backbone) | set(weights.buffers))
    twin = weights.twin("global", {"fc.bias": torch.full((16,), 3.0)})
    images = torch.from_numpy(faceset().images.read(np.arange(4)))
    features = model.eval().to_cut(model.preprocess(images))
    assert torch.equal(twin.features_of(features), twin.features_of(images))
    assert not torch.equal(twin.features_of(features), model.features_of(features))


def test_features_of_another_network_are_not_used(tmp_path: Path) -> None:
    model = network().train_from("layer3")
    images = Faces(with_features(model, faceset(), np.arange(8), tmp_path), np.arange(8))
    assert features_for(model, images) is not None
    assert features_for(network(), images) is None
    assert features_for(network().train_from("layer4"), images) is None
    other = create_backbone("ir-tiny", image_size=32, embedding_size=16, generator=torch.Generator().manual_seed(9))
    assert features_for(other.train_from("layer3"), images) is None
    assert np.allclose(embed_images(other, images), other.embed(faceset().images.read(np.arange(8))), atol=1e-5)


def test_features_are_computed_once_and_added_to_where_they_lack_images(tmp_path: Path) -> None:
    model, faces = network().train_from("layer3"), faceset()
    with_features(model, faces, np.arange(10), tmp_path)
    (path,) = tmp_path.glob("*.bin")
    stamp = path.stat().st_mtime_ns
    with_features(model, faces, np.arange(3, 7), tmp_path)
    assert path.stat().st_mtime_ns == stamp
    more = with_features(model, faces, np.arange(12), tmp_path)
    assert more.features is not None
    assert more.features.read(np.array([11]), np.array([True])).shape == (1, 32, 8, 8)
    with pytest.raises(FedVisageError, match="lacks some of these images"):
        more.features.read(np.array([13]), np.array([False]))


def test_a_truncated_file_of_features_is_refused(tmp_path: Path) -> None:
    model, faces = network().train_from("layer3"), faceset()
    with_features(model, faces, np.arange(10), tmp_path)
    (path,) = tmp_path.glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedVisageError, match="is truncated: remove it"):
        with_features(model, faces, np.arange(10), tmp_path)


@pytest.mark.parametrize("cut", [10, 60, 200])
def test_features_that_end_early_are_refused_wherever_they_end(cut: int, tmp_path: Path) -> None:
    model, faces = network().train_from("layer3"), faceset()
    with_features(model, faces, np.arange(10), tmp_path)
    (path,) = tmp_path.glob("*.bin")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FedVisageError, match="remove it, and it is computed again"):
        with_features(model, faces, np.arange(10), tmp_path)


def test_sets_of_the_same_names_and_other_images_do_not_share_features(tmp_path: Path) -> None:
    model, one = network().train_from("layer3"), faceset()
    other = replace(one, images=ArrayImages(255 - one.images.read(np.arange(len(one)))))
    for faces in (one, other):
        found = Faces(with_features(model, faces, np.arange(8), tmp_path), np.arange(8))
        assert np.allclose(embed_images(model, found), model.embed(faces.images.read(np.arange(8))), atol=1e-4)
    assert len(list(tmp_path.glob("*.bin"))) == 2


def test_a_kill_while_features_are_added_leaves_those_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at every step of writing that touches the folder: the next start reads what was there, and adds."""
    model, faces = network().train_from("layer3"), faceset()
    with_features(model, faces, np.arange(10), tmp_path)
    expected = model.to_cut(model.preprocess(faces.images.read(np.array([3])))).detach().numpy()
    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _killed)
            with pytest.raises(KeyboardInterrupt):
                with_features(model, faces, np.arange(14), tmp_path)
        kept = with_features(model, faces, np.arange(10), tmp_path).features
        assert kept is not None
        assert np.allclose(kept.read(np.array([3]), np.array([False])), expected, atol=1e-5)
    assert with_features(model, faces, np.arange(14), tmp_path).features is not None


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


SMALL = {
    "compare": ["alone"],
    "faces.identities": 20,
    "faces.images_per_identity": 6,
    "partition.public": 4,
    "partition.test": 6,
    "partition.parties": 2,
    "partition.identities_per_party": 5,
    "federation.rounds": 2,
    "federation.evaluate_every": 1,
    "evaluation.pairs": 0,
}


def test_a_run_gives_the_same_bits_with_and_without_the_cache_and_in_workers(tmp_path: Path) -> None:
    changes = SMALL | {"pretrain.epochs": 1, "backbone.train_from": "layer3"}
    results = {}
    for name, more in {
        "cached": {"federation.workers": 1},
        "uncached": {"federation.workers": 1, "backbone.cache": False},
        "workers": {"federation.workers": 2},
    }.items():
        fv.run(fv.load_recipe("smoke", changes | more), out=tmp_path / name)
        results[name] = {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("model.safetensors")
        }
        results[name]["scores"] = (tmp_path / name / "evaluation.json").read_bytes()
    assert len(results["cached"]) == 5
    assert results["cached"] == results["uncached"] == results["workers"]
    ledger = (tmp_path / "cached" / "ledger.jsonl").read_text()
    assert "layer4" in ledger
    assert "layer1" not in ledger
    assert "conv1" not in ledger.replace(".conv1", "")


def test_second_networks_and_hard_negatives_work_from_the_cache_too(tmp_path: Path) -> None:
    """FedFR mines public faces and compares each batch with two frozen networks, and gives parties their own models."""
    changes = SMALL | {"compare": [], "pretrain.epochs": 1, "backbone.train_from": "layer4", "federation.workers": 1}
    changes |= {"method": {"name": "fedfr"}, "federation.evaluate_every": 0}
    bits = []
    for cache in (True, False):
        fv.run(fv.load_recipe("smoke", changes | {"backbone.cache": cache}), out=tmp_path / str(cache))
        models = sorted((tmp_path / str(cache)).rglob("model.safetensors"))
        bits.append([path.read_bytes() for path in models])
    assert len(bits[0]) == 3
    assert bits[0] == bits[1]


def test_a_run_starts_from_a_given_model(tmp_path: Path) -> None:
    model = create_backbone("ir-tiny", image_size=32, generator=torch.Generator().manual_seed(8))
    save_model(tmp_path / "start.safetensors", model)
    start = {"backbone.start": str(tmp_path / "start.safetensors"), "pretrain.epochs": 0, "federation.workers": 1}
    result = fv.run(fv.load_recipe("smoke", SMALL | start | {"backbone.train_from": "head"}), out=tmp_path / "run")
    trained = fv.load_model(result.model_path).state_dict()
    assert torch.equal(trained["layer4.0.conv1.weight"], model.state_dict()["layer4.0.conv1.weight"])
    assert not torch.equal(trained["fc.weight"], model.state_dict()["fc.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone.train_from": "layer9", "pretrain.epochs": 1}, r"ir-tiny has no stage 'layer9'.*layer1"),
        ({"backbone.train_from": "layer3", "pretrain.epochs": 0}, "have learnt nothing yet"),
        ({"backbone.train_from": "layer3", "training.crop": 2}, "crop moves images before the frozen stages"),
        ({"backbone.start": "no-such-model", "pretrain.epochs": 0}, "no model 'no-such-model'"),
        ({"backbone.start": "dlib", "pretrain.epochs": 0}, "holds dlib-resnet for 112 pixels"),
    ],
)
def test_what_cannot_be_frozen_or_started_from_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=message):
        fv.run(fv.load_recipe("smoke", SMALL | changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_counts_only_what_travels() -> None:
    recipe = {"backbone.name": "dlib-resnet", "backbone.start": "dlib", "faces.size": 112, "pretrain.epochs": 0}
    whole = make_plan(fv.load_recipe("smoke", recipe))
    part = make_plan(fv.load_recipe("smoke", recipe | {"backbone.train_from": "stage4"}))
    assert whole["backbone"]["travelling"] == 5_607_488
    # 128 -> 256, seven of 256 -> 256, and the matrix
    assert part["backbone"]["travelling"] == 9 * 128 * 256 + 7 * 9 * 256 * 256 + 8 * 256 + 256 * 128
    assert part["memory"]["party"] < whole["memory"]["party"]
    resolve(fv.load_recipe("smoke", recipe))
