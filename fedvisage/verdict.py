"""The answer of a run: did federating help, against a control that trains nothing, and what in its numbers misleads.

Every model is scored twice: raw, and centred, with the mean of the parties' training people taken out (see
`evaluation.gap`). Which of the two counts is chosen on validation people. The control is the better of the start raw
and the start centred; where the start was trained on nobody, a party alone. Test people choose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedvisage.config import Recipe
from fedvisage.core.phase import TARGET, VALIDATOR
from fedvisage.evaluation.gap import (
    CENTRED,
    OWN,
    RAW,
    Answer,
    Estimate,
    Measured,
    answer,
    centred,
    counted_images,
    measured,
)
from fedvisage.evaluation.influence import packed, unpacked
from fedvisage.evaluation.spread import spread
from fedvisage.evaluation.verification import COARSE
from fedvisage.faces.faceset import Faces, FaceSet
from fedvisage.faces.shares import Share
from fedvisage.models import Backbone
from fedvisage.scoring import Score, TestSet
from fedvisage.training import embed_images, means_of_people

Floats = NDArray[np.float64]

EVERYBODY = ""
"""In the place of a domain's name."""
START, ALONE, CENTRAL = "start", "alone", "central"
NAMES = {START: "the start", ALONE: "a party alone", CENTRAL: "pooling all images"}

CALLED = {
    RAW: "",
    CENTRED: " centred on the training people",
    OWN: " centred on its own domain's training people",
}

NARROW = 0.95
"""Mean cosine of two people above which embeddings are called drawn together, unless the start's were as close."""
CLOSER = 0.5
"""Share of the start's distance between two people below which embeddings are called drawn together."""
APART = 0.005
"""Differences of accuracy and of TAR that count as a direction."""


def training_centres(model: Backbone, faces: FaceSet, shares: Sequence[Share]) -> dict[str, Floats]:
    """Return the mean (d,), over the parties' training people, of each person's mean unit embedding by this model.

    Under `EVERYBODY` that of all; where the faces have several domains, also that of each domain under its name. A
    person at two parties counts at both, as in a sum over parties. Of a party without labels each image counts.
    """
    sums: dict[str, Floats] = {}
    for share in shares:
        train = np.asarray(share.train, np.int64)
        if not len(train) or share.role == VALIDATOR:
            continue
        domain = faces.domain[train] if faces.domain is not None else np.zeros(len(train), np.int64)
        for number in np.unique(domain):
            own = Faces(faces, train[domain == number], labelled=share.role != TARGET)
            if own.labels is None:
                each = embed_images(model, own, flip=False, normalise=True).astype(np.float64)
            else:
                each = means_of_people(model, own, flip=False)
            for name in {EVERYBODY, faces.domains[number] if len(faces.domains) > 1 else EVERYBODY}:
                sums[name] = sums.get(name, 0) + np.append(each.sum(axis=0), len(each))
    return {name: total[:-1] / total[-1] for name, total in sums.items()}


def scored(model: Backbone, test: TestSet, validation: TestSet | None, centres: Mapping[str, Floats]) -> Score:
    """Return a model's scores on the test people; those that the run's answer rests on are under `people`.

    These say by variant how the model scores on test and validation people, how much each test person moves that, and
    how much room the embeddings use. Each domain of the test has the same of its own.
    """
    plain = test.embeddings(model, flip=False)
    score = test.score_embeddings(test.embeddings(model, flip=True) if test.settings.flip else plain, curve=True)
    parts = (EVERYBODY, *test.domains)
    found: dict[str, dict[str, Any]] = {part: {"test": {}, "validation": {}, "influence": {}} for part in parts}
    _add_scores(found, "test", test, plain, centres)
    if validation:
        _add_scores(found, "validation", validation, validation.embeddings(model, flip=False), centres)
    for name, own in score.get("domains", {}).items():
        own["people"] = found[name]
    return score | {"people": found[EVERYBODY]}


def _add_scores(
    found: Mapping[str, dict[str, Any]],
    name: str,
    people: TestSet,
    embeddings: NDArray[np.float32],
    centres: Mapping[str, Floats],
) -> None:
    """Add the scores of all people, and of each domain's, under `test` or `validation`."""
    for part, record in found.items():
        images = people.domains[part].images if part in people.domains else np.arange(len(people.labels))
        if part == EVERYBODY or part in people.domains:
            _score(record, name, embeddings[images], people.labels[images], people.faces.names, part, centres)


