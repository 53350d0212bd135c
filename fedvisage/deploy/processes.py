"""A federation's processes on this machine: start them, see them, end all of them.

A process is told by its own command line, which names its kit: no file of process ids can be stale or be missing after
a crash, and nothing that is not ours is ever ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.core.errors import FedVisageError
from fedvisage.deploy.certificates import check_kit
from fedvisage.deploy.folder import SITE, Deployment
from fedvisage.deploy.party import open_party_folder
from fedvisage.deploy.provision import place_server
from fedvisage.federation import nvflare
from fedvisage.federation.nvflare.console import Unreachable
from fedvisage.federation.nvflare.link import NAME as SOCKET

SERVER = str(Path(nvflare.__file__).with_name("server.py"))
GUARDIAN = str(Path(__file__).with_name("guardian.py"))
CLIENT = "nvflare.private.fed.app.client.client_train"
Child = subprocess.Popen[bytes]
_CHILDREN: list[Child] = []
"""What this process started: it outlives this process, and is waited for as long as that lives."""
MEMORY = {"MALLOC_ARENA_MAX": "4", "MALLOC_MMAP_THRESHOLD_": "524288", "MALLOC_TRIM_THRESHOLD_": "8388608"}
"""Blocks of parcels go back to the operating system as soon as they are free."""
SERVER_MEMORY = MEMORY | {"MALLOC_ARENA_MAX": "1"}
"""The server's many threads wait for each other anyway; each further arena would keep some megabytes for itself."""
HEARTBEAT = 3
"""Seconds between a site's signs of life to the server."""


@dataclass(frozen=True)
class Running:
    """A process of ours."""

    pid: int
    host: str
    """`server` or the party."""
    parent: bool
    """Whether it is the host's own process; the others are those of its jobs."""


def server_command(folder: Path) -> tuple[list[str], Path]:
    """How the server's process is started, after seeing that it can be; and where."""
    kit = folder.absolute() / "server"
    check_kit(kit)
    place_server(kit)
    return _command(["-P", SERVER], kit, "fed_server.json", []), kit


def party_command(folder: Path) -> tuple[list[str], Path]:
    """How a party's process is started, after seeing that it can be; and where."""
    party = open_party_folder(folder)
    kit = party.folder / SITE
    check_kit(kit, party.settings.name)
    party.faces()
    options = [f"uid={party.settings.name}", f"heart_beat_interval={HEARTBEAT}"]
    return _command(["-m", CLIENT], kit, "fed_client.json", options), kit


def _command(program: list[str], kit: Path, settings: str, options: list[str]) -> list[str]:
    python = [sys.executable, "-u", *program, "-m", str(kit), "-s", settings]
    return [*python, "--set", "secure_train=true", *options, "org=fedvisage", "config_folder=config"]


def _memory(kit: Path) -> dict[str, str]:
    return SERVER_MEMORY if kit.name == "server" else MEMORY


def become(command: list[str], kit: Path) -> None:
    """Turn this process into a host's: signals and exit codes are then its own."""
    (kit / "transfer").mkdir(exist_ok=True)
    os.environ.update(_memory(kit) | dict(os.environ))
    os.chdir(kit)
    sys.stdout.flush()
    os.execv(command[0], command)


def running(deployment: Deployment) -> list[Running]:
    """Every process of this federation on this machine."""
    import psutil

    kits = {str(kit): name for name, kit in deployment.kits().items()}
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        host = next((kits[word] for word in words if word in kits), None)
        if host is not None and any(word.startswith("nvflare.") or word == SERVER for word in words):
            found.append(Running(process.info["pid"], host, SERVER in words or CLIENT in words))
    return sorted(found, key=lambda one: (one.host, not one.parent, one.pid))


