"""Identification: probes searched in a gallery, closed-set (rank-k, CMC) and open-set (TPIR at FPIR).

Two open-set measures go by one name in the papers and do not agree. "nist" asks whether a search raises an alarm: per
probe the best score counts, and a hit must also come first. "pair-count" (insightface's ijb_1n.py, CurricularFace,
opensphere, FedFR) takes its threshold from the single largest non-mate scores and asks for no rank. See `Search.tpir`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.streaming import Embeddings, Largest, UnitBlocks, precision, rows, same_width

OpenSet = Literal["nist", "exact", "pair-count"]
WithoutMate = Literal["refuse", "miss", "leave out"]

TILE = 2**21  # at most so many scores
ROWS = 2048  # and so many probes at a time


@dataclass(frozen=True)
class Tpir:
    """True-positive identification rate at a false-positive one; NaN, and `reason` says why, where it cannot be told.

    `measured_fpir` is the convention's own false-positive rate at the threshold, and `resolution` the smallest that the
    probes can show. Stands for its value in float() and in numpy functions.
    """

    value: float
    threshold: float
    fpir: float
    measured_fpir: float
    resolution: float
    mated: int
    non_mated: int
    reason: str | None = None

    def __float__(self) -> float:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype)


@dataclass(frozen=True)
class Cmc:
    """Closed-set identification: the share of probes whose person is among the first k, for each k asked for."""

    rates: dict[int, float]
    probes: int
    without_mate: int

    def __float__(self) -> float:
        return self.rates[min(self.rates)]


@dataclass(frozen=True)
class Search:
    """What a pass over probes and gallery leaves, from which every identification rate follows.

    Per probe (P,): `mate`, its largest score with its own person (NaN without mate); `other`, the largest with anybody
    else (-inf without any); `rank`, 1 + the number of other people's entries with a score of at least `mate` (0 without
    mate): who ties with the mate comes before it. `largest` holds the largest of the `impostors` non-mate scores.
    """

    mate: Floats
    other: Floats
    rank: Ints
    largest: Floats
    impostors: int

    @property
    def mated(self) -> Bools:
        """Which probes have their person in the gallery."""
        return self.rank > 0

    def cmc(self, ranks: Iterable[int] = (1, 5, 10), without_mate: WithoutMate = "refuse") -> Cmc:
        """Rank-k rates; a probe whose person is not in the gallery is refused, counted as a miss, or left out."""
        checks.choice("treatment of probes without mate", without_mate, {"refuse": 0, "miss": 0, "leave out": 0})
        asked = sorted(set(ranks))
        if not asked or asked[0] < 1:
            raise FedVisageError(f"ranks must be whole numbers of at least 1, got {asked}")
        probes = len(self.rank)
        alone = probes - int(np.count_nonzero(self.mated))
        if alone and without_mate == "refuse":
            raise FedVisageError(
                f"{alone} of {probes} probes have no mate in the gallery: closed-set identification needs one for each "
                "(count them as misses, or leave them out)"
            )
        counted = probes if without_mate == "miss" else probes - alone
        if not counted:
            raise FedVisageError(f"none of {probes} probes has a mate in the gallery")
        first = self.rank[self.mated]
        return Cmc({k: int(np.count_nonzero(first <= k)) / counted for k in asked}, probes, alone)

    def tpir(
        self, fpir: float, convention: OpenSet = "nist", below_resolution: Literal["nan", "allow"] = "nan"
    ) -> Tpir:
        """Share of the mated probes found at a false-positive identification rate; see `tpir_at_fpir`."""
        rule = checks.choice(
            "TPIR@FPIR convention",
            convention,
            {"nist": self._nist, "exact": self._exact, "pair-count": self._pair_count},
        )
        checks.choice("answer below the resolution", below_resolution, {"nan": 0, "allow": 0})
        share = checks.rational_far(fpir, "fpir")
        mated = int(np.count_nonzero(self.mated))
        non_mated = len(self.rank) - mated
        if not mated:
            raise FedVisageError(f"none of {len(self.rank)} probes has a mate in the gallery")
        base = len(self.rank) if convention == "pair-count" else non_mated
        nan = float("nan")
        if not base:
            reason = f"all {mated} probes have a mate: convention '{convention}' needs probes without"
            return Tpir(nan, nan, float(fpir), nan, nan, mated, 0, reason)
        if share * base < 1 and below_resolution == "nan":
            kind = "probes" if convention == "pair-count" else "probes without mate"
            reason = f"fpir {fpir} of {base} {kind} is less than one false positive; at least {1 / base:.3g} needed"
            return Tpir(nan, nan, float(fpir), nan, 1 / base, mated, non_mated, reason)
        value, threshold, measured = rule(share)
        return Tpir(value, threshold, float(fpir), measured, 1 / base, mated, non_mated)

    def _nist(self, share: Any) -> tuple[float, float, float]:
        alarms = np.sort(self.other[~self.mated])[::-1]
        return self._first_and_above(float(alarms[max(int(share * alarms.size) - 1, 0)]), alarms)

    def _exact(self, share: Any) -> tuple[float, float, float]:
        alarms = np.sort(self.other[~self.mated])[::-1]
        return self._first_and_above(float(np.append(alarms, -np.inf)[int(share * alarms.size)]), alarms)

    def _first_and_above(self, threshold: float, alarms: Floats) -> tuple[float, float, float]:
        hit = (self.rank == 1) & (self.mate > threshold)
        value = int(np.count_nonzero(hit)) / int(np.count_nonzero(self.mated))
        return value, threshold, int(np.count_nonzero(alarms > threshold)) / alarms.size

    def _pair_count(self, share: Any) -> tuple[float, float, float]:
        place = pair_count_place(len(self.rank), share)
        if place > self.largest.size and self.largest.size < self.impostors:
            raise FedVisageError(
                f"this search held the {self.largest.size} largest non-mate scores, "
                f"but fpir {float(share):g} needs {place}"
            )
        threshold = float(self.largest[place - 1]) if place <= self.largest.size else -np.inf
        mate = self.mate[self.mated]
        false = int(np.count_nonzero(self.largest > threshold)) if np.isfinite(threshold) else self.impostors
        return int(np.count_nonzero(mate > threshold)) / mate.size, threshold, false / len(self.rank)


def tpir_at_fpir(
    probes: Embeddings,
    probe_ids: ArrayLike,
    gallery: Embeddings,
    gallery_ids: ArrayLike,
    fpir: float,
    convention: OpenSet = "nist",
    *,
    below_resolution: Literal["nan", "allow"] = "nan",
    normalise_gallery: bool = True,
    dtype: DTypeLike = np.float64,
) -> Tpir:
    """Share of mated probes that are found where a share `fpir` of searches goes wrong, by cosine.

    `probes` (P, d) with identities `probe_ids` (P,), `gallery` (G, d) with `gallery_ids` (G,). A probe is mated if its
    identity is in the gallery; with several entries of one person the best counts.

    convention="nist": of the n probes without mate, the largest score of each; threshold = the floor(fpir n)-th largest
        of those (insightface's ijb_evals.py, facepy). Found iff the mate comes first and lies strictly above.
    convention="exact": as "nist", but the (floor(fpir n) + 1)-th largest: all the false positives that fpir allows.
    convention="pair-count": threshold = the ceil(fpir P)-th largest of all non-mate scores, P all probes. Found iff the
        mate lies strictly above, whatever its rank. Denominator: the mated probes.

    Where fpir asks for less than one false positive among the n (or P) probes the result is NaN with a reason;
    below_resolution="allow" gives what the formula yields there. With two galleries, see `two_galleries`.
    """
    kept = pair_count_place(rows("probes", probes).shape[0], checks.rational_far(fpir, "fpir"))
    found = search(
        probes,
        probe_ids,
        gallery,
        gallery_ids,
        largest=kept if convention == "pair-count" else 0,
        normalise_gallery=normalise_gallery,
        dtype=dtype,
    )
    return found.tpir(fpir, convention, below_resolution)


def two_galleries(rates: Iterable[Tpir]) -> Tpir:
    """The mean of the rates of several galleries, as NIST and insightface's ijb_evals.py report G1 and G2."""
    each = list(rates)
    if not each or len({rate.fpir for rate in each}) > 1:
        raise FedVisageError("a mean over galleries needs one rate of each, all at the same fpir")
    reason = next((rate.reason for rate in each if rate.reason is not None), None)
    mean = float("nan") if reason else float(np.mean([rate.value for rate in each]))
    nan = float("nan")
    return Tpir(
        mean,
        nan,
        each[0].fpir,
        nan if reason else float(np.mean([rate.measured_fpir for rate in each])),
        max(rate.resolution for rate in each),
        sum(rate.mated for rate in each),
        sum(rate.non_mated for rate in each),
        reason,
    )


def cmc(
    probes: Embeddings,
    probe_ids: ArrayLike,
    gallery: Embeddings,
    gallery_ids: ArrayLike,
    ranks: Iterable[int] = (1, 5, 10),
    *,
    without_mate: WithoutMate = "refuse",
    dtype: DTypeLike = np.float64,
) -> Cmc:
    """Closed-set identification of `probes` (P, d) in `gallery` (G, d): rank-k rates by cosine.

    The rank of a probe is 1 + the number of other people's entries that score at least as much as its best mate.
    """
    return search(probes, probe_ids, gallery, gallery_ids, dtype=dtype).cmc(ranks, without_mate)


def pair_count_place(probes: int, fpir: Any) -> int:
    """Which of the largest non-mate scores is the threshold of convention "pair-count"."""
    return ceil(checks.rational_far(fpir, "fpir") * probes)


def search(
    probes: Embeddings,
    probe_ids: ArrayLike,
    gallery: Embeddings,
    gallery_ids: ArrayLike,
    *,
    largest: int = 0,
    normalise_gallery: bool = True,
    block: int | None = None,
    dtype: DTypeLike = np.float64,
) -> Search:
    """Compare every probe with every gallery entry, in blocks of probes; holds the `largest` largest non-mate scores.

    Entries are brought to unit length; normalise_gallery=False keeps the gallery's lengths (FedFR's gallery means).
    """
    entries, order, first, last = _mates(probe_ids, gallery_ids)
    known = rows("gallery", gallery)
    if known.shape[0] != len(order):
        raise FedVisageError(f"{len(order)} identities for {known.shape[0]} gallery entries")
    size = block if block is not None else min(ROWS, max(16, TILE // len(order)))
    wanted = UnitBlocks("probes", probes, size, dtype)
    same_width("probes", wanted.values, "gallery entries", known)
    if len(wanted) != len(entries):
        raise FedVisageError(f"{len(entries)} identities for {len(wanted)} probes")
    columns = _gallery(known, normalise_gallery, dtype)[order].T
    mate, other = np.full(len(wanted), np.nan), np.empty(len(wanted))
    rank = np.zeros(len(wanted), np.int64)
    top = Largest(largest)
    scores = np.empty((min(size, len(wanted)), len(order)), precision(dtype))
    for place, unit in wanted:
        some = np.matmul(unit, columns, out=scores[: len(unit)])
        count = (last - first)[entries[place]] * (entries[place] >= 0)
        row = np.repeat(np.arange(len(unit)), count)
        start = np.cumsum(count) - count
        column = np.arange(len(row)) - start[row] + first[entries[place]][row]
        has = count > 0
        if len(row):
            mate[place][has] = np.maximum.reduceat(some[row, column], start[has])
            some[row, column] = -np.inf
        other[place] = some.max(axis=1)
        rank[place] = _ranks(some, mate[place], other[place])
        top.add(some.reshape(-1))
    impostors = len(entries) * len(order) - int(((last - first)[entries] * (entries >= 0)).sum())
    return Search(mate, other, rank, top.descending(), impostors)


def _ranks(others: NDArray[Any], mate: Floats, best: Floats) -> Ints:
    """1 + the number of other people's scores (n, G) that are at least the mate's (n,); 0 where there is no mate."""
    ranks = (mate > best).astype(np.int64)
    level = mate.astype(others.dtype)  # it came from there; compared without a conversion of the others
    for row in np.flatnonzero(mate <= best):
        ranks[row] = 1 + np.count_nonzero(others[row] >= level[row])
    return ranks


def _mates(probe_ids: ArrayLike, gallery_ids: ArrayLike) -> tuple[Ints, NDArray[Any], Ints, Ints]:
    """The gallery person of each probe (-1 for none), the gallery's order by person, and where each person's lie."""
    names, person = checks.identities(gallery_ids)
    probe = np.asarray(probe_ids)
    if probe.ndim != 1:
        raise FedVisageError(f"probe identities must have 1 axis, got shape {probe.shape}")
    if not len(probe) or not len(names):
        raise FedVisageError(f"{len(probe)} probes and {len(person)} gallery entries: a search needs both")
    if (probe.dtype.kind in "US") != (names.dtype.kind in "US"):
        raise FedVisageError(f"identities are {probe.dtype} among the probes and {names.dtype} in the gallery")
    place = np.minimum(np.searchsorted(names, probe), len(names) - 1)
    entries = np.where(names[place] == probe, place, -1).astype(np.int64)
    order = np.argsort(person, kind="stable")
    edges = np.searchsorted(person[order], np.arange(len(names) + 1)).astype(np.int64)
    return entries, order, edges[:-1], edges[1:]


def _gallery(gallery: Any, normalise: bool, dtype: DTypeLike) -> NDArray[Any]:
    if normalise:
        return UnitBlocks("gallery", gallery, checks.ROWS, dtype).all()
    raw: NDArray[Any] = np.array(gallery[0 : gallery.shape[0]], dtype)
    checks.check_lengths("gallery", np.linalg.norm(raw, axis=1).astype(np.float64))
    return raw
