"""Scores of a model on identities nobody trained on: 10-fold accuracy over drawn pairs, TAR at FAR over all pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.config import Evaluation
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import Rate, all_pairs_verification, kfold_accuracy, make_pairs
from fedvisage.faces.faceset import Faces
from fedvisage.models import Backbone
from fedvisage.training import embed_images

Score = dict[str, Any]

HISTOGRAM_BINS = 80


def headline(score: Score) -> dict[str, float]:
    """The numbers of a score that a learning curve shows: accuracy and the resolved rates."""
    accuracy = {"accuracy": score["accuracy"]} if "accuracy" in score else {}
    return accuracy | {f"tar@{far}": tar for far, tar in score["tar"].items() if math.isfinite(tar)}


class TestSet:
    """The test identities' images, and the pairs drawn among them."""

    __test__ = False

    def __init__(self, faces: Faces, settings: Evaluation, streams: Streams) -> None:
        assert faces.labels is not None
        self.faces, self.labels, self.settings = faces, faces.labels, settings
        self.rates: tuple[Rate, ...] = ()
        self.pairs = make_pairs(self.labels, settings.pairs, streams.numpy("test pairs")) if settings.pairs else None

    def score(self, model: Backbone) -> Score:
        """`accuracy` and its spread over folds, `tar` by FAR, and what the report draws."""
        return self.score_embeddings(embed_images(model, self.faces, flip=self.settings.flip, normalise=True))

    def score_embeddings(self, embeddings: NDArray[np.float32]) -> Score:
        """`score` from embeddings (N, d) of the images, at unit length."""
        score: Score = {}
        if self.pairs is not None:
            left, right, same = self.pairs
            accuracy = kfold_accuracy(embeddings[left], embeddings[right], same)
            score |= {"accuracy": accuracy.mean, "accuracy_std": accuracy.std}
            cosines = np.einsum("nd,nd->n", embeddings[left], embeddings[right])
            score["histogram"] = {
                name: np.histogram(cosines[same == kind], bins=HISTOGRAM_BINS, range=(-1, 1))[0].tolist()
                for name, kind in (("genuine", True), ("impostor", False))
            }
        self.rates = all_pairs_verification(embeddings, self.labels, self.settings.fars).rates
        score["tar"] = {f"{far:g}": float(rate) for far, rate in zip(self.settings.fars, self.rates, strict=True)}
        return score

    def describe(self) -> dict[str, int]:
        """How large the test is."""
        people = np.bincount(self.labels)
        genuine = int((people * (people - 1) // 2).sum())
        total = len(self.labels) * (len(self.labels) - 1) // 2
        drawn = len(self.pairs.same) if self.pairs is not None else 0
        counts = {"identities": len(people), "images": len(self.labels), "pairs": drawn}
        return counts | {"all_genuine": genuine, "all_impostor": total - genuine}
