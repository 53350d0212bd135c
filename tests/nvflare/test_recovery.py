"""Killed server, killed run, killed party: the final model has the bits of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_hosts import RECIPE, Hosts, eventually, recipe_with, rows

import fedvisage as fv
from fedvisage.federation import Event

CHANGES = {"federation.rounds": 3, "method.name": "fedavg", "method.classifier": "shared"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    fv.run(recipe_with(folder, CHANGES), out=folder / "run")
    return folder / "run"


def test_a_run_survives_the_death_of_itself_and_of_the_server(hosts: Hosts, undisturbed: Path, tmp_path: Path) -> None:
    """The command is killed in round 2 and resumed; then the server is killed in the middle of that round."""
    recipe, out = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    hosts.faults("party-01", {"train 2": "hang"})
    command = [sys.executable, "-m", "fedvisage", "run", str(recipe), "--on", str(hosts.folder), "--out", str(out)]
    command += [word for name, value in CHANGES.items() for word in ("--set", f"{name}={value}")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        metrics = out / "metrics.jsonl"
        assert eventually(lambda: metrics.exists() and any(r["round"] == 1 for r in rows(out)), 120)
        os.kill(running.pid, signal.SIGKILL)
    assert eventually(lambda: not hosts.jobs(), 60), f"still at work: {hosts.jobs()}"
    assert eventually(lambda: not hosts.consoles(), 10), f"still at work: {hosts.consoles()}"

    def watch(event: Event) -> None:
        if (event.kind, event.phase, event.round, event.done) == ("answer", "train", 2, 1):
            hosts.kill("server")
            hosts.start("server")

    hosts.faults("party-01", {})
    fv.run(recipe_with(tmp_path, CHANGES), out=out, resume=True, on=hosts.folder, watch=watch)
    assert (out / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert rows(out) == rows(undisturbed)
    assert "round 2, train: the job was lost" in (out / "failures.log").read_text()


def test_a_run_goes_on_where_its_parties_are(hosts: Hosts, undisturbed: Path, tmp_path: Path) -> None:
    begun = tmp_path / "run"
    begun.mkdir()
    for name in ("recipe.toml", "partition.json"):
        (begun / name).write_bytes((undisturbed / name).read_bytes())
    with pytest.raises(fv.FedVisageError, match="was begun with its parties elsewhere"):
        fv.run(recipe_with(tmp_path, CHANGES), out=begun, resume=True, on=hosts.folder)


def test_one_run_at_a_time(hosts: Hosts, tmp_path: Path) -> None:
    with hosts.deployment.reserved(), pytest.raises(fv.FedVisageError, match="another run uses"):
        fv.run(recipe_with(tmp_path), out=tmp_path / "run", on=hosts.folder)
    assert not (tmp_path / "run").exists()