def _score(
    record: dict[str, Any],
    name: str,
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    names: Sequence[str],
    part: str,
    centres: Mapping[str, Floats],
) -> None:
    """Add the scores of some people to a record, under `test` or `validation`."""
    chosen = counted_images(labels, names)
    unit, identity = embeddings[chosen], labels[chosen]
    if name == "test":
        record["spread"] = asdict(spread(unit, identity))
    moved = {RAW: unit}
    for variant, centre in ((CENTRED, EVERYBODY), (OWN, part)):
        if centre in centres and (variant == CENTRED or part != EVERYBODY):
            moved[variant] = centred(unit, centres[centre])
    for variant, values in moved.items():
        one = measured(values, identity)
        if one is not None:
            record[name][variant] = one.score
            if name == "test":
                record["influence"][variant] = packed(one.influence)


def mean_judged(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over parties that have a model each."""
    found: dict[str, Any] = {
        part: {name: float(np.mean([one[part][name] for one in each])) for name in each[0][part]}
        for part in ("test", "validation", "spread")
    }
    influence = each[0]["influence"]
    means = {name: packed(np.mean([unpacked(one["influence"][name]) for one in each], axis=0)) for name in influence}
    return found | {"influence": means}


def chosen_variant(row: Mapping[str, Any]) -> str:
    """Return the variant that counts: the better one on validation people, raw where there are none."""
    known = row["validation"]
    return max(known, key=known.__getitem__) if known else RAW


class Ended(NamedTuple):
    """Where a method ended a federation before the recipe's last round, and why."""

    round: int
    reason: str


def conclusion(scores: Mapping[str, Score], recipe: Recipe, ended: Mapping[str, Ended]) -> dict[str, Any]:
    """Return what `evaluation.json` keeps beside the scores: the `answer` and those by domain, and `warnings`.

    There is `ended`, too, where methods ended their federations before the last round.
    """
    method = recipe.method["name"]
    trained = recipe.backbone.start is not None or recipe.pretrain.epochs > 0
    found = run_answer(scores, method, trained)
    said = warnings(scores, method, found, recipe.evaluation.rule)
    domains = {}
    for domain in scores.get(method, {}).get("domains", {}):
        of = {name: score["domains"][domain] for name, score in scores.items() if "domains" in score}
        domains[domain] = run_answer(of, method, trained)
    rounds = recipe.federation.rounds
    early = [f"{name} ended after round {one.round} of {rounds}: {one.reason}" for name, one in ended.items()]
    return {
        "answer": found,
        "answers": {name: one for name, one in domains.items() if one},
        "warnings": [*early, *said],
        **({"ended": {name: one._asdict() for name, one in ended.items()}} if ended else {}),
    }


def run_answer(scores: Mapping[str, Score], method: str, trained_start: bool) -> dict[str, Any] | None:
    """Return whether the method helps; None where the run compares it with nothing.

    The control is the start, or a party alone where the start was trained on nobody.
    """
    rows = {name: score["people"] for name, score in scores.items() if score.get("people", {}).get("test")}
    control = START if trained_start or ALONE not in rows else ALONE
    if method not in rows or control not in rows or method in (ALONE, CENTRAL):
        return None
    upper = CENTRAL if CENTRAL in rows else None
    variants = {name: chosen_variant(row) for name, row in rows.items()}
    taken = {name: _measured(rows[name], variants[name]) for name in rows}
    found = answer([taken[method]], [taken[control]], [taken[upper]] if upper else None)
    return {
        "method": method,
        "control": control,
        "upper": upper,
        "variants": variants,
        "validated": bool(rows[method]["validation"]),
        "scores": {name: one.score for name, one in taken.items()},
        "sentence": sentence(found, method, taken[method].score, _called(control, variants), upper),
        **found.table(),
    }


def _measured(row: Mapping[str, Any], variant: str) -> Measured:
    return Measured(row["test"][variant], unpacked(row["influence"][variant]))


def _called(name: str, variants: Mapping[str, str]) -> str:
    return NAMES.get(name, name) + CALLED[variants[name]]


def sentence(found: Answer, method: str, score: float, control: str, upper: str | None) -> str:
    """Return the answer in words."""
    gain = found.gain
    lead = {
        "helps": f"Federating helps: {method}",
        "hurts": f"Federating hurts: {method}",
        "cannot tell": f"Cannot tell from {found.people} people whether federating helps: {method}",
    }[found.verdict]
    said = f"{lead} accepts {100 * score:.1f}% of genuine pairs at a false accept rate of 0.01, {_points(gain)} "
    said += f"{'more' if gain.value >= 0 else 'less'} than {control}."
    if found.would_do:
        said += f" About {found.would_do:,} people would do."
    if upper is None or found.gap is None or found.shortfall is None:
        return said
    if found.share is None:
        return f"{said} The gap from there to {NAMES[upper]}, {_points(found.gap)}, is too small to divide."
    share = found.share
    return (
        f"{said} That is {100 * share.value:.0f}% ({100 * share.low:.0f} to {100 * share.high:.0f}) of the way to "
        f"{NAMES[upper]}, {_points(found.shortfall)} short of it."
    )


def _points(estimate: Estimate) -> str:
    """Return a difference without its sign, and its interval in the same direction."""
    sign = -1 if estimate.value < 0 else 1
    low, high = sorted((100 * sign * estimate.low, 100 * sign * estimate.high))
    interval = f"{low:.1f} to {high:.1f}".replace("-", "−")
    return f"{100 * abs(estimate.value):.1f} points (95% interval {interval})"


def warnings(scores: Mapping[str, Score], method: str, found: Mapping[str, Any] | None, rule: str) -> list[str]:
    """Return what would mislead a reader of a run's scores, a sentence each."""
    said = []
    start = scores.get(START, {})
    for name, score in scores.items():
        who = NAMES.get(name, name)
        people = score.get("people") or {}
        said += _drawn_together(who, people.get("spread"), (start.get("people") or {}).get("spread"), name == START)
        if score.get("exact_accuracy", 0) - score.get("accuracy", 1) > COARSE:
            said.append(
                f"The {rule} rule cannot separate the pairs of {who}: accuracy {100 * score['accuracy']:.1f}%, by an "
                f"exact threshold {100 * score['exact_accuracy']:.1f}%."
            )
        if people.get("test", {}).get(chosen_variant(people) if people else RAW, 1) <= 2 * 0.01:
            said.append(f"The score of {who} is at chance.")
    if found is None:
        return said
    control, variants = found["control"], found["variants"]
    if found["gain"]["value"] < 0:
        said.append(f"{method} is below its control, {_called(control, variants)}.")
    said += _disagreement(scores, method, control)
    if not found["validated"]:
        best = scores[control]["people"]["test"].get(CENTRED, 0)
        if best > found["scores"][control]:
            said.append(
                f"Without validation people the raw scores count. Centred on the training people, which trains "
                f"nothing, {NAMES[control]} has {100 * best:.1f}%: set partition.validation to let them choose."
            )
    return said


def _drawn_together(
    who: str, own: Mapping[str, float] | None, before: Mapping[str, float] | None, is_start: bool
) -> list[str]:
    if not own or not math.isfinite(own["impostor"]):
        return []
    narrow = own["impostor"] > NARROW
    if not is_start and before:
        apart, was = 1 - own["impostor"], 1 - before["impostor"]
        narrow = apart < CLOSER * was and own["impostor"] > 0.5
    if not narrow:
        return []
    return [
        f"The embeddings of {who} have drawn together: two people have a mean cosine of {own['impostor']:.3f}"
        + (f", {before['impostor']:.3f} at the start." if before and not is_start else ".")
    ]


def _disagreement(scores: Mapping[str, Score], method: str, control: str) -> list[str]:
    one, other = scores[method], scores[control]
    if "accuracy" not in one or "accuracy" not in other:
        return []
    accuracy = one["accuracy"] - other["accuracy"]
    tar = one["people"]["test"][RAW] - other["people"]["test"][RAW]
    if accuracy * tar >= 0 or min(abs(accuracy), abs(tar)) < APART:
        return []
    return [
        f"Accuracy and TAR disagree: {method} is {100 * accuracy:+.1f} points from {NAMES[control]} in accuracy and "
        f"{100 * tar:+.1f} in TAR at FAR 0.01, both raw."
    ]
