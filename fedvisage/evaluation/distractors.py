"""Probes among any number of distractors (MegaFace): read in blocks, and of their scores only the best are kept.

For every probe and every other image of its person, that image is hidden among all distractors; rank-k is the share of
those trials in which fewer than k distractors score at least as much. TAR at FAR compares the same genuine scores with
all probe-distractor scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.rates import Rate, allowed_accepts, exact_rate
from fedvisage.evaluation.streaming import Embeddings, Largest, UnitBlocks, precision, same_width

TILE = 2**22  # scores computed at a time
PENDING = 2**18  # candidates for a probe's best distractors held before they are sorted in


@dataclass(frozen=True)
class AmongDistractors:
    """Rates of probes among distractors, and what they were counted over.

    `trials` are ordered pairs of a probe and another image of its person; `genuine` the unordered ones; `impostor` all
    probe-distractor pairs; `without_mate` probes whose person has no other image. By rank, `right` (trials,) says which
    trials succeed; `probe` (trials,) is the number of the probe of each.
    """

    ranks: dict[int, float]
    rates: tuple[Rate, ...]
    probes: int
    distractors: int
    trials: int
    genuine: int
    impostor: int
    without_mate: int
    right: dict[int, Bools]
    probe: Ints


def among_distractors(
    probes: Embeddings,
    probe_ids: ArrayLike,
    distractors: Embeddings,
    *,
    ranks: Iterable[int] = (1,),
    fars: Iterable[float] = (1e-6,),
    noisy_distractors: ArrayLike | None = None,
    block: int | None = None,
    dtype: DTypeLike = np.float32,
) -> AmongDistractors:
    """Rank-k and TAR at FAR of `probes` (P, d) with identities `probe_ids` (P,) among `distractors` (D, d), by cosine.

    Distractors marked in `noisy_distractors` (D,) never match anybody, but count as compared: MegaFace's rule for its
    list of noisy images. Ties count against the probe.
    """
    asked, targets = sorted(set(ranks)), list(fars)
    if not asked or asked[0] < 1:
        raise FedVisageError(f"ranks must be whole numbers of at least 1, got {asked}")
    units = UnitBlocks("probes", probes, checks.ROWS, dtype)
    unit = units.all()
    _, identity = checks.identities(probe_ids, len(unit))
    size = block if block is not None else max(16, TILE // len(unit))
    others = UnitBlocks("distractors", distractors, size, dtype)
    same_width("probes", units.values, "distractors", others.values)
    noisy = _marks(noisy_distractors, len(others))
    who, mate = _genuine(unit, identity)
    if not mate.size:
        raise FedVisageError(f"0 genuine pairs among {len(unit)} probes: nobody has two images")
    impostors = len(unit) * len(others)
    allowed = [allowed_accepts(far, impostors) for far in targets]
    best, top = _scan(unit, others, noisy, min(asked[-1], len(others)), max(allowed, default=-1) + 1)
    right = {}
    for k in asked:
        beaten = best[who, -k] if k <= best.shape[1] else np.full(len(who), -np.inf)
        right[k] = mate > beaten
    shares = {k: int(np.count_nonzero(hits)) / mate.size for k, hits in right.items()}
    single = len(unit) - len(np.unique(who))
    rates = tuple(exact_rate(mate, top, impostors, far) for far in targets)
    return AmongDistractors(
        shares, rates, len(unit), len(others), mate.size, mate.size // 2, impostors, single, right, who
    )


def replace_noisy_probes(
    probes: ArrayLike,
    probe_ids: ArrayLike,
    noisy: ArrayLike,
    rng: np.random.Generator,
    centre: Literal["sum", "mean"] = "mean",
) -> NDArray[np.float32]:
    """Noisy probes replaced by the sum or mean of their person's other unit embeddings + U(-0.001, 0.001).

    InsightFace's script for MegaFace's noise lists adds the noise to the sum. Gives unit vectors (P, d). A person all
    of whose images are noisy is refused.
    """
    unit = checks.unit_rows("probes", probes)
    names, identity = checks.identities(probe_ids, len(unit))
    marked = _marks(noisy, len(unit))
    middle = np.zeros((len(names), unit.shape[1]))
    np.add.at(middle, identity[~marked], unit[~marked])
    clean = np.bincount(identity[~marked], minlength=len(names))
    lost = np.unique(identity[marked & (clean[identity] == 0)])
    if lost.size:
        raise FedVisageError(f"{lost.size} people have noisy images only, first '{names[lost[0]]}'")
    if centre == "mean":
        middle /= np.maximum(clean, 1)[:, None]
    shift = rng.uniform(-0.001, 0.001, (int(marked.sum()), unit.shape[1]))
    unit[marked] = checks.unit_rows("probes", middle[identity[marked]] + shift) if marked.any() else unit[marked]
    return unit.astype(np.float32)


def _marks(noisy: ArrayLike | None, count: int) -> Bools:
    marked = np.zeros(count, np.bool_) if noisy is None else np.asarray(noisy)
    if marked.dtype != np.bool_ or marked.shape != (count,):
        raise FedVisageError(f"noisy must be {count} true or false, got {marked.dtype} of shape {marked.shape}")
    return marked


def _genuine(unit: NDArray[Any], identity: Ints) -> tuple[Ints, Floats]:
    """The probe (T,) and the score (T,) of every trial, both directions of a pair with one score."""
    order = np.argsort(identity, kind="stable")
    edges = np.searchsorted(identity[order], np.arange(int(identity.max()) + 2))
    who, scores = [np.empty(0, np.int64)], [np.empty(0)]
    for first, last in pairwise(edges):
        own = order[first:last]
        i, j = np.triu_indices(len(own), 1)
        values = (unit[own] @ unit[own].T)[i, j].astype(np.float64)
        who += [own[i], own[j]]
        scores += [values, values]
    return np.concatenate(who), np.concatenate(scores)


def _scan(unit: NDArray[Any], others: UnitBlocks, noisy: Bools, k: int, keep: int) -> tuple[Floats, Floats]:
    """Each probe's k best distractor scores, ascending (P, k), and the `keep` largest of all, descending."""
    best = _Best(len(unit), k)
    top = Largest(keep)
    scores = np.empty((len(unit), min(others.block, len(others))), precision(others.dtype))
    for place, block in others:
        clean = block[~noisy[place]] if noisy[place].any() else block
        if len(clean):
            best.add(np.matmul(unit, clean.T, out=scores if len(clean) == scores.shape[1] else None), top)
    if top.size:
        largest = top.descending()
        missing = min(top.size, len(unit) * len(others)) - largest.size
        return best.sorted(), np.append(largest, np.full(missing, -np.inf))  # noisy distractors: compared, never alike
    return best.sorted(), np.empty(0)


