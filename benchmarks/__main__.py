"""`make bench`: run all benchmarks, print a table, write benchmarks/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

import torch

from fedvisage.cli.output import show_table

ALL = (
    "synthetic",
    "party_cost",
    "training_cost",
    "workers",
    "memory",
    "partial_training",
    "recognition",
    "regularisers",
    "clustering",
    "hard_negatives",
    "evaluation",
    "momentum",
    "importing",
    "fuzzing",
    "nvflare",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], help="which ones; all by default")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", dest="scale", action="store_const", const="full", help="larger sizes, more repetitions")
    size.add_argument(
        "--smoke", dest="scale", action="store_const", const="smoke", help="a few steps, figures mean nothing"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in chosen.names or ALL:
        begin = time.perf_counter()
        rows += importlib.import_module(f"benchmarks.{name}").measure(chosen.scale or "normal")
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    if chosen.scale != "smoke":
        path = Path(__file__).with_name("results.json")
        path.write_text(json.dumps([row.table() for row in rows], indent=1) + "\n")
    columns = ["benchmark", "ours", "reference", "unit", "ratio", "limit", "against", "load"]
    lines = [
        [r.name, f"{r.ours:.2f}", f"{r.reference:.2f}", r.unit, f"{r.ratio:.3f}", r.limit, r.peer, f"{r.load:.1f}"]
        for r in rows
    ]
    show_table(columns, lines)


if __name__ == "__main__":
    main()
