"""The server's regularisers over many class embeddings: closed forms in blocks against their bare matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.common import Row, Scale, memory_row, peak_above, seconds
from fedvisage.losses import gradient_correction_gradient, mined_spreadout_gradient, party_cosines, spreadout_gradient
from fedvisage.losses.correction_blocks import blocks

SIZE, PARTIES, NEAREST = 512, 64, 10
CLASSES = {"smoke": (1_000, 1_000), "normal": (20_000, 10_000), "full": (100_000, 100_000)}
"""For gradient correction, and for spreadout."""


def measure(scale: Scale) -> list[Row]:
    corrected, spread = CLASSES[scale]
    return correction(corrected) + spreading(spread)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call, long enough to need no second one, and MB that it takes."""
    took: list[float] = []
    megabytes = peak_above(lambda: took.append(seconds(work)))
    return took[0], megabytes


def embeddings(classes: int, common: float = 0.0) -> Tensor:
    """Random class embeddings of about unit length, with something in common."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(1, SIZE, generator=generator)
    return (
        torch.randn(classes, SIZE, generator=generator)
        .add_(shared, alpha=common)
        .div_(SIZE**0.5 * (1 + common**2) ** 0.5)
    )


def two_products(rows: Tensor) -> None:
    """All inner products and a product of as many numbers with the rows, a block at a time."""
    total = torch.zeros_like(rows)
    buffer = torch.empty(0)
    for start, stop in blocks(len(rows), len(rows), None):
        buffer = buffer if len(buffer) else rows.new_empty(stop - start, len(rows))
        logits = torch.mm(rows[start:stop], rows.T, out=buffer[: stop - start])
        total.addmm_(logits.T, rows[start:stop])


def correction(classes: int) -> list[Row]:
    rows, owner = embeddings(classes), torch.arange(classes) * PARTIES // classes
    name = f"gradient correction, {classes:,} classes"
    ours, megabytes = timed(lambda: gradient_correction_gradient(rows, owner))
    bare = seconds(lambda: two_products(rows))
    looking = seconds(lambda: party_cosines(rows, owner))
    return [
        Row.of(name, ours, bare, "s", "its two bare matrix products", "<= 1.5"),
        memory_row(name, megabytes),
        Row.of(f"cross-party cosines, {classes:,} classes", looking, bare, "s", "two bare matrix products", "<= 1"),
    ]


def spreading(classes: int) -> list[Row]:
    """Class embeddings of which about one pair in twenty is within the margin."""
    rows = embeddings(classes, common=0.55)
    ours, megabytes = timed(lambda: spreadout_gradient(rows))
    bare = seconds(lambda: two_products(rows))
    exact = spreadout_gradient(rows).gradient
    mined = mined_spreadout_gradient(rows, NEAREST).gradient
    name = f"spreadout, {classes:,} classes"
    error = ((mined - exact).norm() / exact.norm()).item()
    return [
        Row.of(name, ours, bare, "s", "its two bare matrix products", "<= 1.5"),
        memory_row(name, megabytes),
        Row.of(f"{name}, {NEAREST} nearest mined", error, 1.0, "of the gradient", "error against all pairs", "-"),
    ]
