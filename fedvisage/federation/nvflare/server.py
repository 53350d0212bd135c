"""Starts NVFlare's server so that a certificate serves one host at a time.

NVFlare lets whoever connects last under a name take its place, so that two hosts with one certificate would throw each
other out for ever. Here the first stays for as long as it gives signs of life, and the second is refused and named in
the log. This file is run by its path and imports nothing of ours: the server needs neither PyTorch nor faces.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.sfm.sfm_endpoint import SfmEndpoint
from nvflare.private.fed.app.server.server_train import main, parse_arguments, version_check

ALIVE = 15.0
"""Seconds since its last message for which a connection counts as alive; hosts send one every three."""

_add = SfmEndpoint.add_connection


def add_connection(self: SfmEndpoint, connection: Any) -> None:
    """Refuse a second connection under a name while the first is alive."""
    with self.lock:
        alive = [other for other in self.connections if time.time() - other.last_activity < ALIVE]
    if alive:
        text = f"refused a second host with the certificate of '{self.endpoint.name}': the first is connected"
        logging.getLogger("fedvisage").error(text)
        connection.conn.close()
        raise CommError(CommError.BAD_DATA, text)
    _add(self, connection)


def serve() -> int:
    """Run the server until it is ended."""
    SfmEndpoint.add_connection = add_connection
    version_check()
    arguments = parse_arguments()
    code: int = MainProcessMonitor.run(main_func=main, run_dir=arguments.workspace, args=arguments)
    return code


if __name__ == "__main__":
    sys.exit(serve())
