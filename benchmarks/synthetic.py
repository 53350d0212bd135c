"""Synthetic faces per second."""

from __future__ import annotations

from statistics import median

import numpy as np

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
    return rows
