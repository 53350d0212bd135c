"""What the tests with real hosts share: a small recipe, and what can be done to a federation's processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedvisage as fv
from fedvisage.build import resolve
from fedvisage.config import Recipe
from fedvisage.core.parcel import CENTRES, PRIVATE_EMBEDDINGS
from fedvisage.deploy.folder import Deployment, Settings
from fedvisage.deploy.processes import _CHILDREN, Running, down, end, running, up
from fedvisage.deploy.provision import create, free_port
from fedvisage.deploy.shares import hand_out, roles_of
from fedvisage.federation.nvflare.console import ADMIN
from fedvisage.privacy import Policy

RECIPE = """
name = "tiny"
seed = 3

[faces]
size = 32
identities = 12
images_per_identity = 4

[partition]
test = 0
parties = 3
identities_per_party = 3
public = 3
held_out = 0.25

[pretrain]
epochs = 1
batch_size = 8

[training]
batch_size = 4
learning_rate = 0.02
optimiser_state = "keep"

[federation]
rounds = 2
workers = 1
evaluate_every = 2
keep_local = true

[evaluation]
pairs = 0
"""
EVERYTHING = Policy(groups=dict.fromkeys((*Policy().groups, PRIVATE_EMBEDDINGS, CENTRES), "individual"))
FAULTS = Path(__file__).parent / "faults"


def recipe_with(folder: Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return fv.load_recipe(path, changes)


@dataclass
class Hosts:
    """The federation, and what tests do to it."""

    deployment: Deployment

    @property
    def folder(self) -> Path:
        return self.deployment.folder

    def faults(self, party: str, faults: Mapping[str, str]) -> None:
        (self.deployment.party(party) / "fault.json").write_text(json.dumps(faults))

    def kill(self, host: str, parent: bool = True) -> None:
        """SIGKILL to a host's processes, or to those of its jobs only."""
        import psutil

        found = [one for one in running(self.deployment) if one.host == host and (parent or not one.parent)]
        assert found, f"{host} does not run"
        for one in sorted(found, key=lambda one: not one.parent):
            psutil.Process(one.pid).kill()
        end(found)

    def of(self, host: str) -> list[Running]:
        """Processes of one host."""
        return [one for one in running(self.deployment) if one.host == host]

    def jobs(self) -> list[Running]:
        """Processes of jobs, at any host."""
        return [one for one in running(self.deployment) if not one.parent]

    def consoles(self) -> list[int]:
        """Processes that talk to the server as its administrator, other than the one of this process."""
        import psutil

        found = [process.info for process in psutil.process_iter(["pid", "ppid", "cmdline"])]
        ours = [one for one in found if {str(ADMIN), str(self.deployment.admin)} <= set(one["cmdline"] or [])]
        return [one["pid"] for one in ours if one["ppid"] != os.getpid()]

    def start(self, host: str) -> None:
        """Run a host's start script, as its operator would."""
        folder = self.deployment.folder if host == "server" else self.deployment.party(host)
        script = folder / ("start-server.sh" if host == "server" else "start.sh")
        environment, nowhere = os.environ | {"PYTHON": sys.executable}, subprocess.DEVNULL
        child = subprocess.Popen(
            [script], env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        _CHILDREN.append(child)
        assert eventually(lambda: any(one.host == host and one.parent for one in running(self.deployment)), 60)

    def wait_connected(self, patience: float = 60) -> None:
        up(self.deployment, patience)


@contextmanager
def started(folder: Path, recipe: Recipe) -> Iterator[Hosts]:
    """A federation that has the recipe's faces, as real processes; nothing of it is left afterwards."""
    recipe = resolve(recipe)
    settings = Settings(port=free_port(), parties=roles_of(recipe), silence=10.0, gather=40.0, patience=120.0)
    deployment = create(folder / "federation", settings, EVERYTHING)
    hand_out(recipe, deployment)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FAULTS), *([before] if before else [])])
    try:
        up(deployment)
        yield Hosts(deployment)
    finally:
        down(deployment)
        deployment.console.close()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    assert running(deployment) == []
    assert not {"run.sock", "job"} & {path.name for path in deployment.server.iterdir()}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def absent(folder: Path) -> dict[tuple[str, int], dict[str, str]]:
    return {(row["phase"], row["round"]): row["absent"] for row in rows(folder) if row.get("absent")}


def eventually(what: Callable[[], bool], patience: float = 30.0) -> bool:
    give_up = time.monotonic() + patience
    while not what():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.2)
    return True
