"""A job as three JSON files that name installed classes; a job never carries code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvisage.core.codec import write_atomically

RELAY = "fedvisage.federation.nvflare.controller.Relay"
EXECUTOR = "fedvisage.deploy.site.FaceParty"
FILTER = "fedvisage.deploy.site.FacePolicy"
ALLOWED = (RELAY, EXECUTOR, FILTER)
"""Every class that a job or a site's configuration of ours may name."""
INTERVAL = 0.05
NAME = "fedvisage"


def write_job(folder: Path, sites: Sequence[str], silence: float, executor: str = EXECUTOR) -> Path:
    """A job for some sites, written below `folder`; one application for the server, one for the parties."""
    job = folder / NAME
    meta = {
        "name": NAME,
        "min_clients": 1,
        "mandatory_clients": [],
        "resource_spec": {},
        "deploy_map": {"server": ["server"], "party": list(sites)},
    }
    server = {
        "format_version": 2,
        "server": {"task_request_interval": INTERVAL},
        "workflows": [{"id": "relay", "path": RELAY, "args": {"silence": silence}}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    party = {
        "format_version": 2,
        "default_task_fetch_interval": INTERVAL,
        "task_check_interval": 1.0,
        "job_heartbeat_interval": 2.0,
        "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": {}}}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    _write(job / "meta.json", meta)
    _write(job / "server" / "config" / "config_fed_server.json", server)
    _write(job / "party" / "config" / "config_fed_client.json", party)
    return job


def _write(path: Path, table: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [json.dumps(table, indent=1).encode()])
