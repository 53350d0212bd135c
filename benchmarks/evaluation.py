"""The large protocols against their bare matrix products, and 10-fold accuracy against insightface's procedure.

Times are processor time, side by side in one run, one thread each, so that other work on the machine does not count.
Features are random: the time does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, Scale, peak_above, side_by_side
from fedvisage.evaluation import (
    Templates,
    among_distractors,
    kfold_accuracy,
    personal_protocol,
    search,
    tars_at_fars,
    template_scores,
)

Vectors = NDArray[np.float32]
WIDTH = 512


def unit(rng: np.random.Generator, count: int) -> Vectors:
    vectors = rng.standard_normal((count, WIDTH), np.float32)
    vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return vectors


def measure(scale: Scale) -> list[Row]:
    rng = np.random.default_rng(0)
    with threadpool_limits(1):
        return [
            ten_folds(rng, scale),
            *personal(rng, scale),
            *template_pairs(rng, scale),
            template_search(rng, scale),
            *distractors(rng, scale),
        ]


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def compared(
    name: str,
    ours: Callable[[], object],
    bare: Callable[[], object],
    peer: str,
    limit: str,
    times: int,
    warm: bool = True,
) -> Row:
    mine, reference, ratio = side_by_side(lambda: seconds(ours), lambda: seconds(bare), times, warm=warm)
    return Row.of(name, mine, reference, "s", peer, limit, ratio)


def with_memory(
    name: str,
    ours: Callable[[], object],
    bare: Callable[[], object],
    peer: str,
    limit: str,
    inputs: Sequence[NDArray[Any]],
    most: float,
    times: int,
) -> list[Row]:
    """As `compared`, and what the protocol holds at most, its inputs included, against the gigabytes that it may."""
    grown: list[float] = []

    def watched() -> None:
        grown.append(peak_above(ours))

    held = sum(part.nbytes for part in inputs) / 1e6
    row = compared(name, watched, bare, peer, limit, times, warm=False)
    words = f"{most:g} GB, inputs included"
    return [row, Row.of(f"memory, {name}", held + max(grown), 1000 * most, "MB", words, "< 1")]


def ten_folds(rng: np.random.Generator, scale: Scale) -> Row:
    """The published procedure, restated: each of 400 thresholds tried on nine folds, the first best one used."""
    pairs = 600 if scale == "smoke" else 6000
    same = np.arange(pairs) // (pairs // 20) % 2 == 0
    a, b = unit(rng, pairs), unit(rng, pairs)
    b[same] = 0.5 * a[same] + 0.6 * b[same]

    def reference() -> float:
        left, right = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a.astype(float), b.astype(float)))
        distance = np.sum(np.square(left - right), 1)
        thresholds, accuracies = np.arange(0, 4, 0.01), []
        for test in np.array_split(np.arange(pairs), 10):
            train = np.setdiff1d(np.arange(pairs), test)
            tried = [_accuracy(t, distance[train], same[train]) for t in thresholds]
            accuracies.append(_accuracy(thresholds[int(np.argmax(tried))], distance[test], same[test]))
        return float(np.mean(accuracies))

    assert abs(reference() - kfold_accuracy(a, b, same).mean) < 1e-12, "the two disagree"
    row = compared(
        f"10-fold accuracy, {pairs:,} pairs", lambda: kfold_accuracy(a, b, same), reference, "insightface", "", 5
    )
    return Row.of(row.name, row.ours, row.reference, "s", "insightface's loops", ">= 10", 1 / row.ratio)


def _accuracy(threshold: float, distance: NDArray[Any], same: NDArray[np.bool_]) -> float:
    """insightface's four counts of right and wrong answers at one threshold."""
    accepted = np.less(distance, threshold)
    right = np.sum(np.logical_and(accepted, same)) + np.sum(np.logical_and(~accepted, ~same))
    wrong = np.sum(np.logical_and(accepted, ~same)) + np.sum(np.logical_and(~accepted, same))
    return float(right) / float(right + wrong)


