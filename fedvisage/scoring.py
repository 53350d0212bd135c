"""Scores of a model on identities nobody trained on: 10-fold accuracy over drawn pairs, TAR at FAR over all pairs.

Where the identities are of several domains, also of each domain by itself, with the share of images whose person is
found first among one image of each of the domain's people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.config import Evaluation
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import Pairs, Rate, all_pairs_verification, kfold_accuracy, make_pairs
from fedvisage.faces.faceset import Faces, FaceSet
from fedvisage.models import Backbone
from fedvisage.training import embed_images

Score = dict[str, Any]

HISTOGRAM_BINS = 80
ROC_POINTS = 33
RANK_1 = "rank-1"
MEAN = "mean"
"""Over the domains."""


def headline(score: Score) -> dict[str, float]:
    """The numbers of a score that a learning curve shows: accuracy and the resolved rates; by domain; their means."""
    numbers = {name: score[name] for name in ("accuracy", RANK_1) if name in score}
    numbers |= {f"tar@{far}": tar for far, tar in score["tar"].items() if math.isfinite(tar)}
    domains = {domain: headline(inner) for domain, inner in score.get("domains", {}).items()}
    for domain, own in domains.items():
        numbers |= {f"{domain} {name}": value for name, value in own.items()}
    for name in next(iter(domains.values()), {}):
        if all(name in own for own in domains.values()):
            numbers[f"{MEAN} {name}"] = fmean(own[name] for own in domains.values())
    return numbers


def mean_score(scores: Mapping[str, Score]) -> Score:
    """The mean of parties' scores on the same test people, with the spread over the parties and each one's numbers."""
    each = list(scores.values())
    accuracies = [score["accuracy"] for score in each if "accuracy" in score]
    found: Score = {}
    if accuracies:
        found = {"accuracy": float(np.mean(accuracies)), "accuracy_std": float(np.std(accuracies))}
    found["tar"] = {far: float(np.mean([score["tar"][far] for score in each])) for far in each[0]["tar"]}
    curves = [score["roc"] for score in each if score.get("roc")]
    if curves and len({len(curve) for curve in curves}) == 1:
        tars = np.mean([[tar for _, tar in curve] for curve in curves], axis=0)
        found["roc"] = [(far, round(float(tar), 6)) for (far, _), tar in zip(curves[0], tars, strict=True)]
    drawn = ("histogram", "roc")
    parties = {party: {k: v for k, v in score.items() if k not in drawn} for party, score in scores.items()}
    return found | {"parties": parties}


class TestSet:
    """The test identities' images, and the pairs drawn among them.

    With the `domain` (N,) of each image, a name, the images of every domain are a test of their own beside. Too few
    people for the pairs are refused, or with `lenient` have no accuracy.
    """

    __test__ = False

    def __init__(
        self,
        faces: Faces,
        settings: Evaluation,
        streams: Streams,
        domain: NDArray[np.str_] | None = None,
        lenient: bool = False,
    ) -> None:
        assert faces.labels is not None
        self.faces, self.labels, self.settings = faces, faces.labels, settings
        self.rates: tuple[Rate, ...] = ()
        self.pairs = _draw_pairs(self.labels, settings, streams, lenient)
        names = np.unique(domain) if domain is not None else np.empty(0, np.str_)
        self.domains = {
            str(name): Domain(np.flatnonzero(domain == name), self.labels, settings, streams.child(str(name)))
            for name in (names if len(names) > 1 else ())
        }

    @property
    def has_both_kinds(self) -> bool:
        """Whether there are genuine and impostor pairs, in every domain: without them there is no rate."""
        parts = (self.labels, *(domain.labels for domain in self.domains.values()))
        counts = [np.unique(labels, return_counts=True)[1] for labels in parts]
        return all(len(images) > 1 and images.max() > 1 for images in counts)

    def score(self, model: Backbone, curve: bool = False) -> Score:
        """`accuracy` and its spread over folds, `tar` by FAR, and what the report draws; with the ROC's `curve`."""
        return self.score_embeddings(self.embeddings(model, self.settings.flip), curve)

    def embeddings(self, model: Backbone, flip: bool) -> NDArray[np.float32]:
        """Embeddings (N, d) of the images at unit length, with mirrored images added where `flip` says so."""
        return embed_images(model, self.faces, flip=flip, normalise=True)

    def score_embeddings(self, embeddings: NDArray[np.float32], curve: bool = False) -> Score:
        """`score` from embeddings (N, d) of the images, at unit length."""
        score = _verified(embeddings, self.pairs, self.settings)
        if self.pairs is not None:
            left, right, same = self.pairs
            cosines = np.einsum("nd,nd->n", embeddings[left], embeddings[right])
            score["histogram"] = {
                name: np.histogram(cosines[same == kind], bins=HISTOGRAM_BINS, range=(-1, 1))[0].tolist()
                for name, kind in (("genuine", True), ("impostor", False))
            }
        self.rates = all_pairs_verification(embeddings, self.labels, self.settings.fars).rates
        score["tar"] = _by_far(self.settings, self.rates)
        if curve:
            score["thresholds"] = {f"{rate.far:g}": rate.threshold for rate in self.rates if rate.reason is None}
            score["roc"] = self._roc(embeddings)
        if self.domains:
            score["domains"] = {name: domain.score(embeddings) for name, domain in self.domains.items()}
        return score

    def _roc(self, embeddings: NDArray[np.float32]) -> list[tuple[float, float]]:
        """(FAR, TAR) at `ROC_POINTS` rates from the strictest that the pairs can show to 1, evenly on a log scale."""
        impostors = self.describe()["all_impostor"]
        fars = np.geomspace(1 / max(impostors, 2), 1, ROC_POINTS).clip(max=1.0)
        found = all_pairs_verification(embeddings, self.labels, fars.tolist(), dtype=np.float32).rates
        return [(float(f"{rate.far:.3g}"), round(rate.value, 6)) for rate in found if math.isfinite(rate.value)]

    def describe(self) -> dict[str, int]:
        """How large the test is."""
        people = np.bincount(self.labels)
        genuine = int((people * (people - 1) // 2).sum())
        total = len(self.labels) * (len(self.labels) - 1) // 2
        drawn = len(self.pairs.same) if self.pairs is not None else 0
        counts = {"identities": len(people), "images": len(self.labels), "pairs": drawn}
        return counts | {"all_genuine": genuine, "all_impostor": total - genuine}


def open_test(
    faces: FaceSet, images: Sequence[int], settings: Evaluation, streams: Streams, lenient: bool = False
) -> TestSet:
    """A test on these images of a set, domain by domain where it has several; `lenient` as for a `TestSet`."""
    domain, names = faces.domain, np.array(faces.domains)
    named = names[domain[np.asarray(images)]] if domain is not None else None
    return TestSet(Faces(faces, images), settings, streams, named, lenient)


class Domain:
    """The images of one domain among those of a test; where it has too few people for pairs, it has no accuracy."""

    def __init__(self, images: NDArray[np.int64], labels: NDArray[np.int64], settings: Evaluation, streams: Streams):
        self.images, self.labels, self.settings = images, labels[images], settings
        self.pairs = _draw_pairs(self.labels, settings, streams, lenient=True)
        order = streams.numpy("gallery").permutation(len(images))
        self.gallery = order[np.unique(self.labels[order], return_index=True)[1]]
        self.probes = np.setdiff1d(order, self.gallery)

    def score(self, embeddings: NDArray[np.float32]) -> Score:
        """Scores from the embeddings of all images of the test."""
        own = embeddings[self.images]
        score = _verified(own, self.pairs, self.settings)
        score["tar"] = _by_far(self.settings, all_pairs_verification(own, self.labels, self.settings.fars).rates)
        if len(self.probes):
            score[RANK_1] = float(np.mean(self.found(embeddings)))
        return score

    def found(self, embeddings: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each of the images that are no person's gallery image finds its own person there first."""
        own = embeddings[self.images]
        first = self.gallery[(own[self.probes] @ own[self.gallery].T).argmax(axis=1)]
        return np.asarray(self.labels[first] == self.labels[self.probes])


def _draw_pairs(labels: NDArray[np.int64], settings: Evaluation, streams: Streams, lenient: bool) -> Pairs | None:
    """The pairs that an accuracy is taken over; none where none are asked for, or too few people are let pass."""
    if not settings.pairs:
        return None
    try:
        return make_pairs(labels, settings.pairs, streams.numpy("test pairs"))
    except FedVisageError:
        if lenient:
            return None
        raise


def _verified(embeddings: NDArray[np.float32], pairs: Pairs | None, settings: Evaluation) -> Score:
    if pairs is None:
        return {}
    left, right, same = embeddings[pairs.left], embeddings[pairs.right], pairs.same
    accuracy = kfold_accuracy(left, right, same, rule=settings.rule)
    score: Score = {"accuracy": accuracy.mean, "accuracy_std": accuracy.std}
    if settings.rule != "exact":
        score["exact_accuracy"] = kfold_accuracy(left, right, same, rule="exact").mean
    return score


def _by_far(settings: Evaluation, rates: Sequence[Rate]) -> dict[str, float]:
    return {f"{far:g}": float(rate) for far, rate in zip(settings.fars, rates, strict=True)}
