"""Verification over all unordered pairs of a set of embeddings, in blocks: exact, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Ints
from fedvisage.evaluation.rates import Rate, allowed_accepts, exact_rate
from fedvisage.evaluation.streaming import Largest, precision


@dataclass(frozen=True)
class AllPairs:
    """Verification over all pairs: how many there are of each kind, and the exact rate at each false-accept rate."""

    genuine: int
    impostor: int
    rates: tuple[Rate, ...]

    @property
    def tar(self) -> dict[float, float]:
        """True-accept rate per false-accept rate; NaN below the resolution."""
        return {rate.far: rate.value for rate in self.rates}

    @property
    def threshold(self) -> dict[float, float]:
        """Cosine per false-accept rate, above which a pair is accepted; NaN below the resolution."""
        return {rate.far: rate.threshold for rate in self.rates}


def all_pairs_verification(
    embeddings: ArrayLike,
    labels: ArrayLike,
    fars: Iterable[float],
    *,
    block: int = 1024,
    dtype: DTypeLike = np.float64,
) -> AllPairs:
    """TAR at each of `fars` over all unordered pairs of embeddings (M, d) with identities `labels` (M,), by cosine.

    `tar_at_far`'s "exact" convention. All genuine scores are held, but of the N impostor scores only the largest
    floor(max(fars) N) + 1. dtype=np.float32 halves the time; scores then carry its rounding.
    """
    fars = list(fars)
    if not fars:
        raise FedVisageError("no false-accept rate given")
    _, identity = checks.identities(labels)
    genuine_count, impostor_count = count_pairs(np.bincount(identity))
    if not genuine_count or not impostor_count:
        raise FedVisageError(
            f"{genuine_count} genuine and {impostor_count} impostor pairs among {len(identity)} embeddings: "
            "verification needs both kinds"
        )
    allowed = [allowed_accepts(far, impostor_count) for far in fars]
    top = Largest(min(max(allowed) + 1, impostor_count))
    parts = []
    for same, different in pair_scores(embeddings, labels, block=block, dtype=dtype):
        parts.append(same)
        top.add(different)
    genuine, impostor = np.concatenate(parts), top.descending()
    rates = tuple(exact_rate(genuine, impostor, impostor_count, far) for far in fars)
    return AllPairs(genuine_count, impostor_count, rates)


def count_pairs(images: Ints) -> tuple[int, int]:
    """Numbers of genuine and impostor pairs among identities with `images` (C,) images each."""
    genuine = sum(n * (n - 1) // 2 for n in images.tolist())
    total = int(images.sum())
    return genuine, total * (total - 1) // 2 - genuine


def pair_scores(
    embeddings: ArrayLike, labels: ArrayLike, *, block: int = 1024, dtype: DTypeLike = np.float64
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cosines of all unordered pairs of embeddings (M, d), as (genuine scores, impostor scores) of one block at a time.

    A block compares at most `block` embeddings with as many others. The order of the scores is not specified.
    """
    for scores, row, column in score_blocks(embeddings, labels, block=block, dtype=dtype):
        if row is column:
            upper = np.triu(np.ones(scores.shape, dtype=np.bool_), 1)
            same = row[:, None] == column
            yield scores[same & upper], scores[~same & upper]
        elif row[-1] < column[0]:  # identities ascend, so these two blocks share none
            yield scores[:0, 0], scores.ravel()
        else:
            same = row[:, None] == column
            yield scores[same], scores[~same]


def score_blocks(
    embeddings: ArrayLike, labels: ArrayLike, *, block: int, dtype: DTypeLike
) -> Iterator[tuple[NDArray[Any], Ints, Ints]]:
    """Blocks of the upper triangle of the cosine matrix, with the identities of their rows and columns, ascending.

    The row and column identities of a diagonal block are one object; of its scores only those above the diagonal are
    pairs.
    """
    if block < 1:
        raise FedVisageError(f"block must be at least 1, got {block}")
    precision(dtype)
    vectors = checks.embeddings("embeddings", embeddings)
    _, identity = checks.identities(labels, len(vectors))
    order = np.argsort(identity, kind="stable")
    unit = checks.unit_rows("embeddings", vectors[order]).astype(dtype, copy=False)
    starts = range(0, len(unit), block)
    identities = [identity[order[start : start + block]] for start in starts]
    for i, row in enumerate(starts):
        for j, column in enumerate(starts[i:], start=i):
            yield unit[row : row + block] @ unit[column : column + block].T, identities[i], identities[j]
