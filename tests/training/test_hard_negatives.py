"""Hard negatives equal the dense reference, whatever the blocks."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.training.hard_negatives import hard_negatives, hardest_negatives, largest_cosines

module = import_module("fedvisage.training.hard_negatives")


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 30),
    st.integers(0, 40),
    st.integers(1, 6),
    st.floats(-1, 1),
    st.integers(1, 35),
    st.integers(1, 45),
)
def test_the_chosen_images_equal_the_dense_reference(
    seed: int, local: int, public: int, size: int, threshold: float, rows: int, columns: int
) -> None:
    near, far = normal(seed, local, size), normal(seed + 1, public, size)
    cosines = torch.nn.functional.normalize(near) @ torch.nn.functional.normalize(far).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOCAL", rows)
        patch.setattr(module, "PUBLIC", columns)
        best = largest_cosines(near, far)
        chosen = hard_negatives(near, far, threshold)
    torch.testing.assert_close(best, cosines.amax(dim=0))
    assert torch.equal(chosen, (best > threshold).nonzero().squeeze(1))


def test_the_threshold_is_exclusive_and_by_direction() -> None:
    local = torch.tensor([[2.0, 0.0]])
    public = torch.tensor([[5.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert hard_negatives(local, public, 0.7).tolist() == [0, 3]
    assert hard_negatives(local, public, 0.0).tolist() == [0, 3]
    assert hard_negatives(local, public, -0.5).tolist() == [0, 1, 3, 4]
    assert hard_negatives(local, public, 1.0).tolist() == []


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0, 1, exclude_min=True))
def test_the_hardest_share_has_the_largest_cosines(seed: int, public: int, share: float) -> None:
    near, far = normal(seed, 5, 3), normal(seed + 1, public, 3)
    chosen = hardest_negatives(near, far, share)
    best = largest_cosines(near, far)
    left = torch.ones(public, dtype=torch.bool).index_fill(0, chosen, False)
    assert len(chosen) == math.ceil(share * public)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert not left.any() or best[chosen].min() >= best[left].max()


def test_of_equal_cosines_the_first_are_taken_and_no_share_is_refused() -> None:
    local, public = torch.ones(1, 2), torch.ones(4, 2)
    assert hardest_negatives(local, public, 0.5).tolist() == [0, 1]
    for share in (0.0, 1.5):
        with pytest.raises(FedVisageError, match="the share of hard negatives"):
            hardest_negatives(local, public, share)


def test_in_a_narrow_cone_a_threshold_takes_all_or_none_where_a_share_takes_the_same() -> None:
    """Features whose common part is four times and once as long as what tells them apart."""
    near, far = normal(0, 20, 128), normal(1, 500, 128)
    cones = [(near + width, far + width) for width in (4.0, 1.0)]
    assert [len(hard_negatives(*cone, 0.9)) for cone in cones] == [500, 0]
    assert [len(hardest_negatives(*cone, 0.1)) for cone in cones] == [50, 50]


def test_half_features_are_compared_in_float32() -> None:
    local, public = normal(0, 20, 8).half(), normal(1, 50, 8).half()
    assert torch.equal(largest_cosines(local, public), largest_cosines(local.float(), public.float()))
    assert torch.equal(local, normal(0, 20, 8).half())


@pytest.mark.parametrize(
    ("local", "public", "threshold", "message"),
    [
        (torch.ones(0, 3), torch.ones(2, 3), 0.4, "not empty"),
        (torch.ones(2, 3), torch.ones(2, 4), 0.4, r"got \(2, 3\) and \(2, 4\)"),
        (torch.ones(2, 3), torch.ones(2, 3), 4.0, "it is a cosine"),
        (torch.ones(2, 3), torch.full((2, 3), torch.nan), 0.4, "2 features hold NaN"),
    ],
)
def test_wrong_arguments_are_refused(local: torch.Tensor, public: torch.Tensor, threshold: float, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        hard_negatives(local, public, threshold)
