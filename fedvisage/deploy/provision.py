"""Certificates and start-up kits, and a configuration at every site that forbids what must not be.

NVFlare's own provisioning makes the CA and the kits. On top of its defaults every site and the server get: no code from
jobs, no shell commands, no log streaming, our classes only, and the party's policy as a filter on all results.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.core.errors import FedVisageError
from fedvisage.deploy.folder import ADMIN, SITE, Deployment, Settings
from fedvisage.deploy.party import PartyFolder
from fedvisage.deploy.party import Settings as PartySettings
from fedvisage.deploy.words import party_readme, readme, start_script
from fedvisage.federation.nvflare.jobs import ALLOWED, FILTER
from fedvisage.privacy import Policy

ROOT_DAYS = 3650
"""How long the CA is valid. Certificates of server and sites are valid for 360 days; see `renew`."""
ORGANISATION = "fedvisage"
RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "byoc",
    "server-predeployed-flwr",
)
NEVER = frozenset({"clone_job", "shell_commands", "byoc", "server-predeployed-flwr"})


def create(folder: Path, settings: Settings, policy: Policy | None = None) -> Deployment:
    """Make a federation's folder; nothing of it stays where that fails."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedVisageError(f"{folder} is not an empty folder: choose another")
    there = folder.exists()
    deployment = Deployment(folder, settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        _lay_out(deployment, policy or Policy())
    except OSError as error:
        raise FedVisageError(f"cannot write {folder}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if there:
            folder.mkdir()
        raise
    return deployment


def _lay_out(deployment: Deployment, policy: Policy) -> None:
    kits = provision(deployment)
    shutil.move(kits / deployment.settings.host, deployment.server)
    shutil.move(kits / ADMIN, deployment.admin)
    _secure_server(deployment.server)
    for name, role in deployment.roles.items():
        folder = deployment.party(name)
        folder.mkdir(parents=True, mode=0o700)
        shutil.move(kits / name, folder / SITE)
        secure_site(folder / SITE)
        PartyFolder(folder, PartySettings(name=name, role=role, policy=policy)).save()
        _script(folder / "start.sh", start_script("party start"))
        (folder / "README.md").write_text(party_readme(deployment.settings, name), "utf-8")
    shutil.rmtree(kits)
    _script(deployment.folder / "start-server.sh", start_script("deploy start-server"))
    (deployment.folder / "README.md").write_text(readme(deployment.settings), "utf-8")
    deployment.save()


def provision(deployment: Deployment) -> Path:
    """Certificates and kits for everybody who has none yet; the folder they are in."""
    from nvflare.lighter.provision import prepare_builders, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    settings, work = deployment.settings, deployment.authority
    server: dict[str, Any] = {"name": settings.host, "type": "server", "fed_learn_port": settings.port}
    server["connection_security"] = "mtls"
    sites = [{"name": name, "type": "client", "allow_log_streaming": False} for name in deployment.roles]
    admin = {"name": ADMIN, "type": "admin", "role": "project_admin"}
    project = {
        "api_version": 3,
        "name": settings.name,
        "description": "A FedVisage federation.",
        "participants": [entry | {"org": ORGANISATION} for entry in (server, *sites, admin)],
        "builders": [
            _builder("workspace.WorkspaceBuilder", template_file=["master_template.yml"]),
            _builder("static_file.StaticFileBuilder", config_folder="config", scheme="grpc"),
            _builder("cert.CertBuilder", root_valid_days=ROOT_DAYS),
            _builder("signature.SignatureBuilder"),
        ],
    }
    work.mkdir(mode=0o700, exist_ok=True)
    try:
        provisioner = Provisioner(str(work), prepare_builders(project), None)
        done = provisioner.provision(prepare_project(project), logger=logging.getLogger(__name__))
    except (ValueError, RuntimeError) as error:
        raise FedVisageError(f"cannot make certificates: {error}") from error
    if done.get("__build_error__"):
        raise FedVisageError("cannot make certificates; NVFlare says why above")
    return Path(str(done["current_prod_dir"]))


def renew(deployment: Deployment) -> list[Path]:
    """New keys and certificates of the same CA for everybody; the folders that changed."""
    state = next(deployment.authority.glob("*/state/cert.json"), None)
    if state is None:
        raise FedVisageError(f"{deployment.authority} holds no CA: renew where it is kept")
    kept = {name: value for name, value in _read(state).items() if name in ("root_cert", "root_pri_key")}
    before = state.read_bytes()
    try:
        _write(state, kept)
        kits = provision(deployment)
    except BaseException:
        state.write_bytes(before)
        raise
    homes = {deployment.settings.host: deployment.server, ADMIN: deployment.admin}
    homes |= {name: deployment.party(name) / SITE for name in deployment.roles}
    changed = []
    for name, home in homes.items():
        target = home / "startup" if home.is_dir() else deployment.folder / "renewed" / name
        target.mkdir(parents=True, exist_ok=True)
        for path in (kits / name / "startup").iterdir():
            if path.suffix in (".crt", ".key"):
                shutil.copy2(path, target / path.name)
        changed.append(target)
    shutil.rmtree(kits)
    return changed


def _builder(path: str, **args: Any) -> dict[str, Any]:
    return {"path": f"nvflare.lighter.impl.{path}", "args": args}


def secure_site(kit: Path) -> None:
    """Forbid at a site what must not be, and put the party's policy before everything that leaves."""
    resources = _read(kit / "local" / "resources.json.default")
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": list(ALLOWED)}
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if "log" not in part["id"]]
    _write(kit / "local" / "resources.json", resources)
    _write(kit / "local" / "authorization.json", authorization())
    scope = {"name": "fedvisage", "task_result_filters": [{"path": FILTER, "args": {}}]}
    _write(kit / "local" / "privacy.json", {"scopes": [scope], "default_scope": "fedvisage"})


def _secure_server(kit: Path) -> None:
    resources = _read(kit / "local" / "resources.json.default")
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": list(ALLOWED)}
    resources["servers"][0] |= {"heart_beat_timeout": 30}
    resources["components"] = [part for part in resources["components"] if "log" not in part["id"]]
    for part in resources["components"]:
        if part["id"] == "job_scheduler":
            part["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 5.0}
    _write(kit / "local" / "resources.json", resources)
    _write(kit / "local" / "authorization.json", authorization())
    place_server(kit)


def place_server(kit: Path) -> None:
    """Keep jobs and snapshots in the server's folder, wherever that is now: NVFlare wants absolute paths."""
    path = kit / "local" / "resources.json"
    resources = _read(path)
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit / "jobs")
    if resources != _read(path):
        _write(path, resources)


def authorization() -> dict[str, Any]:
    """Nobody may send code or shell commands; the administrator may submit and end jobs, others may do nothing."""
    admin = {right: "none" if right in NEVER else "any" for right in RIGHTS}
    nothing = dict.fromkeys(RIGHTS, "none")
    roles = {"project_admin": admin, "org_admin": nothing, "lead": nothing, "member": nothing}
    return {"format_version": "1.0", "permissions": roles}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _read(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return table


def _write(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=1) + "\n", "utf-8")


def _script(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    os.chmod(path, 0o755)
