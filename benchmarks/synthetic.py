"""Synthetic faces per second, and how hard they are."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import fedvisage as fv
from benchmarks.common import Row, Scale, seconds
from fedvisage.faces.synthetic import SyntheticFaces

SIZES = {"smoke": (112,), "normal": (112,), "full": (48, 112, 224)}


def measure(scale: Scale) -> list[Row]:
    rows = []
    for size in SIZES[scale]:
        source = SyntheticFaces(0, 4 if scale == "smoke" else 200, 10, size)
        source.read(np.arange(min(512, len(source))))
        times = [seconds(lambda source=source: source.read(np.arange(len(source)))) for _ in range(7)]  # type: ignore[misc]
        rate, limit = len(source) / median(times), ">= 1" if size == 112 else "-"
        rows.append(
            Row.of(f"synthetic faces, {size}x{size}", rate, 1000.0, "images/s", "the least we promise at 112", limit)
        )
    return [*rows, difficulty()] if scale == "full" else rows


def difficulty() -> Row:
    """Accuracy of the recipe `calibration`: too hard or too easy, and comparisons on these faces say little."""
    with TemporaryDirectory() as folder:
        score = fv.run(fv.load_recipe("calibration"), out=Path(folder) / "run").scores["central"]
    accuracy, peer = 100 * score["accuracy"], "all pairs"
    return Row.of("accuracy on 300 unseen synthetic people", accuracy, 100.0, "%", peer, "0.90 to 0.99")
