"""Peak memory with 10 and with 10,000 parties of two images each, a whole run in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from tempfile import TemporaryDirectory

from benchmarks.common import Row, Scale

SCRIPT = """
import sys
import fedvisage as fv
from fedvisage.config import Recipe
parties, folder = int(sys.argv[1]), sys.argv[2]
fv.run(Recipe.model_validate({
    "faces": {"identities": parties, "images_per_identity": 2, "size": 32},
    "partition": {"parties": parties, "held_out": 0},
    "training": {"batch_size": 2},
    "federation": {"rounds": 1, "workers": 1},
}), out=folder)
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""
"""VmHWM is of this process alone; ru_maxrss would include what the parent had when it started this one."""

SIZES = {"smoke": {20: "-"}, "normal": {10_000: "< 1.1"}, "full": {10_000: "< 1.1", 30_000: "-"}}


def measure(scale: Scale) -> list[Row]:
    few_mb, peer, rows = peak(10), "the same run with 10 parties", []
    for many, limit in SIZES[scale].items():
        rows.append(Row.of(f"peak memory, {many:,} parties", peak(many), few_mb, "MB", peer, limit))
    return rows


def peak(parties: int) -> float:
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SCRIPT, str(parties), f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
