"""`fedvisage deploy`: make a federation of real hosts, and run it on this machine for trying."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.build import resolve
from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.cli.run import Changes
from fedvisage.config import load_recipe, parse_change, validated
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import TRAINER
from fedvisage.deploy import Deployment, open_deployment, require_nvflare
from fedvisage.deploy.certificates import Certificate, issued, kit_certificates
from fedvisage.deploy.folder import Settings
from fedvisage.privacy import Policy

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]


@app.command("init")
def init_command(
    folder: Folder,
    parties: Annotated[int | None, typer.Option(min=1, help="How many parties; a recipe says it, too.")] = None,
    recipe: Annotated[str, typer.Option(help="Hand this recipe's faces out to the parties, for trying.")] = "",
    changes: Changes = None,
    host: Annotated[str, typer.Option(help="The server's name, as the parties reach it.")] = "localhost",
    port: Annotated[int, typer.Option(help="The server's port; 0 for a free one of this machine.")] = 8102,
    name: Annotated[str, typer.Option(help="The federation's name.")] = "federation",
    allow: Annotated[list[str] | None, typer.Option(help="Let GROUP (or GROUP=sum) leave in every policy.")] = None,
    as_json: Json = False,
) -> None:
    """Create a federation: CA, certificates, a folder for the server and one for every party."""
    require_nvflare()
    from fedvisage.deploy.provision import create, free_port
    from fedvisage.deploy.shares import hand_out, roles_of

    chosen = resolve(load_recipe(recipe, dict(map(parse_change, changes or [])))) if recipe else None
    if chosen is None and parties is None:
        raise FedVisageError("say how many parties there are (--parties), or give a --recipe")
    roles = roles_of(chosen) if chosen else _names(parties or 0)
    if parties is not None and parties != len(roles):
        raise FedVisageError(f"--parties {parties}, but the recipe has {len(roles)}")
    table = {"name": name, "host": host, "port": port or free_port(), "parties": roles}
    groups = {group: how or "individual" for group, _, how in (word.partition("=") for word in allow or [])}
    policy = validated(Policy, {"groups": {**Policy().groups, **groups}}, "--allow")
    deployment = create(folder, validated(Settings, table, "deploy init"), policy)
    if chosen:
        hand_out(chosen, deployment)
    if as_json:
        show_json({"folder": str(deployment.folder), "parties": list(roles), "port": deployment.settings.port})
    else:
        print(f"{len(roles)} parties in {folder}; read {folder / 'README.md'}")


def _names(count: int) -> dict[str, str]:
    digits = max(2, len(str(count - 1)))
    return {f"party-{number:0{digits}d}": TRAINER for number in range(count)}


@app.command("up")
def up_command(folder: Folder, as_json: Json = False) -> None:
    """Start the whole federation on this machine, as real processes on the loopback interface."""
    require_nvflare()
    from fedvisage.deploy.processes import up

    deployment = open_deployment(folder)
    found = up(deployment)
    deployment.console.close()
    if as_json:
        show_json({"processes": [vars(one) for one in found]})
    else:
        print(f"{len(deployment.roles)} parties are connected to port {deployment.settings.port}")


@app.command("down")
def down_command(folder: Folder, as_json: Json = False) -> None:
    """End every process of the federation on this machine."""
    require_nvflare()
    from fedvisage.deploy.processes import down

    ended = down(open_deployment(folder))
    if as_json:
        show_json({"ended": ended})
    else:
        print(f"{ended} processes ended")


@app.command("status")
def status_command(folder: Folder, as_json: Json = False) -> None:
    """Say who runs, who is connected, and when certificates expire."""
    require_nvflare()
    deployment = open_deployment(folder)
    table = _status(deployment)
    if as_json:
        show_json(table)
        return
    rows = [
        [host, entry["role"], entry["running"], entry["connected"], entry["expires"]]
        for host, entry in table["hosts"].items()
    ]
    title = f"{deployment.settings.name} at {deployment.settings.host}:{deployment.settings.port}"
    show_table(["host", "role", "processes", "connected", "certificate until"], rows, title=title)
    for warning in table["warnings"]:
        print(f"warning: {warning}")


def _status(deployment: Deployment) -> dict[str, Any]:
    from fedvisage.deploy.processes import running
    from fedvisage.federation.nvflare.console import Unreachable

    found = running(deployment)
    try:
        connected: set[str] | None = deployment.console.connected() if found else set()
    except Unreachable:
        connected = None
    deployment.console.close()
    known = _certificates(deployment)
    hosts: dict[str, dict[str, str]] = {}
    for host in ("server", OPERATOR, *deployment.roles):
        party = host in deployment.roles
        first = known.get(host)
        hosts[host] = {
            "role": deployment.roles.get(host, host),
            "running": str(sum(one.host == host for one in found)),
            "connected": "" if not party else "?" if connected is None else "yes" if host in connected else "no",
            "expires": first.expires.strftime("%Y-%m-%d") if first else "?",
        }
    warnings = []
    for host, first in known.items():
        if first.days_left < SOON:
            say = "has expired" if first.days_left <= 0 else f"expires in {first.days_left:.0f} days"
            warnings.append(
                f"the certificate {first.path.name} of {host} {say}: fedvisage deploy renew {deployment.folder}"
            )
    return {"hosts": hosts, "warnings": warnings}


def _certificates(deployment: Deployment) -> dict[str, Certificate]:
    """Whichever expires first of a host's own and the CA's; those of parties elsewhere are known to the CA."""
    kits = deployment.kits() | {OPERATOR: deployment.admin}
    found = {host: min(kit_certificates(kit), key=lambda one: one.expires) for host, kit in kits.items()}
    elsewhere = {host: one for host, one in issued(deployment.authority).items() if host in deployment.roles}
    return elsewhere | found


OPERATOR = "operator"
SOON = 30


@app.command("logs")
def logs_command(
    folder: Folder,
    host: Annotated[str, typer.Argument(help="`server` or a party.")] = "server",
    lines: Annotated[int, typer.Option(min=1, help="How many lines.")] = 40,
    as_json: Json = False,
) -> None:
    """Show the end of a host's log."""
    deployment = open_deployment(folder)
    kits = deployment.kits()
    if host not in kits:
        raise FedVisageError(f"no host '{host}' here: {', '.join(kits)}")
    path = kits[host] / "log.txt"
    if not path.is_file():
        raise FedVisageError(f"{path} is not there yet: {host} has never run")
    text = path.read_text("utf-8", "replace").splitlines()[-lines:]
    if as_json:
        show_json({"log": str(path), "lines": text})
    else:
        print("\n".join(text))


@app.command("renew")
def renew_command(folder: Folder, as_json: Json = False) -> None:
    """Make new certificates of the same CA for the server, the administrator and every party."""
    require_nvflare()
    from fedvisage.deploy.provision import renew

    deployment = open_deployment(folder)
    places = renew(deployment)
    if as_json:
        show_json({"renewed": [str(place) for place in places]})
        return
    print("\n".join(f"{place}" for place in places))
    print("restart the hosts; send parties that are elsewhere the two files of their site/startup folder")


@app.command("start-server")
def start_server_command(folder: Folder) -> None:
    """Run the server in the foreground; `start-server.sh` does this."""
    require_nvflare()
    from fedvisage.deploy.processes import become, server_command

    open_deployment(folder)
    become(*server_command(folder))
