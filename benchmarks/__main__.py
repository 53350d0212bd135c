"""`make bench`: run all benchmarks, each in a process of its own, print a table, write benchmarks/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.common import Row, Scale
from fedvisage.cli.output import show_table

BESIDE = ("training_cost", "partial_training", "regularisers", "hard_negatives", "evaluation", "recognition", "fuzzing")
"""Of one thread, and steady or without times: they run while `memory`, which measures no time, uses the other core."""
ALONE = (
    "synthetic",
    "party_cost",
    "one_person",
    "personal_training",
    "momentum",
    "workers",
    "clustering",
    "importing",
    "nvflare",
)
ALL = ("memory", *BESIDE, *ALONE)
RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], help="which ones; all by default")
    parser.add_argument("--rows", action="store_true", help="print one benchmark's rows as JSON, and nothing else")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", dest="scale", action="store_const", const="full", help="larger sizes, more repetitions")
    size.add_argument(
        "--smoke", dest="scale", action="store_const", const="smoke", help="a few steps, figures mean nothing"
    )
    chosen = parser.parse_args()
    scale: Scale = chosen.scale or "normal"
    torch.set_num_threads(1)
    if chosen.rows:
        print(json.dumps([row.table() for row in here(chosen.names[0], scale)]))
        return
    if chosen.names or scale == "smoke":
        rows = one_by_one(chosen.names or ALL, scale)
    else:
        with ThreadPoolExecutor(1) as pool:
            memory = pool.submit(one_by_one, ("memory",), scale)
            rows = one_by_one(BESIDE, scale) + memory.result()
        rows += one_by_one(ALONE, scale)
    if scale != "smoke":
        keep(rows)
    show(rows)


def one_by_one(names: Sequence[str], scale: Scale) -> list[Row]:
    rows = []
    for name in names:
        begin = time.perf_counter()
        rows += here(name, scale) if scale == "smoke" else apart(name, scale)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return rows


def here(name: str, scale: Scale) -> list[Row]:
    """One benchmark in this process."""
    found: list[Row] = importlib.import_module(f"benchmarks.{name}").measure(scale)
    return found


def apart(name: str, scale: Scale) -> list[Row]:
    """One benchmark in a fresh process: what the others left in memory does not count."""
    command = [sys.executable, "-m", "benchmarks", name, "--rows", *(["--full"] if scale == "full" else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"benchmark '{name}' failed")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def keep(rows: list[Row]) -> None:
    """Put the new rows into the file of results, in place of older ones of the same names."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    merged = {row["name"]: row for row in (*known, *(row.table() for row in rows))}
    RESULTS.write_text(json.dumps(list(merged.values()), indent=1) + "\n", "utf-8")


def show(rows: list[Row]) -> None:
    columns = ["benchmark", "ours", "reference", "unit", "ratio", "limit", "against", "load"]
    lines = [
        [r.name, f"{r.ours:.2f}", f"{r.reference:.2f}", r.unit, f"{r.ratio:.3f}", r.limit, r.peer, f"{r.load:.1f}"]
        for r in rows
    ]
    show_table(columns, lines)


if __name__ == "__main__":
    main()
