"""Every federated method gives the same bits in one process and over NVFlare's hosts with mutual TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_hosts import Hosts, recipe_with, rows, started

import fedvisage as fv
from fedvisage.core.method import METHODS
from fedvisage.privacy import read_ledger

ROLES: dict[str, dict[str, Any]] = {
    "feduda": {
        "partition.groups": {
            "source": {"role": "source", "identities_per_party": 3},
            "target": {"role": "target", "identities_per_party": 3},
        },
        "method.pretrain_rounds": 1,
    },
    "pfm": {
        "faces.identities": 16,
        "partition.parties": 2,
        "partition.validators": 1,
        "partition.identities_per_validator": 4,
        "weighting": {"name": "fv", "pairs": 8, "folds": 2, "smoothing": 0.5},
    },
}
"""Methods that need, or are tried with, parties of other roles: a federation of their own."""
FEDERATED = sorted(name for name, kind in METHODS.items() if not kind.pools and name != "feduda")


@pytest.fixture(scope="module")
def both(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All methods in one run, so that one job serves them: the first is the recipe's, the others are compared."""
    folder = tmp_path_factory.mktemp("methods")
    first, *others = FEDERATED
    recipe = recipe_with(folder, {"method.name": first, "compare": others})
    fv.run(recipe, out=folder / "here")
    fv.run(recipe, out=folder / "hosts", on=hosts.folder)
    return folder / "here", folder / "hosts"


def part(run: Path, name: str) -> Path:
    return run if name == FEDERATED[0] else run / "compare" / name


@pytest.mark.parametrize("name", FEDERATED)
def test_the_model_has_the_same_bits_on_hosts_as_in_process(both: tuple[Path, Path], name: str) -> None:
    here, there = (part(run, name) for run in both)
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
    assert rows(here) == rows(there), "losses, counts and the parties' own scores are the same numbers"
    assert not (there / "failures.log").exists()


@pytest.mark.parametrize("name", FEDERATED)
def test_a_party_wrote_down_what_the_server_saw_of_it(both: tuple[Path, Path], hosts: Hosts, name: str) -> None:
    run = (both[1] / "run-id").read_text() + ("" if name == FEDERATED[0] else f"-{name}")
    keys = ("round", "phase", "direction", "group", "bytes")
    for party in hosts.deployment.roles:
        own = read_ledger(hosts.deployment.party(party) / "log" / f"{run}.jsonl")
        server = read_ledger(part(both[1], name) / "ledger.jsonl")
        lines = [
            [tuple(row[key] for key in keys) for row in rows if row.get("party") == party] for rows in (own, server)
        ]
        assert sorted(lines[0]) == sorted(lines[1])
        assert lines[0]


def test_private_state_stays_on_the_partys_disk(both: tuple[Path, Path], hosts: Hosts) -> None:
    run = (both[1] / "run-id").read_text()
    assert not list(both[1].glob("**/states.sqlite"))
    for party in hosts.deployment.roles:
        assert (hosts.deployment.party(party) / "state" / run / "states.sqlite").is_file()


@pytest.mark.parametrize("name", sorted(ROLES))
def test_sources_targets_and_validators_are_hosts_like_any_other(name: str, tmp_path: Path) -> None:
    recipe = recipe_with(tmp_path, {"method.name": name, "federation.evaluate_every": 0, **ROLES[name]})
    here, there = tmp_path / "here", tmp_path / "there"
    fv.run(recipe, out=here)
    with started(tmp_path, recipe) as hosts:
        assert len(set(hosts.deployment.roles.values())) == 2
        fv.run(recipe, out=there, on=hosts.folder)
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
    assert rows(here) == rows(there)
