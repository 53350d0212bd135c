"""Synthetic faces per second at 112x112."""

from __future__ import annotations

from statistics import median

import numpy as np

from benchmarks.common import Row, seconds
from fedvisage.faces.synthetic import SyntheticFaces


def measure(full: bool) -> list[Row]:
    source = SyntheticFaces(0, 100, 10, 112)
    source.read(np.arange(64))
    times = [seconds(lambda: source.read(np.arange(len(source)))) for _ in range(7 if full else 5)]
    rate = len(source) / median(times)
    return [Row.of("synthetic faces, 112x112", rate, 1000.0, "images/s", "the least we promise", ">= 1")]
