"""Watches over a start: where the command that starts hosts is killed before they are all there, they are ended, too.

It waits for a word of that command; where the line breaks without one, it ends every process of the kits it was given.
It is run by its path and imports nothing of ours, so that it is there at once. What it watches over it is told in one
JSON word, so that it is not taken for one of the hosts itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress

import psutil


def found(server: str, kits: Sequence[str]) -> list[psutil.Process]:
    """The hosts' processes and those of their jobs."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word in kits for word in words) and any(word.startswith("nvflare.") or word == server for word in words):
            processes.append(process)
    return processes


def watch(server: str, kits: Sequence[str]) -> None:
    """Wait; end the hosts unless all is well."""
    if sys.stdin.buffer.read():
        return
    while processes := found(server, kits):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=5)


if __name__ == "__main__":
    watch(*json.loads(sys.argv[1]))
