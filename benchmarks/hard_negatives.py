"""Selection of hard negatives against the bare matrix product of local and public features."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.common import Row, Scale, memory_row, peak_above, seconds, side_by_side
from fedvisage.training.hard_negatives import hard_negatives

SIZE = 512
COUNTS = {"smoke": (400, 4_000), "normal": (6_400, 20_000), "full": (6_400, 420_000)}
"""Local and public images; the last are those of the FedFR paper's largest parties."""


def measure(scale: Scale) -> list[Row]:
    generator = torch.Generator().manual_seed(1)
    local, public = (torch.randn(count, SIZE, generator=generator) for count in COUNTS[scale])
    megabytes = peak_above(lambda: hard_negatives(local, public))
    ours, bare, ratio = side_by_side(
        lambda: seconds(lambda: hard_negatives(local, public)),
        lambda: seconds(lambda: product(local, public)),
        1 if scale == "full" else 3,
        warm=False,
    )
    name = f"hard negatives, {len(local):,} x {len(public):,}"
    return [Row.of(name, ours, bare, "s", "its bare matrix product", "<= 1.3", ratio), memory_row(name, megabytes)]


def product(local: Tensor, public: Tensor) -> None:
    """All inner products, a block of public features at a time."""
    buffer = local.new_empty(2048, len(local))
    for block in torch.split(public, 2048):
        torch.mm(block, local.T, out=buffer[: len(block)])
