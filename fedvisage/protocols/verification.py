"""Verification protocols: LFW and its kin, RFW by race, and all pairs of a folder of faces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.config import Evaluation
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import auc, bootstrap_accuracy, bootstrap_tar, eer, kfold_accuracy, tars_at_fars
from fedvisage.evaluation.curves import accept_counts, corners
from fedvisage.evaluation.influence import Trials, accuracy_influence, every_pair, listed_pairs, tar_influence
from fedvisage.evaluation.streaming import UnitBlocks
from fedvisage.evaluation.verification import COARSE, Accuracy, Rule, cosines, fold_of_each
from fedvisage.faces.faceset import Faces, Indices
from fedvisage.faces.importing.folds import one_kind, refuse_one_kind
from fedvisage.faces.lists import PairList
from fedvisage.models import OF_PAIRS
from fedvisage.protocols.protocol import (
    CENTRE_OF_PAIRS,
    CHOICES,
    CONVENTION,
    RULE,
    Options,
    Result,
    mean_and_spread,
    protocol,
)
from fedvisage.protocols.subject import Data, Subject, some_of
from fedvisage.scoring import TestSet

RACES = "pairs."
FROM_TEST_PEOPLE = "embeddings less their mean over the test pairs: a centre from test people"


@protocol(
    "lfw",
    "accuracy over the folds of a pair list (LFW, CFP-FP, AgeDB-30, CALFW, CPLFW, ...), TAR at FAR",
    takes=CHOICES,
)
def lfw(data: Data, subject: Subject, options: Options) -> Result:
    """The list `pairs` by insightface's rule: embeddings with flip, best threshold of the other folds."""
    return on_pairs(data, "pairs", subject, options, options.fars or (1e-3,))


@protocol(
    "rfw",
    "accuracy over ten folds and TAR at FAR of each race's pair list, mean and spread over races",
    takes=CHOICES,
)
def rfw(data: Data, subject: Subject, options: Options) -> Result:
    """The lists `pairs.<race>`; threshold and TAR are each race's own, as RFW reports them."""
    races = sorted(name.removeprefix(RACES) for name in data.lists if name.startswith(RACES))
    if not races:
        known = ", ".join(data.lists) or "none"
        raise FedVisageError(f"{data.folder} has no pair list of a race ('{RACES}<race>'); its lists: {known}")
    fars = options.fars or (0.1, 0.01, 0.001)
    each = {race: on_pairs(data, RACES + race, subject, options, fars) for race in races}
    result = Result()
    for race, one in each.items():
        result.merge(race, one)
    if len(races) > 1:
        for name, (mean, spread) in mean_and_spread(each, ["accuracy"]).items():
            result.metrics |= {f"mean {name}": mean, f"spread {name}": spread}
    return result


def on_pairs(data: Data, name: str, subject: Subject, options: Options, fars: tuple[float, ...]) -> Result:
    """Accuracy over the folds of one pair list, and TAR at FAR over all its pairs."""
    pairs = data.list(name, PairList)
    if not len(pairs):
        raise FedVisageError(f"the list '{name}' of {data.folder} is empty")
    flip = options.flips(subject)
    left = data.images(pairs.left, f"the list '{name}'")
    right = data.images(pairs.right, f"the list '{name}'")
    rows, result = subject.embeddings(data, flip, np.concatenate([left, right])), Result()
    a, b = some_of(rows, left), some_of(rows, right)
    rule, convention = options.rule or RULE, options.convention or CONVENTION
    if options.centre == OF_PAIRS:
        a, b = less_mean(a, b)
        result.note(FROM_TEST_PEOPLE)
    same = pairs.same.astype(np.bool_)
    folds = _folds(data, name, pairs, rule, result)
    accuracy = kfold_accuracy(a, b, same, folds, rule=rule) if folds is not None else UNKNOWN
    score = cosines(a, b)
    genuine, impostor = score[same], score[~same]
    result.metrics["accuracy"] = accuracy.mean
    if folds is not None:
        _warn_of_grid(a, b, same, folds, rule, accuracy.mean, result)
    for rate in tars_at_fars(genuine, impostor, fars, convention):
        result.rate(f"TAR@{rate.far:g}", rate)
    result.counts = {
        "pairs": len(pairs),
        "genuine": len(genuine),
        "impostor": len(impostor),
        "folds": len(accuracy.per_fold),
    }
    result.details = {
        "std": accuracy.std if folds is not None else None,
        "folds": accuracy.per_fold,
        "thresholds": accuracy.thresholds,
        "eer": eer(genuine, impostor),
        "auc": auc(genuine, impostor),
    }
    who = data.faces.labels[left], data.faces.labels[right]
    told = np.array_equal(who[0] == who[1], same)
    if options.curves:
        result.details |= _curves(genuine, impostor)
    if options.resamples and folds is not None:
        if not told:
            raise FedVisageError(f"{data.folder} does not say whose images they are: no intervals over people")
        rng = Streams(options.seed).numpy("resamples")
        found = bootstrap_accuracy(a, b, *who, rng, folds=folds, rule=rule, resamples=options.resamples)
        result.interval("accuracy", found)
    if options.influence and told:
        people = len(data.faces.names)
        result.influence = tar_influences(listed_pairs(score, *who, people), fars, result)
        if folds is not None:
            result.influence["accuracy"] = accuracy_influence(a, b, *who, people, folds, rule)
    _name_rule(rule, result)
    if convention != CONVENTION:
        result.note(f"TAR by the convention '{convention}'")
    if not flip:
        result.note("no flip test")
    return result


