"""The personal protocol: how well a party's own model knows its own people among everybody (Liu et al., AAAI 2022).

Everybody's test images are embedded with the party's model. 1:1 compares all unordered pairs with at least one of the
party's images. 1:N searches every test image in a gallery of the party's people: for each the mean of the unit
embeddings of the training images. Rates are averaged over parties. There are two variants, since the published code and
clean practice differ:

parity  as the authors' code: 1:1 by histogram ("histogram"), gallery means of whatever length, 1:N by "pair-count";
clean   1:1 "exact", gallery means at unit length, 1:N by "nist" over the probes that are not the party's people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.all_pairs import count_pairs, pair_scores
from fedvisage.evaluation.identification import Search, Tpir, pair_count_place, search
from fedvisage.evaluation.rates import Rate, allowed_accepts, bins_of, exact_rate, histogram_rate
from fedvisage.evaluation.streaming import Embeddings, Largest, Rows, UnitBlocks, precision, rows

COLUMNS = 1024  # other people's images compared at a time with all local ones


@dataclass(frozen=True)
class PairCounts:
    """How many pairs and searches the rates of one party were counted over."""

    people: int
    local: int
    others: int
    genuine: int
    impostor_local: int
    impostor_others: int
    mated: int
    non_mated: int

    @property
    def impostor(self) -> int:
        """All impostor pairs of 1:1."""
        return self.impostor_local + self.impostor_others


@dataclass(frozen=True)
class Personal:
    """One party's rates in both variants, by the false-accept and false-positive rates asked for."""

    counts: PairCounts
    parity_verification: tuple[Rate, ...]
    clean_verification: tuple[Rate, ...]
    parity_identification: tuple[Tpir, ...]
    clean_identification: tuple[Tpir, ...]
    clean_search: Search
    """Every test image searched in the gallery at unit length."""

    def rates(self, variant: str) -> dict[str, float]:
        """The values of a variant by name: `tar@1e-06`, `tpir@0.0001`."""
        table = {
            "parity": (self.parity_verification, self.parity_identification),
            "clean": (self.clean_verification, self.clean_identification),
        }
        verification, identification = checks.choice("variant", variant, table)
        return {f"tar@{r.far:g}": r.value for r in verification} | {f"tpir@{r.fpir:g}": r.value for r in identification}

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why some rates are NaN."""
        everything: list[Rate | Tpir] = [*self.parity_verification, *self.clean_verification]
        everything += [*self.parity_identification, *self.clean_identification]
        return tuple(dict.fromkeys(rate.reason for rate in everything if rate.reason is not None))


def personal_protocol(
    test: Embeddings,
    test_labels: ArrayLike,
    gallery: Embeddings,
    gallery_labels: ArrayLike,
    *,
    fars: Iterable[float] = (1e-6, 1e-5),
    fpirs: Iterable[float] = (1e-5, 1e-4),
    dtype: DTypeLike = np.float32,
) -> Personal:
    """One party's personal rates: `test` (N, d) of everybody, `gallery` (M, d) training images of the party's people.

    The party's people are those of `gallery_labels` (M,). All scores are computed in `dtype`; of the impostor scores
    only the largest are held, so memory does not grow with their number.
    """
    everyone = rows("test", test)
    _, own = np.unique(np.asarray(gallery_labels), return_inverse=True)
    labels, known = np.asarray(test_labels), np.asarray(gallery_labels)
    local = np.isin(labels, known)
    _check(labels, known, local, everyone.shape[0])
    people = np.unique(known)
    counts = _count(labels, local, len(people))
    targets = list(fars)
    allowed = [allowed_accepts(far, counts.impostor) for far in targets]
    genuine, largest = _verify(everyone, labels, local, max([0, *allowed]) + 1, dtype)
    exact, parity = [], []
    for far, accepts in zip(targets, allowed, strict=True):
        exact.append(exact_rate(genuine, largest, counts.impostor, far))
        parity.append(histogram_rate(genuine, largest, counts.impostor, far) if accepts else exact[-1])
    means = _means(gallery, own, len(people))
    shares = list(fpirs)
    keep = max((pair_count_place(len(labels), fpir) for fpir in shares), default=0)
    raw = search(everyone, labels, means, people, largest=keep, normalise_gallery=False, dtype=dtype)
    unit = search(everyone, labels, means, people, dtype=dtype)
    return Personal(
        counts,
        tuple(parity),
        tuple(exact),
        tuple(raw.tpir(fpir, "pair-count") for fpir in shares),
        tuple(unit.tpir(fpir, "nist") for fpir in shares),
        unit,
    )


def macro_average(parties: Sequence[Personal], variant: str) -> dict[str, float]:
    """The mean of each rate over the parties, each counting once; NaN where it is NaN for one of them."""
    if not parties:
        raise FedVisageError("no party to average over")
    tables = [party.rates(variant) for party in parties]
    if any(table.keys() != tables[0].keys() for table in tables):
        raise FedVisageError("the parties' rates were measured at different targets")
    return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}


def _check(labels: NDArray[Any], known: NDArray[Any], local: Bools, images: int) -> None:
    if labels.ndim != 1 or len(labels) != images:
        raise FedVisageError(f"{labels.size} labels for {images} test embeddings")
    if (labels.dtype.kind in "US") != (known.dtype.kind in "US"):
        raise FedVisageError(f"identities are {labels.dtype} among the test images and {known.dtype} in the gallery")
    if not local.any():
        raise FedVisageError(f"none of the {len(np.unique(known))} people in the gallery is among the test images")


def _count(labels: NDArray[Any], local: Bools, people: int) -> PairCounts:
    _, images = np.unique(labels[local], return_counts=True)
    genuine, inside = count_pairs(images)
    here, elsewhere = int(images.sum()), int(np.count_nonzero(~local))
    if not genuine:
        raise FedVisageError(f"0 genuine pairs among {here} test images of the party's people: nobody has two")
    return PairCounts(people, here, elsewhere, genuine, inside, here * elsewhere, here, elsewhere)


def _verify(test: Rows, labels: NDArray[Any], local: Bools, keep: int, dtype: DTypeLike) -> tuple[Floats, Floats]:
    """All genuine scores, and the largest impostor scores: `keep`, the rest of their bins, and the next one below."""
    top = Largest(keep, keep_down_to=_next_bin)
    here = _Chosen(test, np.flatnonzero(local))
    mine = np.asarray(here[0 : here.shape[0]])
    unit = UnitBlocks("test (the party's people)", mine, checks.ROWS, dtype).all()
    genuine = []
    for same, different in pair_scores(mine, labels[local], dtype=dtype):
        genuine.append(same)
        top.add(different)
    elsewhere = np.flatnonzero(~local)
    if elsewhere.size:
        scores = np.empty((len(unit), COLUMNS), precision(dtype))
        for _, block in UnitBlocks("test (other people)", _Chosen(test, elsewhere), COLUMNS, dtype):
            full = len(block) == COLUMNS
            top.add(np.matmul(unit, block.T, out=scores if full else None).reshape(-1))
    return np.concatenate(genuine).astype(np.float64), top.descending()


def _next_bin(held: NDArray[Any], least: float) -> float:
    """The largest value held in a lower histogram bin than `least`: the edge above its bin is the last one needed."""
    lower = held[bins_of(held.astype(np.float64)) < bins_of(np.array(least))]
    return float(lower.max()) if lower.size else -np.inf


class _Chosen:
    """Some of the embeddings, in ascending order, read as slices."""

    def __init__(self, whole: Rows, chosen: Ints | NDArray[np.intp]) -> None:
        self.whole, self.chosen = whole, chosen

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""
        return (len(self.chosen), self.whole.shape[1])

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        chosen = self.chosen[part]
        start, stop = int(chosen[0]), int(chosen[-1]) + 1
        if stop - start == len(chosen):
            return self.whole[start:stop]
        if isinstance(self.whole, np.ndarray):
            some: NDArray[Any] = self.whole[chosen]
            return some
        pieces = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1)
        return np.concatenate([self.whole[int(piece[0]) : int(piece[-1]) + 1] for piece in pieces])


def _means(gallery: Embeddings, own: Ints | NDArray[np.intp], people: int) -> Floats:
    """Mean (C, d) of each person's unit embeddings; not brought to unit length."""
    blocks = UnitBlocks("gallery", gallery, checks.ROWS, np.float64)
    if len(blocks) != len(own):
        raise FedVisageError(f"{len(own)} labels for {len(blocks)} gallery embeddings")
    total = np.zeros((people, blocks.values.shape[1]))
    for place, unit in blocks:
        order = np.argsort(own[place], kind="stable")
        person = own[place][order]
        first = np.flatnonzero(np.diff(person, prepend=-1))
        total[person[first]] += np.add.reduceat(unit[order], first, axis=0)
    mean: Floats = total / np.bincount(own, minlength=people)[:, None]
    return mean
