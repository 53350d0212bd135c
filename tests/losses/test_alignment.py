"""The terms that make two domains alike: the discrepancy of DAN and the reversed gradient of DANN."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses import domain_adversarial, domain_classifier, multi_kernel_mmd, reversal_strength

seeds = st.integers(0, 2**31 - 1)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def discrepancy_by_hand(source: Tensor, target: Tensor, bandwidths: tuple[float, ...]) -> float:
    """Pair by pair, with Python's own arithmetic."""
    rows = [[float(x) for x in row] for row in torch.cat([source, target])]
    rows = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]
    n = len(source)

    def squared(i: int, j: int) -> float:
        return sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))

    apart = sorted(squared(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j)
    middle = apart[(len(apart) - 1) // 2]  # torch's median is the lower one

    def kernel(i: int, j: int) -> float:
        return sum(math.exp(-squared(i, j) / (b * middle)) for b in bandwidths) / len(bandwidths)

    def mean(one: range, other: range) -> float:
        return sum(kernel(i, j) for i in one for j in other) / (len(one) * len(other))

    first, second = range(n), range(n, len(rows))
    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(2, 4))
def test_the_discrepancy_is_that_of_a_pair_by_pair_computation(seed: int, n: int, m: int, size: int) -> None:
    source, target = draw(seed, n, size), draw(seed + 1, m, size)
    bandwidths = (0.5, 1.0, 3.0)
    expected = discrepancy_by_hand(source, target, bandwidths)
    assert float(multi_kernel_mmd(source, target, bandwidths)) == pytest.approx(expected, abs=1e-9)


@given(seeds, st.integers(2, 8))
def test_the_discrepancy_is_zero_for_one_sample_symmetric_and_never_negative(seed: int, count: int) -> None:
    source, target = draw(seed, count, 3), draw(seed + 1, count + 2, 3)
    assert float(multi_kernel_mmd(source, source)) == pytest.approx(0, abs=1e-12)
    value = float(multi_kernel_mmd(source, target))
    assert value == pytest.approx(float(multi_kernel_mmd(target, source)), abs=1e-12)
    assert value >= -1e-12


def test_the_gradient_of_the_discrepancy_brings_the_samples_together() -> None:
    source, target = draw(1, 20, 4) + 2, draw(2, 25, 4) - 1
    before = float(multi_kernel_mmd(source, target))
    source.requires_grad_()
    for _ in range(100):
        (gradient,) = torch.autograd.grad(multi_kernel_mmd(source, target), source)
        source = (source - 50 * gradient).detach().requires_grad_()
    assert float(multi_kernel_mmd(source.detach(), target)) < before / 2


def test_samples_of_one_point_have_no_gradient_that_is_not_a_number() -> None:
    source = torch.ones(3, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(multi_kernel_mmd(source, torch.ones(4, 2)), source)
    assert torch.isfinite(gradient).all()


@given(seeds, st.floats(0.0, 3.0))
def test_the_reversed_gradient_is_minus_strength_times_autograds(seed: int, strength: float) -> None:
    """The features' gradient against the same network without reversal; the classifier's own is not reversed."""
    features = draw(seed, 6, 5).requires_grad_()
    is_target = torch.arange(6) % 2 == 0
    generator = torch.Generator().manual_seed(seed)
    classifier = {name: t.double().requires_grad_() for name, t in domain_classifier(5, 7, generator).items()}
    value = domain_adversarial(features, is_target, classifier, strength)
    found = torch.autograd.grad(value, [features, *classifier.values()])
    unit = features / features.norm(dim=1, keepdim=True)
    hidden = torch.relu(unit @ classifier["hidden.weight"].T + classifier["hidden.bias"])
    chance = torch.sigmoid(hidden @ classifier["output.weight"].T + classifier["output.bias"]).squeeze(1)
    plain = -torch.where(is_target, chance.log(), (1 - chance).log()).mean()
    assert float(value.detach()) == pytest.approx(float(plain.detach()), rel=1e-9)
    expected = torch.autograd.grad(plain, [features, *classifier.values()])
    assert torch.allclose(found[0], -strength * expected[0], atol=1e-12)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_the_reversal_grows_from_nothing_to_nearly_one_as_published() -> None:
    assert reversal_strength(0) == 0
    assert reversal_strength(0.5) == pytest.approx((1 - math.exp(-5)) / (1 + math.exp(-5)))
    assert 0.9999 < reversal_strength(1) < 1
    assert np.all(np.diff([reversal_strength(p) for p in np.linspace(0, 1, 20)]) > 0)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(FedVisageError, match=r"wants features \(N, d\) and \(M, d\)"):
        multi_kernel_mmd(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(FedVisageError, match="bandwidths"):
        multi_kernel_mmd(torch.ones(2, 3), torch.ones(2, 3), (0.0,))
    with pytest.raises(FedVisageError, match="and their domains"):
        domain_adversarial(torch.ones(2, 3), torch.ones(3), domain_classifier(3, 2, torch.Generator()))
