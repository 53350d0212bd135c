"""The people of different parties who are most alike, against a search through all pairs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import fedvisage as fv
from fedvisage.build import open_faces
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.partition import Partition
from fedvisage.federation import StateStore
from fedvisage.models import load_model
from fedvisage.protocols import Data, open_subject
from fedvisage.protocols import run as evaluate

CHANGES = {"method.name": "fedgc", "federation": {"rounds": 1, "workers": 1}, "compare": [], "pretrain.epochs": 0}


def test_the_closest_pairs_are_measured_by_their_class_embeddings_and_images(tmp_path: Path) -> None:
    recipe, folder = fv.load_recipe("smoke", CHANGES), tmp_path / "run"
    fv.run(recipe, out=folder)
    partition, store = Partition.load(folder / "partition.json"), StateStore(folder / "parties")
    kept = {name: store.load(name, store.generations(name)[-1]) for name in partition.parties}
    people = [(name, n, row.numpy()) for name, of in kept.items() for n, row in enumerate(of["class_embeddings"])]
    store.close()

    def cosine(pair: tuple[int, int]) -> float:
        (a, b) = (people[one][2] for one in pair)
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    pairs = [pair for pair in combinations(range(len(people)), 2) if people[pair[0]][0] != people[pair[1]][0]]
    chosen: list[tuple[int, int]] = []
    while len(chosen) < 4:
        chosen.append(max(pairs, key=cosine))
        pairs = [pair for pair in pairs if not set(pair) & set(chosen[-1])]
    faces, model = open_faces(recipe, tmp_path / "cache"), load_model(folder / "model.safetensors")

    def images(one: int) -> np.ndarray:
        name, number, _ = people[one]
        train = np.array(partition.parties[name].train)
        own = train[faces.labels[train] == np.unique(faces.labels[train])[number]]
        seen = model.embed(faces.images.read(own[:16]), flip=False)
        return seen / np.linalg.norm(seen, axis=1, keepdims=True)

    found = evaluate("alike", Data(folder), open_subject(str(folder)))
    assert found.counts["pairs"] == 4
    assert found.metrics["classes"] == pytest.approx(np.mean([cosine(pair) for pair in chosen]), abs=1e-4)
    between = [(images(a) @ images(b).T).mean() for a, b in chosen]
    assert found.metrics["images"] == pytest.approx(np.mean(between), abs=1e-4)


def test_a_run_without_class_embeddings_of_its_parties_says_so(tmp_path: Path) -> None:
    fv.run(fv.load_recipe("smoke", CHANGES | {"method.name": "central"}), out=tmp_path / "run")
    with pytest.raises(FedVisageError, match="only a run whose parties keep class embeddings"):
        evaluate("alike", Data(tmp_path / "run"), open_subject(str(tmp_path / "run")))