def personal(rng: np.random.Generator, scale: Scale) -> list[Row]:
    """One party of FedFR's protocol: 100 people of 40 test images among 4,000, 60 training images each."""
    people = 40 if scale == "smoke" else 4000
    own = min(100, people // 2)
    labels = np.repeat(np.arange(people), 40)
    test, gallery = unit(rng, len(labels)), unit(rng, own * 60)
    train = np.repeat(np.arange(own), 60)
    local, others, means = test[: own * 40], test[own * 40 :], unit(rng, own)

    def bare() -> None:
        out = np.empty((len(local), 1024), np.float32)
        for start in range(0, len(others) - 1023, 1024):
            np.matmul(local, others[start : start + 1024].T, out=out)
        local @ others[len(others) // 1024 * 1024 :].T
        for start in range(0, len(local), 1024):
            local[start : start + 1024] @ local[start:].T
        test @ means.T

    def ours() -> None:
        personal_protocol(test, labels, gallery, train)

    name, times = f"personal protocol, {len(local):,} local of {len(test):,} images", 3 if scale == "full" else 2
    return with_memory(name, ours, bare, "its matrix products", "<= 1.25", (test, labels, gallery, train), 1, times)


def template_pairs(rng: np.random.Generator, scale: Scale) -> list[Row]:
    """IJB-C's 1:1: 15.7 million pairs of 23,124 templates, TAR at six false-accept rates."""
    pairs = 20_000 if scale == "smoke" else 15_658_489
    templates = Templates(np.arange(23_124), unit(rng, 23_124))
    left, right = rng.integers(0, 23_124, (2, pairs))
    same = np.zeros(pairs, np.bool_)
    same[: pairs // 800] = True

    def ours() -> None:
        scores = template_scores(templates, left, right)
        tars_at_fars(scores[same], scores[~same], (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))

    def bare() -> None:
        for start in range(0, pairs, 256):
            one, other = (templates.vectors[side[start : start + 256]] for side in (left, right))
            np.einsum("nd,nd->n", one, other)

    name, times = f"IJB-C 1:1, {pairs / 1e6:.1f}M pairs", 3 if scale == "full" else 1
    inputs = (templates.vectors, left, right, same)
    return with_memory(name, ours, bare, "gather and dot products", "<= 1.5", inputs, 2, times)


def template_search(rng: np.random.Generator, scale: Scale) -> Row:
    """IJB-C's 1:N: 19,593 probes in a gallery of 3,531, ranks and every non-mate score that a rate needs."""
    count = 500 if scale == "smoke" else 19_593
    probes, gallery = unit(rng, count), unit(rng, 3531)
    ids = rng.integers(0, 3531, count)

    def ours() -> None:
        found = search(probes, ids, gallery, np.arange(3531), largest=count // 10 + 1, dtype=np.float32)
        found.cmc()
        for fpir in (1e-2, 1e-1):
            found.tpir(fpir, "pair-count")

    def bare() -> None:
        for start in range(0, count, 1024):
            probes[start : start + 1024] @ gallery.T

    return compared(f"IJB-C 1:N, {count:,} probes", ours, bare, "its matrix products", "<= 1.5", 3)


class Repeated:
    """A million distractors in the memory of some: the same ones over and over, moved a little along each time."""

    def __init__(self, some: Vectors, count: int) -> None:
        self.some, self.shape = some, (count, some.shape[1])

    def __getitem__(self, part: slice, /) -> Vectors:
        start = part.start % (len(self.some) - (part.stop - part.start) + 1)
        return self.some[start : start + part.stop - part.start]


def distractors(rng: np.random.Generator, scale: Scale) -> list[Row]:
    count = {"smoke": 4_000, "normal": 50_000, "full": 1_000_000}[scale]
    probes, ids = unit(rng, 4000), np.arange(4000) // 50
    source = Repeated(unit(rng, 16_384), count)

    def bare() -> None:
        out = np.empty((4000, 1024), np.float32)
        for start in range(0, count - 1047, 1024):
            np.matmul(probes, source[start : start + 1024].T, out=out)

    def ours() -> None:
        among_distractors(probes, ids, source)

    name = f"{count:,} distractors, 4,000 probes"
    few = Repeated(source.some, count // 10)
    less, more = peak_above(lambda: among_distractors(probes, ids, few)), peak_above(ours)
    return [
        compared(name, ours, bare, "its matrix products", "<= 1.25", 1 if scale == "full" else 2, warm=False),
        Row.of(f"memory, {name}", more, less, "MB", "a tenth of the distractors", "<= 1.1"),
    ]
