"""Synthetic faces per second at 112x112."""

from __future__ import annotations

from statistics import median

import numpy as np

from benchmarks.common import Row, Scale, seconds
from fedvisage.faces.synthetic import SyntheticFaces


def measure(scale: Scale) -> list[Row]:
    source = SyntheticFaces(0, 4 if scale == "smoke" else 200, 10, 112)
    source.read(np.arange(min(512, len(source))))
    times = [seconds(lambda: source.read(np.arange(len(source)))) for _ in range(7)]
    rate = len(source) / median(times)
    return [Row.of("synthetic faces, 112x112", rate, 1000.0, "images/s", "the least we promise", ">= 1")]
