"""A party's policy on a real host: it refuses before training, says why, and nothing leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_hosts import Hosts, absent, recipe_with, rows

import fedvisage as fv
from fedvisage.core.parcel import PRIVATE_EMBEDDINGS
from fedvisage.deploy.party import PartyFolder, open_party_folder
from fedvisage.privacy import Policy, read_ledger


@pytest.fixture
def strict(hosts: Hosts) -> Iterator[PartyFolder]:
    """party-01 lets no class embeddings leave, for one test."""
    folder = open_party_folder(hosts.deployment.party("party-01"))
    settings = folder.settings.model_copy(update={"policy": Policy()})
    changed = PartyFolder(folder.folder, settings)
    changed.save()
    yield changed
    folder.save()


def test_a_party_that_keeps_its_class_embeddings_refuses_fedgc(
    hosts: Hosts, strict: PartyFolder, tmp_path: Path
) -> None:
    recipe = recipe_with(tmp_path, {"method.name": "fedgc", "federation.evaluate_every": 0, "federation.rounds": 1})
    out = tmp_path / "run"
    fv.run(recipe, out=out, on=hosts.folder)
    reason = f"policy: {PRIVATE_EMBEDDINGS} may not leave, and phase 'train' sends it"
    assert absent(out)["join", 0] == {"party-01": reason}
    assert rows(out)[0]["refused"] == {"party-01": "policy"}
    assert all(row["accepted"] == 2 for row in rows(out))
    assert f"party-01: {reason}" in (out / "failures.log").read_text()
    assert reason.replace("'", "&#39;") in (out / "report.html").read_text()
    run = (out / "run-id").read_text()
    assert not (strict.log / f"{run}.jsonl").exists(), "it was told of the run, and neither got nor sent a parcel"
    assert not strict.state(run).exists()
    assert f"refused run {run} (fedgc): {reason}" in (strict.log / "party.log").read_text()
    sent = {row["party"] for row in read_ledger(out / "ledger.jsonl") if row.get("direction") == "up"}
    assert sent == {"party-00", "party-02"}


def test_a_party_whose_model_may_leave_in_sums_only_refuses_a_median(
    hosts: Hosts, strict: PartyFolder, tmp_path: Path
) -> None:
    changes = {"aggregation.name": "median", "federation.evaluate_every": 0, "federation.rounds": 1}
    out = tmp_path / "run"
    fv.run(recipe_with(tmp_path, changes), out=out, on=hosts.folder)
    assert list(absent(out)["join", 0]) == ["party-01"]
    assert "backbone may leave in a sum only, and phase 'train' shows it" in absent(out)["join", 0]["party-01"]
    assert not strict.state((out / "run-id").read_text()).exists()
