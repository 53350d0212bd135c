"""Does a method help? Its gain over a control that trains nothing, and the share of the gap to an upper bound.

The score S of a model is the TAR at FAR 0.01 over all pairs of at most 20 images of each test person, without mirror
images. With c the control, u the upper bound and m the method: gap G = S(u) - S(c), gain g = S(m) - S(c), shortfall
h = S(u) - S(m), share = g / G. Seeds are averaged before dividing.

An interval draws the test people anew, one draw for all models and all seeds that are tested on the same people. To
first order a draw moves a score by the influences of its people (see `influence`). Several seeds add the spread of
their differences by Student's t.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation._checks import Floats, Ints
from fedvisage.evaluation.all_pairs import count_pairs
from fedvisage.evaluation.influence import every_pair, tar_influence
from fedvisage.evaluation.rates import allowed_accepts

FAR = 0.01
IMAGES = 20
"""Most images of a person that count towards the score."""
RESAMPLES = 2000
LEVEL = 0.95
NORMAL = 1.96
"""Standard errors from the middle of a normal interval of that level to its end."""
ENOUGH = 30
"""People below which no verdict is given."""
DIVISIBLE = 4
"""Standard errors that the gap must have before anything is divided by it."""

RAW, CENTRED, OWN = "raw", "centred", "own domain"
"""Variants of every model: unit embeddings as they are, less the mean of all training people, less that of a domain."""

Verdict = Literal["helps", "hurts", "cannot tell"]


@dataclass(frozen=True)
class Measured:
    """The score of one model under one seed, and how much each test person moves it."""

    score: float
    influence: Floats
    """(people,)"""
    people: str = ""
    """Names the set of test people; runs with the same name share each draw."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval, and the standard error that a normal interval of that width has."""

    value: float
    low: float
    high: float
    error: float


@dataclass(frozen=True)
class Answer:
    """Whether a method helps, measured against a control and, where there is one, an upper bound."""

    verdict: Verdict
    people: int
    would_do: int | None
    """People with whom the gain could be told from none, where it cannot be told from `people`."""
    gain: Estimate
    gap: Estimate | None = None
    shortfall: Estimate | None = None
    share: Estimate | None = None
    """None without an upper bound, and where the gap is too small to divide by."""

    def table(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return asdict(self)


def counted_images(labels: ArrayLike, names: Sequence[str], most: int = IMAGES) -> Ints:
    """Return the positions (M,), ascending, of at most `most` images of each person, drawn by the person's name.

    `labels` (N,) says whose each image is, `names` how each person is called.
    """
    order = np.argsort(np.asarray(labels), kind="stable")
    starts = np.flatnonzero(np.diff(np.asarray(labels)[order], prepend=-1))
    chosen = []
    for own in np.split(order, starts[1:]):
        name = names[int(np.asarray(labels)[own[0]])]
        ranks = [hashlib.sha256(f"{name}\n{number}".encode()).digest() for number in range(len(own))]
        chosen += [int(own[place]) for place in sorted(range(len(own)), key=ranks.__getitem__)[:most]]
    return np.sort(np.array(chosen, dtype=np.int64))


def measured(embeddings: ArrayLike, labels: ArrayLike, people: str = "") -> Measured | None:
    """Return the score of embeddings (M, d) of persons `labels` (M,), 0 and up; None with too few impostor pairs."""
    genuine, impostors = count_pairs(np.bincount(np.asarray(labels)))
    allowed = allowed_accepts(FAR, impostors)
    if allowed < 1 or not genuine:
        return None
    trials = every_pair(embeddings, labels, FAR)
    score = float(np.mean(trials.genuine > trials.impostor[allowed]))
    return Measured(score, tar_influence(trials, FAR), people)


def centred(embeddings: ArrayLike, centre: ArrayLike) -> NDArray[np.float32]:
    """Return unit embeddings (N, d) moved by a centre (d,) and brought back to unit length."""
    moved = np.asarray(embeddings, np.float64) - np.asarray(centre, np.float64)
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.asarray(moved / np.where(length > 0, length, 1), np.float32)


def answer(
    method: Sequence[Measured],
    control: Sequence[Measured],
    upper: Sequence[Measured] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Answer:
    """Compare a method with its control and its upper bound, each with one entry per seed in the same order."""
    rows = [method, control, *([upper] if upper else [])]
    if len({len(row) for row in rows}) != 1 or not method:
        raise FedVisageError("the method, its control and its upper bound need the same seeds, at least one")
    scores = np.array([[one.score for one in row] for row in rows])
    draws = _draws(rows, resamples, np.random.default_rng(seed))
    gain = _estimate(scores[0] - scores[1], draws[0] - draws[1])
    people = min(np.count_nonzero(sum(np.abs(row[k].influence) for row in rows)) for k in range(len(method)))
    verdict, would_do = _verdict(gain, int(people))
    if not upper:
        return Answer(verdict, int(people), would_do, gain)
    gap = _estimate(scores[2] - scores[1], draws[2] - draws[1])
    shortfall = _estimate(scores[2] - scores[0], draws[2] - draws[0])
    share = None
    if gap.value >= DIVISIBLE * gap.error and gap.value > 0:
        drawn = (gain.value + draws[0] - draws[1]) / (gap.value + draws[2] - draws[1])
        share = _interval(gain.value / gap.value, drawn)
    return Answer(verdict, int(people), would_do, gain, gap, shortfall, share)


def _draws(rows: Sequence[Sequence[Measured]], resamples: int, rng: np.random.Generator) -> Floats:
    """How far each draw of people and seeds moves the mean score of each row, (rows, resamples)."""
    seeds = len(rows[0])
    moved = np.zeros((len(rows), resamples))
    weights: dict[str, Floats] = {}
    for k in range(seeds):
        influence = np.stack([row[k].influence for row in rows])
        people = influence.shape[1]
        name = rows[0][k].people or f"seed {k}"
        if name not in weights:
            drawn = rng.multinomial(people, np.full(people, 1 / people), size=resamples)
            weights[name] = np.asarray((drawn - 1) * math.sqrt(people / max(people - 1, 1)), np.float64)
        moved += influence @ weights[name].T / seeds
    if seeds > 1:
        scores = np.array([[one.score for one in row] for row in rows])
        rest = scores - scores.mean(axis=1, keepdims=True)
        normal = rng.standard_normal((seeds, resamples)) / math.sqrt(seeds * (seeds - 1))
        moved += rest @ (normal / np.sqrt(rng.chisquare(seeds - 1, resamples) / (seeds - 1)))
    return moved


def _estimate(differences: Floats, moved: Floats) -> Estimate:
    value = float(differences.mean())
    return _interval(value, value + moved)


def _interval(value: float, drawn: Floats) -> Estimate:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high), float(high - low) / (2 * NORMAL))


def _verdict(gain: Estimate, people: int) -> tuple[Verdict, int | None]:
    """Say what the gain's interval allows, and how many people would do where it allows nothing."""
    if people >= ENOUGH and (gain.low > 0 or gain.high < 0):
        return ("helps" if gain.low > 0 else "hurts"), None
    half = (gain.high - gain.low) / 2
    if gain.value == 0:
        return "cannot tell", None
    return "cannot tell", max(ENOUGH, math.ceil(people * (half / gain.value) ** 2))
