"""The administrator's session with NVFlare's server, in a process of its own: questions in, answers out, as JSON lines.

NVFlare keeps the state of a session in globals, and a process that failed to log in once cannot do so again. This one
is small (it imports nothing of ours), ends with whoever started it, and is started anew after any trouble. It is run
by its path, with the administrator's kit and name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ACTIVE = ("RUNNING", "SUBMITTED", "APPROVED", "DISPATCHED")


def connected(session: Any, recent: float) -> list[str]:
    """Sites of which the server has heard within so many seconds."""
    clients = session.get_connected_client_list()
    return [client.name for client in clients if time.time() - (client.last_connect_time or 0) < recent]


def abort(session: Any, name: str) -> int:
    """End the active jobs of a name; how many there were."""
    found = [job for job in session.list_jobs(limit=20, reverse=True) if job.get("job_name") == name]
    active = [job["job_id"] for job in found if str(job.get("status")).startswith(ACTIVE)]
    for job in active:
        with suppress(Exception):  # after a crash the server lists jobs as running that it does not know any more
            session.abort_job(job)
    return len(active)


def submit(session: Any, folder: str) -> str:
    """Submit a job folder; its id."""
    return str(session.submit_job(folder))


def status(session: Any, job: str) -> str:
    """What the server says of a job."""
    return str(session.get_job_meta(job).get("status", "unknown"))


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "connected": connected,
    "abort": abort,
    "submit": submit,
    "status": status,
}


def serve(kit: str, user: str) -> None:
    """Log in, then answer until nobody asks any more."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        session = new_secure_session(user, kit, timeout=5.0, auto_login_max_tries=1)
        say({"answer": "ready"})
        for line in sys.stdin:
            question = json.loads(line)
            say({"answer": ANSWERS[question["ask"]](session, question["about"])})
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    os._exit(0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
