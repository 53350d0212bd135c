"""Finished cells that nobody trained: made-up scores under the keys of a real study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvisage.studies import cells, load_study

PEOPLE = 60
ALIKE = {
    "pairs": [
        {"who": [["a", 0], ["b", n]], "cosine": 0.5, "between": [0, 4, 2, 1], "within": [0, 1, 4, 2], "mean": 0.3}
        for n in range(4)
    ],
    "which": [0, 0, 1, 2, 3, 4, 5, 6, 7],
    "points": [[n / 8, (n * n % 8) / 8] for n in range(9)],
}
"""What a cell keeps of a map of people."""
CHOSEN_BY = ("lfw", "ijb")
"""Protocols that are asked about the chosen round, too."""
Make = Callable[..., Path]


@pytest.fixture
def made_up(tmp_path: Path) -> Make:
    """Writes cells of a study with these scores by row (the same for every column, less 0.1 each) and seed."""

    def make(
        name: str, scores: Mapping[str, float], seeds: Iterable[int] = (1, 2, 3), folder: Path | None = None
    ) -> Path:
        results = tmp_path / "results"
        results.mkdir(exist_ok=True)
        study = load_study(name, folder)
        for number, cell in enumerate(cells(name, "laptop", seeds, folder)):
            if cell.row not in scores:
                continue
            measures = study.measures("laptop", cell.row).values()
            rng = np.random.default_rng(number)
            found = {m.key: scores[cell.row] - 0.1 * i + 0.002 * cell.seed for i, m in enumerate(measures)}
            moved = " ".join(str(int(v)) for v in 500 * rng.normal(size=PEOPLE))
            metrics = {"accuracy", *(tries.by for tries in study.tries.values() if tries.by)}
            curve = [{"round": r} | dict.fromkeys(metrics, 0.5 + 0.4 * r / 30 * scores[cell.row]) for r in (10, 20, 30)]
            best = {m.key: 0.5 + 0.4 * scores[cell.row] for m in measures if m.protocol in CHOSEN_BY}
            content: dict[str, Any] = {
                **{"study": name, "scale": "laptop", "row": cell.row, "seed": cell.seed, "recipe": cell.key},
                **{"settings": cell.settings, "seconds": 61.5, "bytes": 12_000_000, "scores": found},
                "people": {key: {"set": "made up", "influence": moved} for key in found},
                "rounds": {"test": curve, "validation": curve},
                "chosen": {"round": 30, "by": study.chooses_by("laptop"), "scores": best},
                "test": {"identities": PEOPLE},
                "environment": {"processor": "a processor", "cores": 2, "python": "3.11", "packages": {"torch": "2"}},
            }
            if study.figure and study.figure.kind == "alike":
                content["alike"] = ALIKE
            (results / f"{cell.key}.json").write_text(json.dumps(content))
        return results

    return make
