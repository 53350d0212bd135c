"""Talking to NVFlare's server as its administrator: who is connected, submit a job, what became of it.

The session is held by a process of its own (see `admin`), which is started when first needed and again when a question
fails: sessions expire while rounds take hours, and end with the server.
"""

from __future__ import annotations

import json
import logging
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fedvisage.core.errors import FedVisageError
from fedvisage.federation.nvflare.jobs import NAME

Value = TypeVar("Value")
ADMIN = Path(__file__).with_name("admin.py")
RECENT = 10.0
"""Seconds since a site's last sign of life for which it counts as connected; it gives one every three."""
SLOWEST = 60.0
"""Seconds to wait for an answer of the server."""


class Unreachable(Exception):
    """The server does not answer, or not yet."""


class Console:
    """The administrator at the server's door."""

    def __init__(self, kit: Path, user: str, server_log: Path) -> None:
        """`server_log` is read for what became of a job."""
        self._kit, self._user, self._server_log = kit, user, server_log
        self._process: subprocess.Popen[bytes] | None = None

    def connected(self) -> set[str]:
        """Names of the sites that the server has heard of just now; a dead one is listed by it for much longer."""
        return set(self._ask("connected", RECENT))

    def submit(self, job: Path) -> str:
        """Submit a job folder; its id."""
        return str(self._ask("submit", str(job.absolute())))

    def abort_ours(self) -> int:
        """End jobs of ours that still run: a federation does one run at a time, so they are left over."""
        return int(self._ask("abort", NAME))

    def status(self, job: str) -> str:
        """What the server says of a job."""
        return str(self._ask("status", job))

    def culprit(self, job: str) -> str:
        """The site whose process brought a job down, as far as the server's log tells."""
        try:
            text = self._server_log.read_bytes()[-(1 << 20) :].decode("utf-8", "replace")
        except OSError:
            return ""
        found = re.findall(rf"job {re.escape(job)} due to reported failure from ([\w.@-]+):", text)
        return found[0] if found else ""

    def _ask(self, question: str, about: Any) -> Any:
        while True:
            new = self._process is None
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                process.stdin.write(json.dumps({"ask": question, "about": about}).encode() + b"\n")
                process.stdin.flush()
                return self._answer(process)
            except (OSError, ValueError, Unreachable) as error:
                self.close()
                if new:
                    raise Unreachable(str(error)) from error

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", str(ADMIN), str(self._kit), self._user]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True)
        self._answer(self._process)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> Any:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], SLOWEST)
        line = process.stdout.readline() if ready else b""
        if not line:
            raise Unreachable("no answer" if not ready else "the administrator's process ended")
        table = json.loads(line)
        if "answer" not in table:
            raise Unreachable(str(table.get("error")))
        return table["answer"]

    def close(self) -> None:
        """End the session."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.kill()
        process.wait()


def patiently(work: Callable[[], Value], patience: float, what: str) -> Value:
    """Try until the server answers; after `patience` seconds say what could not be done."""
    give_up = time.monotonic() + patience
    while True:
        try:
            return work()
        except Unreachable as error:
            logging.getLogger(__name__).debug("%s: %s", what, error)
            if time.monotonic() > give_up:
                raise FedVisageError(
                    f"{what}: the federation's server did not answer for {patience:.0f} s ({error}); "
                    "start it, then go on with --resume"
                ) from error
            time.sleep(1.0)
