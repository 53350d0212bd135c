"""Starting and ending a federation leaves nothing behind: no process, no port, no temporary file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_hosts import eventually, recipe_with

from fedvisage.build import resolve
from fedvisage.core.errors import FedVisageError
from fedvisage.deploy.folder import Deployment, Settings
from fedvisage.deploy.processes import down, running, up
from fedvisage.deploy.provision import create, free_port
from fedvisage.deploy.shares import hand_out, roles_of


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Deployment]:
    recipe = resolve(recipe_with(tmp_path, {"partition.parties": 1}))
    deployment = create(tmp_path / "federation", Settings(port=free_port(), parties=roles_of(recipe)))
    hand_out(recipe, deployment)
    yield deployment
    deployment.console.close()
    down(deployment)


def listens(deployment: Deployment) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", deployment.settings.port)) == 0


def test_the_command_line_starts_shows_and_ends_a_federation(small: Deployment, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def command(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "fedvisage", "deploy", *words, str(small.folder), "--json"],
            env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True, text=True, timeout=240, check=True,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    command("up")
    assert listens(small)
    hosts = command("status")["hosts"]
    assert {host: entry["connected"] for host, entry in hosts.items()} == {
        "server": "", "operator": "", "party-00": "yes"
    }  # fmt: skip
    assert all(hosts[host]["running"] == "1" for host in ("server", "party-00"))
    assert all(entry["expires"] > "2026" for entry in hosts.values())
    assert "party-00 registered" in str(command("logs")["lines"])
    assert command("down")["ended"] == 2
    assert running(small) == []
    assert not listens(small)
    assert list(temporary.iterdir()) == []
    assert not (small.server / "run.sock").exists()


def test_a_start_that_fails_or_is_interrupted_leaves_nothing(
    small: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", small.settings.port))
        taken.listen()
        with pytest.raises(FedVisageError, match=f"port {small.settings.port} is taken"):
            up(small)
    assert running(small) == []
    kit = small.party("party-00") / "site" / "startup" / "fed_client.json"
    right = kit.read_text()
    kit.write_text("{")
    with pytest.raises(FedVisageError, match=r"party-00 ended at once|not connected after"):
        up(small, patience=40)
    assert running(small) == []
    assert list(temporary.iterdir()) == []
    kit.write_text(right)
    script = "import sys; from pathlib import Path; from fedvisage.deploy.processes import up; " \
        "from fedvisage.deploy import open_deployment; up(open_deployment(Path(sys.argv[1])))"  # fmt: skip
    for how in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen([sys.executable, "-c", script, str(small.folder)], stderr=subprocess.DEVNULL) as starting:
            while not running(small):
                assert starting.poll() is None
            starting.send_signal(how)
        assert starting.returncode != 0
        assert eventually(lambda: running(small) == [], 10 if how == signal.SIGKILL else 0)
        assert list(temporary.iterdir()) == []
        assert not listens(small)
