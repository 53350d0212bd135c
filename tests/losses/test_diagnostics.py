"""Cosines across and within parties, and the signs of a collapse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.losses import diagnostics, effective_rank, mean_cosine, party_cosines
from fedvisage.losses.diagnostics import RESOLUTION


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 6), st.floats(0.01, 1), st.integers(2, 50))
def test_party_cosines_equal_all_pairs_written_out(
    seed: int, classes: int, parties: int, quantile: float, tile: int
) -> None:
    embeddings = normal(seed, classes, 5)
    owner = torch.randint(parties, (classes,), generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnostics, "TILE", tile)
        found = party_cosines(embeddings, owner, quantile)
    unit = torch.nn.functional.normalize(embeddings.double())
    cosines = (unit @ unit.T).numpy()
    upper = np.triu(np.ones_like(cosines, dtype=bool), 1)
    same = owner.numpy()[:, None] == owner.numpy()
    for kind, mask in ((found.across, upper & ~same), (found.within, upper & same)):
        values = cosines[mask]
        assert kind.pairs == values.size
        if not values.size:
            assert math.isnan(kind.mean)
            assert math.isnan(kind.quantile)
            continue
        assert kind.mean == pytest.approx(values.mean(), abs=1e-6)
        exact = np.quantile(values, quantile, method="inverted_cdf")
        assert exact - 1e-6 <= kind.quantile <= exact + RESOLUTION + 1e-6


def test_mean_cosine_and_effective_rank_show_a_collapse() -> None:
    spread, collapsed = torch.eye(16), torch.ones(16, 16) + 1e-4 * normal(0, 16, 16)
    assert mean_cosine(spread) == pytest.approx(0, abs=1e-9)
    assert effective_rank(spread) == pytest.approx(16)
    assert mean_cosine(collapsed) > 0.999
    assert effective_rank(collapsed) < 1.1
    assert effective_rank(torch.ones(5, 3)) == pytest.approx(1, abs=1e-6)
    assert effective_rank(7 * torch.eye(16)[:4]) == pytest.approx(4, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 30), st.integers(1, 40))
def test_mean_cosine_and_effective_rank_equal_their_definitions(seed: int, count: int, size: int, rows: int) -> None:
    vectors = normal(seed, count, size).double()
    unit = torch.nn.functional.normalize(vectors)
    pairs = (unit @ unit.T)[~torch.eye(count, dtype=torch.bool)]
    assert mean_cosine(vectors) == pytest.approx(pairs.mean().item(), abs=1e-9)
    share = torch.linalg.svdvals(unit)
    share = share / share.sum()
    expected = math.exp(-sum(p * math.log(p) for p in share.tolist() if p > 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnostics, "TILE", rows)
        found = effective_rank(vectors)
    assert found == pytest.approx(expected, rel=1e-5)
    assert 1 - 1e-6 <= found <= min(count, size) + 1e-6


def test_a_single_row_has_no_mean_cosine() -> None:
    assert math.isnan(mean_cosine(torch.ones(1, 3)))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(FedVisageError, match="quantile"):
        party_cosines(torch.ones(3, 2), torch.tensor([0, 1, 1]), 99)
    with pytest.raises(FedVisageError, match="owner"):
        party_cosines(torch.ones(3, 2), torch.tensor([0, 1]))
    with pytest.raises(FedVisageError, match="not empty"):
        effective_rank(torch.ones(0, 2))
