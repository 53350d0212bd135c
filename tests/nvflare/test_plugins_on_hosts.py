"""Plug-ins on real hosts: the operator's word, by name and by the file, or the run is refused; nothing is shipped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from page_inputs import plug_ins
from plugin_processes import fedvisage
from real_hosts import Hosts, recipe_with
from typer.testing import CliRunner

from fedvisage.build import resolve
from fedvisage.cli.main import app
from fedvisage.config import to_toml
from fedvisage.deploy.party import PLUGINS, Settings, open_party_folder
from fedvisage.privacy import Policy

OWN: dict[str, Any] = {"compare": [], "evaluation.pairs": 0}
PARTS = {
    'name = "fedavg"': 'name = "half-step"\nstep = 0.8',
    'loss = "cosface"': 'loss = "squared-hinge"\nmargin = 0.3',
    'name = "ir-tiny"': 'name = "small"',
    'schedule = "constant"': 'schedule = "linear"',
    "plugins = []": 'plugins = ["my_parts"]',
}


@pytest.fixture
def folder(tmp_path: Path, hosts: Hosts) -> Path:
    """The page's module, and the hosts' recipe with its method, loss, backbone and schedule; parties as they were."""
    plug_ins(tmp_path)
    text = to_toml(recipe_with(tmp_path, OWN))
    for before, after in PARTS.items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "recipe.toml").write_text(text)
    return tmp_path


def allow(hosts: Hosts, party: str, module: Path, digest: str | None = None) -> None:
    """What an operator does: install the module, and write the line that a command prints into party.toml."""
    home = hosts.deployment.party(party)
    (home / PLUGINS).mkdir(exist_ok=True)
    (home / PLUGINS / module.name).write_bytes(module.read_bytes())
    said = CliRunner().invoke(app, ["party", "plugin", str(home), "my_parts", "--json"])
    found = json.loads(said.output)["sha256"]
    assert found == hashlib.sha256(module.read_bytes()).hexdigest()
    give(hosts, party, {"my_parts": digest or found})


def give(hosts: Hosts, party: str, plugins: dict[str, str]) -> None:
    party_folder = open_party_folder(hosts.deployment.party(party))
    own = party_folder.settings
    policy = Policy(**(own.policy.model_dump() | {"plugins": plugins}))
    party_folder.settings = Settings(**(own.model_dump() | {"policy": policy}))
    party_folder.save()


def test_hosts_run_a_plug_in_that_their_operators_allow_to_the_same_bits_and_refuse_it_otherwise(
    hosts: Hosts, folder: Path
) -> None:
    command = ["run", "recipe.toml", "--on", hosts.folder, "--out"]
    code, out = fedvisage(folder, *command, "refused")
    assert code == 2, out
    assert "policy: plug-in 'my_parts' is not allowed" in (folder / "refused" / "failures.log").read_text()

    for party in hosts.deployment.roles:
        allow(hosts, party, folder / "my_parts.py")
    try:
        for words in ([*command, "hosts"], ["run", "recipe.toml", "--out", "here"]):
            code, out = fedvisage(folder, *words)
            assert code == 0, out
        here, there = (folder / run / "model.safetensors" for run in ("here", "hosts"))
        assert here.read_bytes() == there.read_bytes()
        assert not (folder / "hosts" / "failures.log").exists()

        for party in hosts.deployment.roles:
            allow(hosts, party, folder / "my_parts.py", "0" * 64)
        code, out = fedvisage(folder, *command, "changed")
        assert code == 2
        told = (folder / "changed" / "failures.log").read_text()
        assert "policy: plug-in 'my_parts' is not the file that is allowed" in told
        notes = (hosts.deployment.party("party-00") / "log" / "party.log").read_text()
        assert "plug-in 'my_parts' is not the file that is allowed" in notes
    finally:
        for party in hosts.deployment.roles:
            give(hosts, party, {})
    assert resolve(recipe_with(folder)).plugins == ()
