"""The smallest recipe that is still a federation, for any method: three parties, two rounds, 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.config import Recipe, load_recipe

RECIPE = """
name = "tiny"
seed = 3

[faces]
size = 32
identities = 12
images_per_identity = 4

[partition]
test = 0
parties = 3
identities_per_party = 3
public = 2
held_out = 0.25

[pretrain]
epochs = 1
batch_size = 8

[training]
batch_size = 4
learning_rate = 0.02

[method]
name = "METHOD"

[federation]
rounds = 2
workers = 1
evaluate_every = 2

[evaluation]
pairs = 0
"""


DOMAINS = {
    "partition.groups": {
        "source": {"role": "source", "identities_per_party": 3},
        "target": {"role": "target", "parties": 2, "identities_per_party": 3},
    }
}
VALIDATED = {
    "faces.identities": 16,
    "partition.validators": 1,
    "partition.identities_per_validator": 4,
    "weighting": {"name": "fv", "pairs": 16, "folds": 2, "smoothing": 0.5},
}
EVERYTHING = VALIDATED | {"regulariser": {"name": "gradient-correction", "strength": 1.0}}
COMBINED: Mapping[str, Mapping[str, Any]] = {
    "fedgc + fv": VALIDATED,
    "pfm + fv": VALIDATED,
    "pfm-fedfr + fv + gradient-correction": EVERYTHING,
}
"""A method with something it is combined with, and what both need of a recipe."""
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "feduda": DOMAINS | {"method.pretrain_rounds": 1, "method.relabel_every": 2},
    "dan": DOMAINS,
    "dann": DOMAINS,
    **COMBINED,
}
"""What a method needs of a recipe besides its name."""


def tiny_recipe(name: str, path: Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a method, or of one of `COMBINED`, written to `path`."""
    path.write_text(RECIPE.replace("METHOD", name.partition(" + ")[0]))
    return load_recipe(path, {**NEEDS.get(name, {}), **(changes or {})})
