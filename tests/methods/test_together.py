"""A single step of many parties computed at once equals their steps one by one, and is refused where it would not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import FACES, Ran, close, federate, network

from fedvisage.build import resolve
from fedvisage.config import Recipe, Training, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE, PRIVATE_EMBEDDINGS
from fedvisage.deploy.hosting import open_hosting
from fedvisage.faces.faceset import ArrayImages, FaceSet
from fedvisage.faces.partition import Partition, Share
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fedface import FedFace
from fedvisage.methods.separation import Spreadout
from fedvisage.privacy import read_ledger

WORK = Training(
    batch_size=4, steps=1, learning_rate=0.5, heads_rate=2.0, momentum=0.9, weight_decay=1e-3, batchnorm="fixed"
)
PEOPLE = {"ann": (0, 1, 2, 3), "bob": (4, 5), "cid": (8, 9, 10), "dee": (12, 13, 14, 15), "eve": (16, 17, 18, 19)}
ONE_EACH = Partition((), (), {name: Share("trainer", images) for name, images in PEOPLE.items()})
SEVERAL = Partition((), (), {"ann": Share("trainer", tuple(range(0, 8))), "bob": Share("trainer", tuple(range(8, 20)))})


def run(folder: Path, together: int, **options: Any) -> Ran:
    method = FedFace(training=WORK, rounds=3, **options)
    part = Spreadout(strength=0.1, margin=1.2, training=WORK)
    trained = () if options.get("embeddings") == "fixed" else (part,)
    return federate(folder, method, rounds=3, others=trained, partition=ONE_EACH, together=together)


@pytest.mark.parametrize("together", [2, 5, 100])
@pytest.mark.parametrize("embeddings", ["trained", "fixed"])
def test_it_equals_one_party_after_the_other(embeddings: str, together: int, tmp_path: Path) -> None:
    """Three rounds of five parties with two to four images, in groups of two, all at once, and in a group too large."""
    alone = run(tmp_path / "alone", 1, embeddings=embeddings)
    grouped = run(tmp_path / "together", together, embeddings=embeddings)
    assert close(alone.server[BACKBONE], grouped.server[BACKBONE], 1e-5)
    for name in PEOPLE:
        one, other = (ran.party(name)["class_embeddings"] for ran in (alone, grouped))
        assert torch.allclose(one, other, atol=1e-5)
    if embeddings == "trained":
        rows = [ran.server[PRIVATE_EMBEDDINGS]["rows"] for ran in (alone, grouped)]
        assert torch.allclose(*rows, atol=1e-5)
    moved = [(grouped.server[BACKBONE][n] - t).abs().max() for n, t in grouped.start[BACKBONE].items()]
    assert max(float(m) for m in moved) > 1e-3


def test_margin_losses_over_several_people_and_equal_weights(tmp_path: Path) -> None:
    work = WORK.model_copy(update={"batch_size": 8})
    ran = [
        federate(
            tmp_path / str(together),
            FedPE(training=work, rounds=2),
            partition=SEVERAL,
            weighting="equal",
            together=together,
        )
        for together in (1, 2)
    ]
    assert close(ran[0].server[BACKBONE], ran[1].server[BACKBONE], 1e-5)


def test_the_ledger_and_the_metrics_have_the_same_rows(tmp_path: Path) -> None:
    for folder, together in (("alone", 1), ("together", 3)):
        run(tmp_path / folder, together)
    ledgers = [
        sorted(json.dumps({k: v for k, v in row.items() if k != "time"}) for row in read_ledger(path / "ledger.jsonl"))
        for path in (tmp_path / "alone", tmp_path / "together")
    ]
    assert ledgers[0] == ledgers[1]
    losses = [
        [row["parties"][name]["loss"] for row in rows if row["phase"] == "train" for name in PEOPLE]
        for rows in (
            [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
            for name in ("alone", "together")
        )
    ]
    np.testing.assert_allclose(*losses, atol=1e-5)


def test_a_party_whose_images_break_the_loss_fails_alone(tmp_path: Path) -> None:
    """The network turns one party's images into NaN; everybody else's step is as if it had not been there."""
    model = network()
    poison = model.features_of

    def features_of(inputs: torch.Tensor) -> torch.Tensor:
        features = poison(inputs)
        bad = (inputs.flatten(1) == 255).all(dim=1)
        return torch.where(bad[:, None], torch.nan, features)

    model.features_of = features_of  # type: ignore[method-assign]
    pixels = FACES.images.read(np.arange(len(FACES)))
    pixels[list(PEOPLE["cid"])] = 255
    faces = FaceSet(ArrayImages(pixels), FACES.labels, FACES.names)
    method = FedFace(training=WORK, rounds=1, embeddings_start="random")
    ran = federate(tmp_path / "a", method, rounds=1, partition=ONE_EACH, faces=faces, model=model, together=5)
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert set(rows[-1]["absent"]) == {"cid"}
    others = Partition((), (), {name: share for name, share in ONE_EACH.parties.items() if name != "cid"})
    without = federate(tmp_path / "b", method, rounds=1, partition=others, faces=faces, together=1)
    assert close(ran.server[BACKBONE], without.server[BACKBONE], 1e-5)


REFUSED: dict[str, dict[str, Any]] = {
    "more than one step": {"training": {"steps": 2, "batchnorm": "fixed"}},
    "BatchNorm mixes": {"training": {"steps": 1}},
    "goes on with its momentum": {"training": {"steps": 1, "batchnorm": "fixed", "optimiser_state": "keep"}},
    "reduced precision": {"training": {"steps": 1, "batchnorm": "fixed", "precision": "bf16"}},
    "'correction' is not that of plain averaging": {"method": {"name": "fedprox"}},
    "'train' is not that of plain averaging": {"method": {"name": "fedfr"}, "partition": {"public": 3}},
    "does not average": {"method": {"name": "alone"}},
    "needs each party's model": {"federation": {"together": 8}, "aggregation": {"name": "median"}},
    "keep models of their own": {"federation": {"together": 8, "keep_local": True}},
    "shared class embeddings": {"method": {"name": "fedavg", "classifier": "shared"}},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_is_refused_where_it_would_not_be_the_same(reason: str) -> None:
    table: dict[str, Any] = {
        "training": {"steps": 1, "batchnorm": "fixed"},
        "federation": {"together": 8},
        "method": {"name": "fedface"},
    }
    resolve(Recipe.model_validate(table))
    with pytest.raises(FedVisageError, match=f"federation.together = 8: .*{reason}"):
        resolve(Recipe.model_validate(table | REFUSED[reason]))


def test_a_network_without_batchnorm_needs_no_fixed_statistics() -> None:
    table = {
        "training": {"steps": 1},
        "federation": {"together": 8},
        "method": {"name": "fedface"},
        "faces": {"size": 112},
        "backbone": {"name": "sphere-20"},
    }
    assert resolve(Recipe.model_validate(table)).federation.together == 8


def test_hosts_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", {"federation.together": 8})
    with pytest.raises(FedVisageError, match=r"federation\.together = 8 computes parties of one process at once"):
        open_hosting(tmp_path, recipe, tmp_path / "run")