def _warn_of_grid(
    a: ArrayLike, b: ArrayLike, same: ArrayLike, folds: int | ArrayLike, rule: Rule, accuracy: float, result: Result
) -> None:
    """Say where a rule's grid of thresholds is too coarse for how close the scores of these pairs lie."""
    if rule in ("exact", "best"):
        return
    exact = kfold_accuracy(a, b, same, folds, rule="exact").mean
    if exact - accuracy > COARSE:
        result.note(
            f"the thresholds of rule '{rule}' are too coarse for these scores: by an exact threshold (--rule exact) "
            f"accuracy is {100 * exact:.2f}"
        )


def _name_rule(rule: Rule, result: Result) -> None:
    """Say by which rule an accuracy is, where it is not the usual one."""
    if rule != RULE:
        result.note(f"accuracy by the rule '{rule}'")


UNKNOWN = Accuracy(math.nan, math.nan, (), ())
FOLDS = 10


def _folds(data: Data, name: str, pairs: PairList, rule: Rule, result: Result) -> Indices | None:
    """The fold of each pair: the list's own, or ten in a row; None where accuracy over folds would mean nothing.

    Folds of same pairs only, or of different ones only, are refused: lists were once imported with such.
    """
    same = pairs.same.astype(np.bool_)
    if rule == "best":
        return np.zeros(len(pairs), np.int64)
    if len(np.unique(pairs.fold)) > 1:
        own: Indices = np.unique(pairs.fold, return_inverse=True)[1] + 1
        where = f"the list '{name}' of {data.folder}"
        refuse_one_kind(own, same, where, "import the set again, which assigns folds anew")
        return pairs.fold
    if len(pairs) >= FOLDS:
        row = fold_of_each(FOLDS, len(pairs), rule)
        if one_kind(row + 1, same) is None:
            result.note(f"the list has no folds: accuracy is over {FOLDS} in a row")
            return row
    result.note("accuracy: the list has no folds; --rule best gives that at the best threshold of all pairs")
    return None


def tar_influences(pairs: Trials, fars: tuple[float, ...], result: Result) -> dict[str, NDArray[np.float64]]:
    """Of the rates that the data can tell."""
    names = {far: f"TAR@{far:g}" for far in fars}
    return {name: tar_influence(pairs, far) for far, name in names.items() if np.isfinite(result.metrics[name])}


def _curves(genuine: NDArray[np.float64], impostor: NDArray[np.float64]) -> dict[str, dict[str, Any]]:
    """The corners of the ROC and DET curves; their first threshold is infinity, for which JSON has only null."""
    accepted, false, threshold = corners(*accept_counts(genuine, impostor))
    far, tar = (false / false[-1]).tolist(), (accepted / accepted[-1]).tolist()
    at = [None, *threshold[1:].tolist()]
    return {
        "roc": {"far": far, "tar": tar, "threshold": at},
        "det": {"far": far, "frr": [1 - share for share in tar], "threshold": at},
    }


def less_mean(*sides: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Unit embeddings (N, d) less their mean over all sides, which have one length."""
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    mean = sum(side.mean(axis=0) for side in unit) / len(unit)
    return [side - mean for side in unit]


@protocol(
    "all-pairs",
    "accuracy over drawn pairs and TAR at FAR over all pairs of a folder of faces; needs no list",
    takes=("rule", "centre", CENTRE_OF_PAIRS),
)
def all_pairs(data: Data, subject: Subject, options: Options) -> Result:
    """Ten folds of seeded pairs that share nobody, and every pair there is."""
    settings = Evaluation(pairs=options.pairs, fars=options.fars or Evaluation().fars)
    test = TestSet(Faces(data.faces, np.arange(len(data.faces))), settings, Streams(options.seed))
    rows = subject.embeddings(data, options.flips(subject))
    result, rule = Result(), options.rule or RULE
    unit = UnitBlocks("the images", rows, 1024, np.float32).all()
    if options.centre == OF_PAIRS:
        unit = UnitBlocks("the images", less_mean(unit)[0], 1024, np.float32).all()
        result.note(FROM_TEST_PEOPLE)
    score = test.score_embeddings(unit)
    if test.pairs is not None:
        left, right, same = test.pairs
        a, b, who = unit[left], unit[right], (test.labels[left], test.labels[right])
        accuracy = kfold_accuracy(a, b, same, rule=rule)
        result.metrics["accuracy"], score["accuracy_std"] = accuracy.mean, accuracy.std
        _warn_of_grid(a, b, same, 10, rule, accuracy.mean, result)
    for far, rate in zip(settings.fars, test.rates, strict=True):
        result.rate(f"TAR@{far:g}", rate)
    result.counts = test.describe()
    result.details = {name: score[name] for name in ("accuracy_std", "histogram") if name in score}
    if options.resamples:
        for rate in test.rates:
            if rate.reason is None:
                rng = Streams(options.seed).numpy("resamples", f"{rate.far:g}")
                found = bootstrap_tar(unit, test.labels, rate.far, rng, resamples=options.resamples, dtype=np.float32)
                result.interval(f"TAR@{rate.far:g}", found)
    if options.influence:
        result.influence = tar_influences(every_pair(unit, test.labels, max(settings.fars)), settings.fars, result)
    if test.pairs is not None:
        if options.curves:
            cosine = cosines(a, b)
            result.details |= _curves(cosine[same], cosine[~same])
        if options.resamples:
            rng = Streams(options.seed).numpy("resamples")
            result.interval("accuracy", bootstrap_accuracy(a, b, *who, rng, rule=rule, resamples=options.resamples))
        if options.influence:
            result.influence["accuracy"] = accuracy_influence(a, b, *who, test.faces.classes, rule=rule)
        _name_rule(rule, result)
    if options.pairs:
        result.note(f"{options.pairs:,} pairs drawn with seed {options.seed}")
    return result
