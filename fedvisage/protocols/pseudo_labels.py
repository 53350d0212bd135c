"""The pseudo-labels of a run with unlabelled parties, against the identities that those parties never see.

Party by party on a run's folder, where the true labels are; scores are over the images of all targets together, in
which clusters of two parties are different clusters, and an image that no cluster took is one of its own.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedvisage.build import CACHE
from fedvisage.clustering import bcubed, nmi, pairwise
from fedvisage.config import load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import TARGET
from fedvisage.faces.opening import open_source
from fedvisage.faces.partition import Partition
from fedvisage.federation import StateStore
from fedvisage.methods.feduda import PSEUDO_LABELS
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject


@protocol(
    "pseudo-labels", "clusters of a run's unlabelled parties against their people: F-scores, NMI", True, by_round=False
)
def pseudo_labels(data: Data, subject: Subject, options: Options) -> Result:
    """A run's folder; the last pseudo-labels of every target."""
    run = Path(subject.path)
    for needed in ("recipe.toml", "partition.json"):
        if not (run / needed).is_file():
            raise FedVisageError(f"the protocol 'pseudo-labels' needs a run's folder, and {run / needed} is not there")
    partition = Partition.load(run / "partition.json")
    faces = open_source(load_recipe(run / "recipe.toml").faces, run / CACHE, only_labels=True)
    store, truth, predicted, clusters = StateStore(run / "parties"), [], [], 0
    for name, share in partition.parties.items():
        state = store.load(name, store.generations(name)[-1]) if store.generations(name) else {}
        if share.role != TARGET or PSEUDO_LABELS not in state:
            continue
        labels = state[PSEUDO_LABELS].numpy()
        truth.append(faces.labels[np.array(share.train)])
        predicted.append(np.where(labels < 0, -1, labels + clusters))
        clusters += int(labels.max()) + 1
    store.close()
    if not truth:
        return _nothing()
    people, found = np.concatenate(truth), np.concatenate(predicted)
    result = Result({"NMI": nmi(people, found)})
    for name, scores in (("pairwise", pairwise(people, found)), ("BCubed", bcubed(people, found))):
        result.metrics |= {f"{name} F": scores.f, f"{name} precision": scores.precision}
        result.metrics[f"{name} recall"] = scores.recall
    result.counts = {"images": len(people), "people": len(np.unique(people)), "clusters": clusters}
    result.counts |= {"parties": len(truth), "in no cluster": int((found < 0).sum())}
    return result


def _nothing() -> Result:
    names = [f"{kind} {what}" for kind in ("pairwise", "BCubed") for what in ("F", "precision", "recall")]
    result = Result(dict.fromkeys(["NMI", *names], math.nan))
    result.note("no party of this run has pseudo-labels: only the targets of 'feduda' make some")
    return result
