"""First neighbours against their bare matrix product, and FINCH against finch-clust in the same run."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, Scale, memory_row, peak_above, seconds, side_by_side
from fedvisage.clustering import finch, first_neighbours, neighbour_recall

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # finch-clust warns when pynndescent is missing
    from finch import FINCH

SIZE, IMAGES = 512, 10
COUNTS = {"smoke": 2_000, "normal": 20_000, "full": 100_000}
PEER = {"smoke": (2_000, 1), "normal": (20_000, 2), "full": (20_000, 5)}
"""Faces for finch-clust, and calls."""
TIMES = {"smoke": 3, "normal": 2, "full": 1}


def measure(scale: Scale) -> list[Row]:
    with threadpool_limits(torch.get_num_threads()):
        return [
            *partition(faces(COUNTS[scale]), TIMES[scale]),
            *against_finch_clust(*PEER[scale]),
            approximate(faces(COUNTS[scale] if scale == "full" else 2_000)),
        ]


def faces(count: int) -> NDArray[np.float32]:
    """Embeddings of people with ten images each."""
    rng = np.random.default_rng(1)
    people = rng.standard_normal((count // IMAGES, SIZE), dtype=np.float32)
    return people.repeat(IMAGES, axis=0) + 1.2 * rng.standard_normal((count, SIZE), dtype=np.float32)


def product(x: NDArray[np.float32]) -> None:
    """All inner products, a block of rows at a time."""
    rows = torch.from_numpy(x)
    buffer = rows.new_empty(1024, len(rows))
    for block in torch.split(rows, 1024):
        torch.mm(block, rows.T, out=buffer[: len(block)])


def partition(x: NDArray[np.float32], times: int) -> list[Row]:
    megabytes = peak_above(lambda: first_neighbours(x))
    ours, bare, ratio = side_by_side(
        lambda: seconds(lambda: first_neighbours(x)), lambda: seconds(lambda: product(x)), times, warm=False
    )
    name = f"first neighbours, {len(x):,} faces"
    return [Row.of(name, ours, bare, "s", "its bare matrix product", "<= 1.3", ratio), memory_row(name, megabytes)]


def against_finch_clust(count: int, times: int) -> list[Row]:
    """Both exact, each call in a fresh process with all cores: somebody clusters faces once, not in a loop."""
    pairs = [(apart("ours", count), apart("theirs", count)) for _ in range(times)]
    our_s, our_mb = (median(ours[what] for ours, _ in pairs) for what in (0, 1))
    their_s, their_mb = (median(theirs[what] for _, theirs in pairs) for what in (0, 1))
    ratio = median(ours[0] / theirs[0] for ours, theirs in pairs)
    name = f"FINCH, {count:,} faces"
    return [
        Row.of(f"{name}, time", our_s, their_s, "s", "finch-clust 0.2.3, both in fresh processes", "<= 1/6", ratio),
        Row.of(f"{name}, memory", our_mb, their_mb, "MB", "finch-clust 0.2.3", "<= 1/5"),
    ]


def apart(whose: str, count: int) -> tuple[float, float]:
    """Seconds and MB of one call in a process of its own."""
    script = f"from benchmarks.clustering import once; print(*once({whose!r}, {count}))"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    took, grown = map(float, done.stdout.split())
    return took, grown


def once(whose: str, count: int) -> tuple[float, float]:
    """Seconds and MB of one call here."""
    x, took = faces(count), list[float]()
    work = partial(finch, x) if whose == "ours" else partial(FINCH, x, verbose=False, ann_threshold=count)
    grown = peak_above(lambda: took.append(seconds(work)))
    return took[0], grown


def approximate(x: NDArray[np.float32]) -> Row:
    found = first_neighbours(x, search="approximate")
    recall = neighbour_recall(x, found.position, sample=500)
    return Row.of(f"faiss neighbours, {len(x):,} faces", recall, 1.0, "recall", "exact search", "-")
