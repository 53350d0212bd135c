"""Spreadout over many class embeddings, a square of pairs at a time: how large it is, and that it changes nothing."""

from __future__ import annotations

import pytest
import torch

from fedvisage.losses import spreadout_gradient
from fedvisage.losses.spreadout import LARGEST_TILE, SMALLEST_TILE, tile


@pytest.mark.parametrize(("classes", "size"), [(10_000, 128), (10_000, 512), (140, 128), (100_000, 512)])
def test_a_square_takes_no_more_than_the_class_embeddings_do_within_bounds(classes: int, size: int) -> None:
    rows = tile(classes, size)
    assert SMALLEST_TILE <= rows <= LARGEST_TILE
    assert rows == SMALLEST_TILE or rows**2 <= classes * size


def test_several_squares_give_what_one_gives() -> None:
    """More classes than the smallest square has rows; in double precision, so that only the sums' order differs."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(SMALLEST_TILE + 300, 8, generator=generator, dtype=torch.float64)
    several, one = spreadout_gradient(embeddings), spreadout_gradient(embeddings, block=len(embeddings))
    assert several.value == pytest.approx(one.value, rel=1e-12)
    torch.testing.assert_close(several.gradient, one.gradient)
