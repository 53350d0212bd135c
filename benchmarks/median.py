"""The median over answers in files, against NumPy's reading the same files: `python -m benchmarks.median`.

Not among the benchmarks that `make bench` runs: fifty models of 24 million numbers are 5 GB of files.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.common import seconds
from fedvisage.federation.stack import BLOCK_BYTES, Stack
from fedvisage.methods.rules import Median

PARTIES, NUMBERS = 50, 24_000_000


def anonymous() -> float:
    """MB of this process that no file stands behind."""
    lines = Path("/proc/self/smaps_rollup").read_text("utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) / 1000


def main() -> None:
    """Print seconds of both, their ratio, and the memory above that of the result."""
    numbers = int(sys.argv[1]) if len(sys.argv) > 1 else NUMBERS
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        stack, generator, paths = Stack(Path(name)), np.random.default_rng(0), Path(name)
        for party in range(PARTIES):
            values = torch.from_numpy(generator.standard_normal(numbers, dtype=np.float32))
            stack.add(f"{party:02d}", {"backbone": {"w": values}})
        stack.keep(sorted(stack.parties))
        before, peak, done = anonymous(), [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                peak[0] = max(peak[0], anonymous() - before)

        watcher = threading.Thread(target=watch)
        watcher.start()
        ours = seconds(lambda: Median().reduce(stack, [1.0] * PARTIES, stack))
        done.set()
        watcher.join()

        def reference() -> None:
            files = [np.memmap(path, np.float32, "r") for path in sorted(paths.glob("*.numbers"))]
            found, step = np.empty(numbers, np.float32), BLOCK_BYTES // 4 // PARTIES
            for start in range(0, numbers, step):
                block = np.stack([file[start : start + step] for file in files])
                found[start : start + step] = np.median(block, axis=0)

        theirs, model = seconds(reference), 4 * numbers / 1e6
        print(f"{PARTIES} x {numbers:,}: {ours:.1f} s, NumPy {theirs:.1f} s, ratio {ours / theirs:.2f}")
        print(f"anonymous memory {peak[0]:.0f} MB above what was held before; the result is {model:.0f} MB of it")


if __name__ == "__main__":
    main()
