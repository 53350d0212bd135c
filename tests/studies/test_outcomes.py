"""What FedFace and FedFR do on real faces, three seeds: FedFace beats its plain baseline, FedFR improves on its start.

People of LFW with six images, 32 x 32 pixels, a small network trained on 40 public people, 60 test people whom nobody
trains on. Three seeds: other people, another network, other draws. One small regime each; the studies have more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import fedvisage as fv
from fedvisage.config import Recipe
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.studies import merged

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
SEEDS = (1, 2, 3)

pytestmark = [
    pytest.mark.skipif(not (DATA / "lfw112-dev").is_dir(), reason="no real faces: set FEDVISAGE_DATA"),
    pytest.mark.skipif("FEDVISAGE_LONG" not in os.environ, reason="minutes of training: set FEDVISAGE_LONG=1"),
    pytest.mark.timeout(3600),
]

BASE: dict[str, Any] = {
    "partition": {"public": 40, "test": 60},
    "pretrain": {"epochs": 12, "batch_size": 24, "learning_rate": 0.05, "scale": 30.0, "margin": 0.2},
    "federation": {"workers": 1},
    "evaluation": {"pairs": 0, "fars": [0.01], "flip": False},
}
ONE_PERSON: dict[str, Any] = {
    "partition": {"parties": 60, "identities_per_party": 1, "held_out": 0.0},
    "training": {"batch_size": 6, "steps": 1, "learning_rate": 2.0, "weight_decay": 0.0, "batchnorm": "fixed"},
    "method": {"name": "fedface"},
    "federation": {"rounds": 10, "together": 30},
}

EIGHT_PEOPLE: dict[str, Any] = {
    "partition": {"parties": 3, "identities_per_party": 8, "held_out": 0.0},
    "training": {"batch_size": 24, "epochs": 1, "learning_rate": 0.05, "margin": 0.2},
    "method": {"name": "fedfr"},
    "federation": {"rounds": 4},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the faces; pre-trained networks are kept in it, too."""
    folder = tmp_path_factory.mktemp("outcomes")
    kind, found = read_source(DATA / "lfw112-dev", None, None, {})
    write_source(found, folder / "faces", Report("lfw", kind), Selection(32, "array", 6, 6))
    return folder


def scores(shared: Path, name: str, *tables: Mapping[str, Any]) -> dict[str, list[float]]:
    """TAR at FAR 0.01, in points, of the start and of the model after training, by seed."""
    found: dict[str, list[float]] = {"start": [], "end": []}
    for seed in SEEDS:
        own = {"seed": seed, "faces": {"source": str(shared / "faces"), "size": 32}}
        recipe = Recipe.model_validate(merged(BASE, *tables, own))
        ran = fv.pipeline.run(recipe, out=shared / f"{name}-{seed}", starts=shared / "starts")
        found["start"].append(100 * ran.scores["start"]["tar"]["0.01"])
        found["end"].append(100 * ran.scores[recipe.method["name"]]["tar"]["0.01"])
    return found


def test_one_person_per_party(shared: Path) -> None:
    """FedFace against averaging with the positive loss alone, whose class embeddings start at random."""
    spread = {"regulariser": {"name": "spreadout", "strength": 0.02}}
    plain = {"regulariser": {"name": "none"}, "method": {"name": "fedface", "embeddings_start": "random"}}
    fedface = scores(shared, "fedface", ONE_PERSON, spread)
    fedavg = scores(shared, "fedavg", ONE_PERSON, plain)
    is_ahead(fedface["end"], fedavg["end"])


def test_several_people_per_party(shared: Path) -> None:
    """FedFR improves on its start; plain averaging of parties with eight people is at best as good."""
    plain = {"method": {"name": "fedfr", "public": "none", "contrastive": 0.0, "branch": "none"}}
    fedfr = scores(shared, "fedfr", EIGHT_PEOPLE)
    fedavg = scores(shared, "plain", EIGHT_PEOPLE, plain)
    is_ahead(fedfr["end"], fedfr["start"])
    assert all(a >= b for a, b in zip(fedfr["end"], fedavg["end"], strict=True))


def is_ahead(one: Sequence[float], other: Sequence[float]) -> None:
    """By more, on average, than the differences vary over seeds."""
    ahead = [a - b for a, b in zip(one, other, strict=True)]
    assert mean(ahead) > stdev(ahead), (one, other)
