"""A run's model with each domain's own BatchNorm statistics: what averaging them over unlike parties costs.

In local work BatchNorm normalises by a batch of one party's images, so by one domain; the averaged model normalises by
the mean of all parties' statistics, which is nobody's.
"""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedvisage.build import CACHE, open_faces
from fedvisage.config import load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import LEARNERS
from fedvisage.evaluation import all_pairs_verification
from fedvisage.evaluation.influence import every_pair, tar_influence
from fedvisage.faces.faceset import Faces, Indices
from fedvisage.faces.partition import Partition
from fedvisage.methods.batchnorm import estimate_statistics
from fedvisage.protocols.progress import run_folder
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject
from fedvisage.training import embed_images


@protocol("own-statistics", "TAR on a run's test people, with BatchNorm's statistics of each domain's trainers", True)
def own_statistics(data: Data, subject: Subject, options: Options) -> Result:
    """Domain by domain: statistics from the training images of its parties, then all pairs of its test people."""
    run = run_folder(subject)
    recipe, partition = load_recipe(str(run / "recipe.toml")), Partition.load(run / "partition.json")
    faces, model = open_faces(recipe, run / CACHE), subject.model
    if faces.domain is None or len(faces.domains) < 2:
        raise FedVisageError(f"the protocol 'own-statistics' compares domains, and the faces of {run} have one only")
    names, test = np.array(faces.domains)[faces.domain], np.array(partition.test, np.int64)
    own = [image for share in partition.parties.values() if share.role in LEARNERS for image in share.train]
    trained, fars = np.array(own, np.int64), options.fars or recipe.evaluation.fars
    flip = recipe.evaluation.flip if options.flip is None else options.flip
    kept = {name: value.clone() for name, value in model.named_buffers()}
    result = Result()
    for domain in faces.domains:
        learnt, tested = trained[names[trained] == domain], Faces(faces, test[names[test] == domain])
        if len(learnt) < 2 or not len(tested):
            continue
        estimate_statistics(model, Faces(faces, learnt))
        assert tested.labels is not None
        embeddings = embed_images(model, tested, flip=flip, normalise=True)
        for rate in all_pairs_verification(embeddings, tested.labels, fars).rates:
            result.rate(f"{domain} TAR@{rate.far:g}", rate)
        if options.influence:
            _add_influence(result, domain, embeddings, faces.labels[test[names[test] == domain]], len(faces.names))
        result.counts |= {f"{domain} images for statistics": len(learnt), f"{domain} test images": len(tested)}
    for name, value in model.named_buffers():
        value.copy_(kept[name])
    for far in fars:
        values = [value for name, value in result.metrics.items() if name.endswith(f" TAR@{far:g}")]
        result.metrics[f"mean TAR@{far:g}"] = fmean(values) if values else math.nan
        moved = [value for name, value in result.influence.items() if name.endswith(f" TAR@{far:g}")]
        if moved and len(moved) == len(values):
            result.influence[f"mean TAR@{far:g}"] = np.mean(moved, axis=0)
    result.people = tuple(faces.names)
    return result


def _add_influence(result: Result, domain: str, embeddings: NDArray[np.float32], labels: Indices, people: int) -> None:
    """How much each person moves the rates of a domain."""
    for name, value in list(result.metrics.items()):
        own, _, rate = name.rpartition(" TAR@")
        if own == domain and np.isfinite(value):
            moved = np.zeros(people)
            moved[np.unique(labels)] = tar_influence(every_pair(embeddings, labels, float(rate)), float(rate))
            result.influence[name] = moved
