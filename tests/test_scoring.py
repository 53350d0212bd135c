"""Whom a run is scored on while it trains: the validation people, or the validators' where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedvisage as fv

RUN = {
    "faces.identities": 60,
    "faces.images_per_identity": 4,
    "faces.size": 32,
    "partition.public": 0,
    "partition.test": 20,
    "partition.parties": 2,
    "partition.identities_per_party": 4,
    "partition.validators": 1,
    "pretrain.epochs": 0,
    "federation.rounds": 1,
    "evaluation.every": 1,
    "evaluation.pairs": 40,
    "compare": [],
}


def validated_by(folder: Path, changes: dict[str, object]) -> set[str]:
    """The scores that the last round's metrics give of the people who choose."""
    fv.run(fv.load_recipe("smoke", RUN | changes), out=folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any(line["phase"] == "test" for line in lines)
    return {name for line in lines if line["phase"] == "validation" for name in line} - {"round", "phase"}


@pytest.mark.parametrize(
    ("people", "expected"),
    [(20, {"accuracy", "tar@0.1", "tar@0.01"}), (8, {"tar@0.1", "tar@0.01"}), (1, set())],
    ids=["enough", "too few for folds", "one person"],
)
def test_validators_people_choose_where_there_are_no_validation_people(
    tmp_path: Path, people: int, expected: set[str]
) -> None:
    assert validated_by(tmp_path / "run", {"partition.identities_per_validator": people}) == expected


def test_validation_people_come_before_the_validators(tmp_path: Path) -> None:
    """Twenty of them have an accuracy, which the eight of the validator could not."""
    changes: dict[str, object] = {"partition.validation": 20, "partition.identities_per_validator": 8}
    assert "accuracy" in validated_by(tmp_path / "run", changes)


def test_too_few_people_who_were_asked_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fv.FedVisageError, match="10 folds need at least 20 identities"):
        validated_by(tmp_path / "run", {"partition.validation": 8})
