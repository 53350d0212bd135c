"""The federation's folder on the server's host: `federation.toml`, the CA, the server's kit, the administrator's kit.

`parties/` holds one folder per party. Each is handed to its operator whole; on one machine, for trying, they stay.
"""

from __future__ import annotations

import fcntl
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from fedvisage.config import Positive, Section, to_toml, validated
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.phase import ROLES
from fedvisage.federation.nvflare.console import Console
from fedvisage.federation.nvflare.transport import Station

SETTINGS = "federation.toml"
ADMIN = "operator@fedvisage.org"
SITE = "site"
"""The start-up kit inside a party's folder."""


class Settings(Section):
    """federation.toml."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")] = "federation"
    host: Annotated[str, Field(min_length=1, max_length=63)] = "localhost"
    """The server's name as the parties reach it; it is in the server's certificate."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8102
    silence: Positive = 30.0
    """Seconds without a sign of life after which a party's process is given up."""
    patience: Positive = 600.0
    """Seconds a run waits for a server that does not answer."""
    gather: Positive = 60.0
    """Seconds a run waits for sites that are not connected."""
    parties: dict[str, str]
    """Roles by party."""

    @field_validator("parties")
    @classmethod
    def _roles_exist(cls, parties: dict[str, str]) -> dict[str, str]:
        for party, role in parties.items():
            if role not in ROLES:
                raise ValueError(f"{party} has the role '{role}': {nearest(role, ROLES)}")
        if not parties:
            raise ValueError("a federation needs parties")
        return parties


class Deployment:
    """A federation's folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder.absolute(), settings

    @property
    def roles(self) -> Mapping[str, str]:
        """Roles by party, in the order of names."""
        return dict(sorted(self.settings.parties.items()))

    @property
    def server(self) -> Path:
        """The server's start-up kit and workspace."""
        return self.folder / "server"

    @property
    def admin(self) -> Path:
        """The administrator's start-up kit."""
        return self.folder / "admin"

    @property
    def authority(self) -> Path:
        """What signs certificates; whoever holds it can add parties."""
        return self.folder / "authority"

    def party(self, name: str) -> Path:
        """A party's folder, as long as it is on this machine."""
        return self.folder / "parties" / name

    def kits(self) -> dict[str, Path]:
        """Start-up kits of server and parties that are on this machine."""
        kits = {"server": self.server} | {name: self.party(name) / SITE for name in self.roles}
        return {name: kit for name, kit in kits.items() if (kit / "startup").is_dir()}

    @cached_property
    def console(self) -> Console:
        """The administrator's way to the server."""
        return Console(self.admin, ADMIN, self.server / "log.txt")

    @property
    def station(self) -> Station:
        """Where a run meets this federation."""
        given = self.settings
        return Station(self.server, self.console, tuple(self.roles), given.silence, given.patience, given.gather)

    def save(self) -> None:
        """Write federation.toml."""
        write_atomically(self.folder / SETTINGS, [to_toml(self.settings).encode()])

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """One run at a time: its jobs are told from left-over ones by that."""
        handle = os.open(self.folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedVisageError(f"another run uses {self.folder}; wait for it, or end it") from None
            yield
        finally:
            os.close(handle)


def open_deployment(folder: Path) -> Deployment:
    """The federation in a folder."""
    path = folder / SETTINGS
    if not path.is_file():
        raise FedVisageError(f"no federation in {folder}: {SETTINGS} is missing; make one with `fedvisage deploy init`")
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedVisageError(f"cannot read {path}: {error}") from None
    return Deployment(folder, validated(Settings, table, str(path)))