def up(deployment: Deployment, patience: float = 60.0) -> list[Running]:
    """Start what does not run yet, and wait until every party is connected; on failure, end what was started."""
    there = {one.host for one in running(deployment) if one.parent}
    if "server" not in there and not _port_is_free(deployment):
        raise FedVisageError(f"port {deployment.settings.port} is taken by another process: choose another port")
    commands = {name: _command_of(deployment, name) for name in deployment.kits() if name not in there}
    started: dict[str, Child] = {}
    with _undone_on_failure(deployment, started, [kit for _, kit in commands.values()]):
        for name, (command, kit) in commands.items():
            started[name] = _start(command, kit)
            if name == "server":
                _wait_for_server(deployment, started[name], patience)
        _wait_for_sites(deployment, started, patience)
    return running(deployment)


def _command_of(deployment: Deployment, name: str) -> tuple[list[str], Path]:
    return server_command(deployment.folder) if name == "server" else party_command(deployment.party(name))


def _start(command: list[str], kit: Path) -> Child:
    (kit / "transfer").mkdir(exist_ok=True)
    environment = _memory(kit) | dict(os.environ)
    with (kit / "console.log").open("ab") as log:
        child = subprocess.Popen(
            command, cwd=kit, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    _CHILDREN.append(child)
    return child


@contextmanager
def _undone_on_failure(deployment: Deployment, started: dict[str, Child], kits: list[Path]) -> Iterator[None]:
    """What was started is ended where the start fails or is interrupted, and by the guardian where it is killed."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    command = [sys.executable, "-P", GUARDIAN, json.dumps([SERVER, [str(kit) for kit in kits]])]
    nowhere = subprocess.DEVNULL
    guardian = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)
    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    except BaseException:
        end([one for one in running(deployment) if one.host in started])
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        guardian.communicate(b"all is well")


def _port_is_free(deployment: Deployment) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((deployment.settings.host, deployment.settings.port)) != 0


def _wait_for_server(deployment: Deployment, process: Child, patience: float) -> None:
    give_up = time.monotonic() + patience
    while _port_is_free(deployment):
        _still_alive("the server", deployment.server, process)
        if time.monotonic() > give_up:
            raise FedVisageError(f"the server does not listen after {patience:.0f} s; see {deployment.server}/log.txt")
        time.sleep(0.2)


def _wait_for_sites(deployment: Deployment, started: dict[str, Child], patience: float) -> None:
    give_up = time.monotonic() + patience
    wanted = set(deployment.kits()) - {"server"}
    while True:
        there: set[str] = set()
        with suppress(Unreachable):
            there = deployment.console.connected()
        if wanted <= there:
            return
        for name, process in started.items():
            _still_alive(name, deployment.kits()[name], process)
        if time.monotonic() > give_up:
            missing = ", ".join(sorted(wanted - there))
            raise FedVisageError(f"not connected after {patience:.0f} s: {missing}; see log.txt in their site folders")
        time.sleep(0.3)


def _still_alive(name: str, kit: Path, process: Child) -> None:
    if process.poll() is not None:
        raise FedVisageError(f"{name} ended at once (code {process.returncode}); see {kit / 'console.log'}")


def down(deployment: Deployment) -> int:
    """End every process of this federation on this machine; how many there were."""
    ended = 0
    while found := running(deployment):
        ended += len(found)
        end(found)
    for leftover in (deployment.server / SOCKET, *(kit / "daemon_pid.fl" for kit in deployment.kits().values())):
        leftover.unlink(missing_ok=True)
    shutil.rmtree(deployment.server / "job", ignore_errors=True)
    return ended


def end(processes: list[Running], patience: float = 5.0) -> None:
    """End processes: the hosts first, so that they start no more, and by force where asking does not help."""
    import psutil

    alive = []
    for one in sorted(processes, key=lambda one: not one.parent):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(one.pid)
            process.send_signal(signal.SIGKILL if not one.parent else signal.SIGTERM)
            alive.append(process)
    _, left = psutil.wait_procs(alive, timeout=patience)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=patience)
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