class _Best:
    """The k largest scores of every row, from blocks of columns."""

    def __init__(self, count: int, k: int) -> None:
        self.values = np.full((count, k), -np.inf)
        self.bound = np.full(count, -np.inf)
        self.rows: list[Ints] = []
        self.scores: list[NDArray[Any]] = []
        self.pending = 0

    def add(self, block: NDArray[Any], top: Largest) -> None:
        """Take in scores (P, n); what may be among the largest of all is given to `top` as well."""
        k = self.values.shape[1]
        if np.isneginf(self.bound).any():  # not every row is full: no bound to go by yet
            top.add(block.reshape(-1))
            some = block if block.shape[1] <= k else np.partition(block, block.shape[1] - k, axis=1)[:, -k:]
            self.values = np.sort(np.concatenate([self.values, some], axis=1), axis=1)[:, -k:]
            self.bound = self.values[:, 0].copy()
            return
        least = np.minimum(self.bound, top.bound).astype(block.dtype)
        hits = np.flatnonzero(block > least[:, None])
        if not hits.size:
            return
        values = block.reshape(-1)[hits]
        top.add(values)
        row = hits // block.shape[1]
        better = values > self.bound[row]
        self.rows.append(row[better])
        self.scores.append(values[better])
        self.pending += self.rows[-1].size
        if self.pending > PENDING:
            self._sort_in()

    def _sort_in(self) -> None:
        count, k = self.values.shape
        if k == 1 and self.rows:
            np.maximum.at(self.values[:, 0], np.concatenate(self.rows), np.concatenate(self.scores).astype(np.float64))
            self.bound = self.values[:, 0].copy()
            self.rows, self.scores, self.pending = [], [], 0
            return
        row = np.concatenate([np.repeat(np.arange(count), k), *self.rows])
        score = np.concatenate([self.values.reshape(-1), *self.scores])
        order = np.lexsort((score, row))
        last = np.searchsorted(row[order], np.arange(count), side="right")
        self.values = score[order][last[:, None] - k + np.arange(k)]
        self.bound = self.values[:, 0].copy()
        self.rows, self.scores, self.pending = [], [], 0

    def sorted(self) -> Floats:
        """The k largest of each row, ascending (P, k)."""
        self._sort_in()
        return self.values
