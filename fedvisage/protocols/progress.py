"""Protocols on a run's folder that say what training changed: pairs gained and lost, public images sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.build import CACHE, freeze, open_faces, prepare_faces, start_model
from fedvisage.chosen import models_of, run_of
from fedvisage.config import load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import all_pairs_verification
from fedvisage.faces.faceset import Faces
from fedvisage.faces.partition import Partition
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject
from fedvisage.training import embed_images

Floats = NDArray[np.float32]


@protocol("recovered", "genuine pairs of a run's test people that its start rejects and its model accepts", True)
def recovered(data: Data, subject: Subject, options: Options) -> Result:
    """Both models at their own thresholds for the same false-accept rate, over all pairs of the test people."""
    run = run_folder(subject)
    recipe, partition = load_recipe(str(run / "recipe.toml")), Partition.load(run / "partition.json")
    faces, models = open_faces(recipe, run / CACHE), (start_model(recipe, run), subject.model)
    if isinstance(recipe.backbone.cache, str):
        freeze(models[1], recipe)
        faces = prepare_faces(recipe, models[0], faces, partition, run)
    if not partition.test:
        raise FedVisageError(f"{run} has no test people: set partition.test in the recipe and run again")
    test = Faces(faces, partition.test)
    assert test.labels is not None
    flip = recipe.evaluation.flip if options.flip is None else options.flip
    before, after = (embed_images(model, test, flip=flip, normalise=True) for model in models)
    fars = options.fars or recipe.evaluation.fars
    rates = [all_pairs_verification(side, test.labels, fars).rates for side in (before, after)]
    result = Result()
    result.counts = {"images": len(test.labels), "genuine": sum(1 for _ in _genuine(test.labels))}
    scores = [_cosines(side, test.labels) for side in (before, after)]
    for far, start, end in zip(fars, *rates, strict=True):
        if np.isnan(start.threshold) or np.isnan(end.threshold):
            result.metrics |= {f"recovered@{far:g}": np.nan, f"lost@{far:g}": np.nan}
            result.note(f"FAR {far:g} is below what these pairs can show")
            continue
        was, now = scores[0] > start.threshold, scores[1] > end.threshold
        result.metrics[f"recovered@{far:g}"] = float(np.mean(~was & now))
        result.metrics[f"lost@{far:g}"] = float(np.mean(was & ~now))
    return result


@protocol(
    "sampled", "public images that a run's parties trained on, as a share of all public images", True, by_round=False
)
def sampled(data: Data, subject: Subject, options: Options) -> Result:
    """The mean over rounds and parties of the hard negatives that FedFR's parties report."""
    run = run_folder(subject)
    partition = Partition.load(run / "partition.json")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    counts = [n["hard_negatives"] for row in rows for n in row.get("parties", {}).values() if "hard_negatives" in n]
    if not counts or not partition.public:
        raise FedVisageError(f"the parties of {run} did not train on public images")
    result = Result({"sampled": float(np.mean(counts)) / len(partition.public)})
    result.counts = {"public": len(partition.public), "sampled": round(float(np.mean(counts)))}
    return result


def run_folder(subject: Subject) -> Path:
    """The folder of the run that is scored, or whose chosen round is; refused where it is none."""
    path = run_of(models_of(Path(subject.path))[0])
    for needed in ("recipe.toml", "partition.json", "metrics.jsonl"):
        if not (path / needed).is_file():
            raise FedVisageError(f"this protocol needs a run's folder, and {path / needed} is not there")
    return path


def _genuine(labels: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """All pairs of images of one person."""
    for person in np.unique(labels):
        own = np.flatnonzero(labels == person).tolist()
        yield from ((a, b) for place, a in enumerate(own) for b in own[place + 1 :])


def _cosines(unit: Floats, labels: NDArray[np.int64]) -> Floats:
    """Of all genuine pairs, in the order of `_genuine`."""
    pairs = np.array(list(_genuine(labels)), dtype=np.int64).reshape(-1, 2)
    cosines: Floats = np.einsum("nd,nd->n", unit[pairs[:, 0]], unit[pairs[:, 1]])
    return cosines
