"""A centre fitted over real hosts has the bits of one fitted in process, and every party's model carries it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_hosts import recipe_with, rows, started

import fedvisage as fv
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import CENTRES
from fedvisage.deploy.party import open_party_folder
from fedvisage.models import load_model
from fedvisage.privacy import Policy, read_ledger

CENTRED = {
    "faces.identities": 45,
    "partition.groups": {
        "large": {"parties": 2, "identities_per_party": 20},
        "small": {"identities_per_party": 2},
    },
    "federation.evaluate_every": 0,
    "centre.groups": ["all", "large-01"],
}


def test_the_bits_in_process_and_on_hosts(tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, CENTRED)
    here, there = tmp_path / "here", tmp_path / "there"
    fv.run(recipe, out=here)
    with started(tmp_path, recipe) as hosts:
        fv.run(recipe, out=there, on=hosts.folder)
        run = (there / "run-id").read_text()
        for party in hosts.deployment.roles:
            folder = hosts.deployment.party(party)
            assert (folder / "models" / run / "model.safetensors").read_bytes() == model(here)
            sent = [row for row in read_ledger(folder / "log" / f"{run}.jsonl") if row.get("phase") == "centre"]
            assert [row["group"] for row in sent if row["direction"] == "up"] == [CENTRES]
        careful = open_party_folder(hosts.deployment.party("small-00"))
        type(careful)(careful.folder, careful.settings.model_copy(update={"policy": Policy()})).save()
        fv.run(recipe, out=tmp_path / "refused", on=hosts.folder)
        assert "centres may not leave, and phase 'centre' sends it" in (tmp_path / "refused/failures.log").read_text()
    assert model(here) == model(there)
    assert {name: one.people for name, one in load_model(there / "model.safetensors").centres.items()} == {
        "all": 40,
        "large-01": 20,
    }
    assert rows(here) == rows(there)
    assert "the centre 'all' is without small-00" in (there / "failures.log").read_text()
    with pytest.raises(FedVisageError, match="no centre 'small'; its centres: all, large-01"):
        load_model(there / "model.safetensors").use_centre("small")


def model(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()
