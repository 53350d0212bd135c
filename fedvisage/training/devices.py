"""Where training runs, and in which precision.

Reduced precision is used only where it was seen to work: on a CPU a tiny network is tried in a process of its own
first, since some CPUs end a bfloat16 convolution with an illegal instruction.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from fedvisage.core.errors import FedVisageError

_TRIAL = """
import torch
layer = torch.nn.Conv2d(8, 8, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    layer(torch.ones(2, 8, 16, 16)).float().sum().backward()
"""


def choose_device(wanted: str, worker: int = 0) -> torch.device:
    """The device of a worker: with several GPUs each worker has its own."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and not count:
        raise FedVisageError("federation.device is 'cuda', but PyTorch sees no GPU here")
    return torch.device("cuda", worker % count) if count and wanted != "cpu" else torch.device("cpu")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which forward passes run."""
    if precision == "fp32":
        return nullcontext()
    works = cpu_has_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
    if not works:
        raise FedVisageError(f"this {device.type.upper()} cannot train in bf16: use training.precision = 'fp32'")
    return torch.autocast(device.type, dtype=torch.bfloat16)


@cache
def cpu_has_bfloat16() -> bool:
    """Whether a forward and backward pass in bfloat16 survives on this CPU."""
    return subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, check=False).returncode == 0


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch with so many threads: the last bits of a result depend on how many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
