"""The map of a run's people: who is most alike across parties, and the same pairs under another method."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.classmap import Classes, Someone, class_embeddings, most_alike, write_map
from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.partition import Partition


def test_pairs_are_the_nearest_of_different_parties_and_nobody_is_in_two() -> None:
    angles = np.deg2rad([0, 1, 10, 12, 90])  # of the persons a1, a2 | b1, b2, b3
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    who = [Someone("a", 0), Someone("a", 1), Someone("b", 0), Someone("b", 1), Someone("b", 2)]
    assert most_alike(Classes(who, embeddings), 4) == [(1, 2), (0, 3)]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    count=st.integers(1, 5),
    seed=st.integers(0, 1000),
    block=st.integers(1, 40),
)
def test_pairs_found_in_blocks_are_those_of_the_whole_matrix(
    sizes: list[int], count: int, seed: int, block: int
) -> None:
    who = [Someone(f"party-{party}", n) for party, size in enumerate(sizes) for n in range(size)]
    embeddings = np.random.default_rng(seed).normal(size=(len(who), 3))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    ordered = sorted(
        (-float(embeddings[a] @ embeddings[b]), a, b)
        for a, b in itertools.combinations(range(len(who)), 2)
        if who[a].party != who[b].party
    )
    taken: list[tuple[int, int]] = []
    for _, a, b in ordered:
        if len(taken) < count and not {a, b} & {one for pair in taken for one in pair}:
            taken.append((a, b))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvisage.classmap.BLOCK", block)
        assert most_alike(Classes(who, embeddings), count) == taken


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same people under FedPE and FedGC."""
    folder = tmp_path_factory.mktemp("runs")
    changes: dict[str, Any] = {"federation.rounds": 2, "federation.workers": 1, "pretrain.epochs": 0, "compare": []}
    one, two = (
        fv.run(fv.load_recipe("smoke", changes | {"method.name": name}), out=folder / name).folder
        for name in ("fedpe", "fedgc")
    )
    return one, two


def test_a_run_leaves_a_map_of_all_its_people(runs: tuple[Path, Path]) -> None:
    content = json.loads((runs[0] / "map.json").read_text())
    partition = Partition.load(runs[0] / "partition.json")
    people = class_embeddings(runs[0], partition)
    assert content["classes"]["of"] == len(people.who) == len(content["classes"]["points"])
    assert content["parties"] == sorted(partition.parties)
    assert np.linalg.norm(people.embeddings, axis=1) == pytest.approx(1.0)
    assert len(content["alike"]["pairs"]) == 4
    for pair in content["alike"]["pairs"]:
        assert pair["who"][0][0] != pair["who"][1][0]
        cosines = np.linspace(-1, 1, len(pair["between"]) + 1)
        middle = np.average((cosines[1:] + cosines[:-1]) / 2, weights=pair["between"])
        assert middle == pytest.approx(pair["mean"], abs=0.03)


def test_another_runs_pairs_can_be_mapped(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """FedGC's Figure 3: the pairs that FedPE confuses most, as FedGC sees them."""
    again = tmp_path / "fedgc"
    shutil.copytree(runs[1], again)
    done = CliRunner().invoke(app, ["report", str(again), "--pairs-of", str(runs[0]), "--json"])
    assert done.exit_code == 0, done.output
    theirs, ours = (json.loads((run / "map.json").read_text())["alike"]["pairs"] for run in (runs[0], again))
    assert [pair["who"] for pair in ours] == [pair["who"] for pair in theirs]
    assert [pair["mean"] for pair in ours] != [pair["mean"] for pair in theirs]


def test_pairs_of_a_run_without_a_map_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="has no map of its people"):
        write_map(runs[0], like=tmp_path)


def test_parties_that_train_alone_share_no_map(tmp_path: Path) -> None:
    changes = {"federation.rounds": 1, "federation.workers": 1, "pretrain.epochs": 0, "compare": []}
    done = fv.run(fv.load_recipe("smoke", changes | {"method.name": "alone"}), out=tmp_path / "run")
    assert not (done.folder / "map.json").exists()
    assert len(json.loads((done.folder / "evaluation.json").read_text())["models"]["alone"]["roc"]) > 10
