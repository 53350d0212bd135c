"""What each test person does to a run's own scores: kept with a cell so that rows can be compared in pairs."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.build import CACHE, build_parts, freeze, open_faces, prepare_faces, start_model
from fedvisage.config import load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import Pairs
from fedvisage.evaluation.influence import (
    accuracy_influence,
    every_pair,
    packed,
    share_influence,
    tar_influence,
    unpacked,
)
from fedvisage.evaluation.verification import Rule
from fedvisage.faces.partition import Partition
from fedvisage.models import load_model
from fedvisage.scoring import MEAN, RANK_1, TestSet, open_test
from fedvisage.training import choose_device, embed_images

Floats = NDArray[np.float64]

NOBODY = {"set": "", "influence": ""}
"""Of a set that does not say whose images they are."""


def pack(influence: Floats, who: str) -> dict[str, Any]:
    """Influences as they are written into a cell: whose set of people it is, and a whole number per person."""
    return {"set": who, "influence": packed(influence)}


def unpack(kept: Mapping[str, Any]) -> Floats:
    """Influences (people,) as `pack` wrote them."""
    return unpacked(str(kept["influence"]))


def people_digest(names: Sequence[str]) -> str:
    """What two cells must have in common to be compared person by person."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def test_influences(folder: Path, metrics: Sequence[str], of: str) -> dict[str, dict[str, Any]]:
    """By metric (`accuracy`, `tar@0.01`): the influence of each of a finished run's test people.

    Where every party has a model of its own, the mean over the parties. `of` start for the model the run began with.
    """
    recipe = load_recipe(str(folder / "recipe.toml"))
    partition = Partition.load(folder / "partition.json")
    faces = open_faces(recipe, folder / CACHE)
    alone = build_parts(recipe).method.has_no_global_model
    paths = sorted(folder.glob("parties/*/model.safetensors")) if alone else [folder / "model.safetensors"]
    device = choose_device(recipe.federation.device)
    models = [start_model(recipe, folder)] if of == "start" else [load_model(path) for path in paths]
    if isinstance(recipe.backbone.cache, str):
        for model in models:
            freeze(model, recipe)
        faces = prepare_faces(recipe, models[0], faces, partition, folder)
    test = open_test(faces, partition.test, recipe.evaluation, Streams(recipe.seed))
    digest = people_digest(test.faces.names)
    sums = {metric: np.zeros(test.faces.classes) for metric in metrics}
    for model in models:
        embeddings = embed_images(model.to(device), test.faces, flip=recipe.evaluation.flip, normalise=True)
        for metric in metrics:
            sums[metric] += test_influence(embeddings, test, metric)
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    return {metric: pack(total / len(models), digest) for metric, total in sums.items()}


def test_influence(embeddings: NDArray[np.float32], test: TestSet, metric: str) -> Floats:
    """The influence of each test person on `accuracy` or `tar@<far>`, from the embeddings (N, d) of the images.

    With a domain before it, such as `daylight rank-1`, on the score of that domain, where others have none; with `mean`
    before it on the mean over the domains.
    """
    domain, _, inner = metric.rpartition(" ")
    if not domain:
        return _influence(embeddings, test.labels, test.pairs, metric, test.settings.rule)
    if domain == MEAN:
        each = [test_influence(embeddings, test, f"{name} {inner}") for name in test.domains]
        return np.asarray(np.mean(each, axis=0))
    part = test.domains[domain]
    people, labels = np.unique(part.labels, return_inverse=True)
    influence = np.zeros(test.faces.classes)
    if inner == RANK_1:
        influence[people] = share_influence(part.found(embeddings), labels[part.probes], len(people))
    else:
        influence[people] = _influence(embeddings[part.images], labels, part.pairs, inner, test.settings.rule)
    return influence


def _influence(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], pairs: Pairs | None, metric: str, rule: Rule
) -> Floats:
    if metric != "accuracy":
        far = float(metric.partition("@")[2])
        return tar_influence(every_pair(embeddings, labels, far), far)
    if pairs is None:
        raise FedVisageError("there is no accuracy without pairs: set evaluation.pairs")
    left, right, _ = pairs
    people = int(labels.max()) + 1
    return accuracy_influence(embeddings[left], embeddings[right], labels[left], labels[right], people, rule=rule)
