"""What `deploy init` writes for people: start scripts and the operators' first page."""

from __future__ import annotations

from fedvisage.deploy.folder import Settings


def start_script(command: str) -> str:
    """Runs one host in the foreground; a service manager or a container restarts it."""
    return f"""#!/usr/bin/env bash
# Runs in the foreground until it is ended. PYTHON names the interpreter that has fedvisage[nvflare] installed.
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
exec "${{PYTHON:-python3}}" -m fedvisage {command} "$here"
"""


def readme(settings: Settings) -> str:
    """The page of the server's operator."""
    return f"""# Federation `{settings.name}`

Server: `{settings.host}`, port {settings.port}. Parties: {", ".join(sorted(settings.parties))}.

1. Copy each folder of `parties/` to its operator by a way you both trust, whole, and remove it here. It holds that
   party's private key. Whoever has the key is the party.
2. Keep `authority/` safe and off line: it signs certificates.
3. On the server: `./start-server.sh`. Open TCP port {settings.port} to the parties; nothing else listens.
4. When the parties are connected (`fedvisage deploy status .`): `fedvisage run RECIPE --on .`

All of it on this machine, for trying: `fedvisage deploy up .`, then `run`, then `fedvisage deploy down .`.
Certificates expire; `fedvisage deploy status .` says when, `fedvisage deploy renew .` makes new ones.
"""


def party_readme(settings: Settings, name: str) -> str:
    """The page of a party's operator."""
    return f"""# Party `{name}` of federation `{settings.name}`

This folder is yours. Nothing in it is ever sent except what `party.toml` allows to leave.

1. Install: `pip install 'fedvisage[nvflare]'`. The code that reads your faces is this installed package; the server
   cannot send any.
2. Put your people into `faces/` (see `fedvisage data`), and public faces, where the recipe needs them, into `public/`.
3. Read `party.toml`. `fedvisage party check . RECIPE` shows what a recipe would send and whether you allow it.
4. `./start.sh` runs in the foreground. It dials out to `{settings.host}:{settings.port}`; no port of yours is opened.

`log/RUN.jsonl` lists every parcel that came and left, `log/party.log` what was agreed to and refused, `site/log.txt` is
NVFlare's own. Back up `state/` (what your people's models continue from) together with `party.toml` and `site/`.
When a run has finished, `model.safetensors` is your model: `fedvisage evaluate`, `identify` and `export` take this
folder for it.
"""
