"""Honest federations of unequal parties on synthetic faces: how many of their answers the guard refuses.

Run by itself: `python -m benchmarks.honest` (a quarter of an hour), `--seeds 1` for a look. A refusal is a fault.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedvisage as fv
from fedvisage.cli.output import show_table
from fedvisage.config import Recipe, validated

BASE: Mapping[str, Any] = {
    "faces": {"size": 32, "images_per_identity": 10},
    "partition": {"held_out": 0.0},
    "training": {"batch_size": 8, "learning_rate": 0.02},
    "federation": {"rounds": 8, "workers": 1},
    "evaluation": {"pairs": 0},
}
SOURCE = {"role": "source", "identities_per_party": 220}
TARGETS = {"role": "target", "parties": 4, "identities_per_party": 4}
FEDERATIONS: Mapping[str, Mapping[str, Any]] = {
    "feduda, a source and four targets, 55 : 1 steps": {
        "faces": {"identities": 240},
        "partition": {"groups": {"source": SOURCE, "target": TARGETS}},
        "method": {"name": "feduda", "pretrain_rounds": 1},
    },
    "fedpe, log-normal sizes over 100 parties": {
        "faces": {"identities": 600, "images_per_identity": 4},
        "partition": {"parties": 100, "sizes": "log-normal"},
        "method": {"name": "fedpe"},
    },
    "fedface, 100 parties of one person from means": {
        "faces": {"identities": 100},
        "partition": {"parties": 100, "identities_per_party": 1},
        "training": {"steps": 1, "batchnorm": "fixed"},
        "method": {"name": "fedface"},
    },
    "pfm, three parties of 32 steps": {
        "faces": {"identities": 60},
        "partition": {"parties": 3},
        "training": {"steps": 32},
        "method": {"name": "pfm"},
    },
}


def recipe(name: str, seed: int) -> Recipe:
    """The recipe of a federation."""
    own = FEDERATIONS[name]
    tables = {table: {**BASE.get(table, {}), **own.get(table, {})} for table in {**BASE, **own}}
    return validated(Recipe, {**tables, "seed": seed, "name": "honest"}, name)


def main() -> None:
    """Run all of them and print who was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(1, parser.parse_args().seeds + 1)
    rows = []
    for name in FEDERATIONS:
        asked, refused = 0, []
        for seed in seeds:
            with TemporaryDirectory() as folder:
                done = fv.run(recipe(name, seed), out=Path(folder) / "run")
                metrics = (done.folder / "metrics.jsonl").read_text().splitlines()
                asked += sum(len(row["parties"]) + len(row["absent"]) for row in map(json.loads, metrics))
                refused += [f"seed {seed}, {one}" for one in done.absences]
        rows.append([name, str(len(seeds)), f"{asked:,}", str(len(refused))])
        print("\n".join(refused), flush=True)
    show_table(["federation", "seeds", "answers", "parties refused"], rows, title="Honest federations")


if __name__ == "__main__":
    main()
