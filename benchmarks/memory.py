"""Peak memory with few and with many parties, whole runs in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import Row, Scale

SCRIPT = """
import json, sys
import fedvisage as fv
fv.run(fv.Recipe.model_validate(json.loads(sys.argv[1])), out=sys.argv[2])
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""
"""VmHWM is of this process alone; ru_maxrss would include what the parent had when it started this one."""

Table = dict[str, Any]
PLAIN = {
    "smoke": [(10, 20, "-")],
    "normal": [(10, 10_000, "< 1.1")],
    "full": [(10, 10_000, "< 1.1"), (10, 30_000, "-")],
}
"""Few and many parties of two images each under plain averaging."""
ONE_PERSON = {"smoke": (4, 8, 2, 1, 4), "normal": (100, 10_000, 2, 1, 50), "full": (100, 10_000, 5, 2, 1)}
"""Few and many parties of one person each under FedFace, their images, rounds, and parties computed at a time."""


def measure(scale: Scale) -> list[Row]:
    rows = [
        compared(f"peak memory, {many:,} parties", plain(many), plain(few), few, limit)
        for few, many, limit in PLAIN[scale]
    ]
    few, many, images, rounds, together = ONE_PERSON[scale]
    name = f"peak memory of a whole FedFace run, {many:,} parties x {images} images, {together} at a time"
    more, less = (one_person(parties, images, rounds, together) for parties in (many, few))
    return [*rows, compared(name, more, less, few, "< 1.2")]


def compared(name: str, more: Table, less: Table, few: int, limit: str) -> Row:
    return Row.of(name, peak(more), peak(less), "MB", f"the same run with {few} parties", limit)


def plain(parties: int) -> Table:
    return {
        "faces": {"identities": parties, "images_per_identity": 2, "size": 32},
        "partition": {"parties": parties, "held_out": 0},
        "training": {"batch_size": 2},
        "federation": {"rounds": 1, "workers": 1},
    }


def one_person(parties: int, images: int, rounds: int, together: int) -> Table:
    """Training, the server's step over all class embeddings, checkpoints, map and page."""
    return {
        "faces": {"identities": parties, "images_per_identity": images, "size": 32},
        "partition": {"parties": parties, "identities_per_party": 1, "held_out": 0},
        "training": {"batch_size": 8, "steps": 1, "batchnorm": "fixed"},
        "method": {"name": "fedface", "embeddings_start": "random"},
        "federation": {"rounds": rounds, "workers": 1, "together": together},
    }


def peak(table: Table) -> float:
    """Largest resident memory of a whole run in a process of its own."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, json.dumps(table), f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
