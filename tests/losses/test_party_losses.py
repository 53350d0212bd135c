"""The losses a party computes beside softmax: golden values, finite differences, and what must hold for any batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses import binary_margin, binary_margin_bias, model_contrastive, positive_hinge
from fedvisage.losses.binary import adjust_similarity

seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# positive_hinge


def test_the_positive_hinge_by_hand() -> None:
    # cosines 0.6 and 1 with margin 0.9: (0.3² + 0) / 2
    features = torch.tensor([[6.0, 8.0], [3.0, 0.0]])
    assert positive_hinge(features, torch.tensor([2.0, 0.0]), 0.9).item() == pytest.approx(0.045)
    each = positive_hinge(features, torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 0.9, reduction="none")
    assert each.tolist() == pytest.approx([0.09, 0.81])


@given(seeds, st.floats(-0.5, 1.5))
def test_the_positive_hinge_equals_a_slow_reference(seed: int, margin: float) -> None:
    features, embedding = normal(seed, 5, 4), normal(seed + 1, 4)
    expected = 0.0
    for feature in features.tolist():
        dot = sum(a * b for a, b in zip(feature, embedding.tolist(), strict=True))
        expected += max(0.0, margin - dot / math.hypot(*feature) / math.hypot(*embedding.tolist())) ** 2 / 5
    assert positive_hinge(features, embedding, margin).item() == pytest.approx(expected)


def test_the_gradients_of_the_positive_hinge_agree_with_finite_differences() -> None:
    for embedding in (normal(1, 4), normal(2, 6, 4)):
        torch.autograd.gradcheck(positive_hinge, (normal(0, 6, 4).requires_grad_(), embedding.requires_grad_()))


def test_a_feature_within_the_margin_is_left_alone() -> None:
    features = torch.tensor([[1.0, 0.1]], requires_grad=True)
    embedding = torch.tensor([1.0, 0.0], requires_grad=True)
    positive_hinge(features, embedding, 0.9).backward()
    assert not features.grad.any()
    assert not embedding.grad.any()


# model_contrastive


def test_golden_values_of_the_contrastive_term() -> None:
    # spec N8: previous = global gives log 2; cosines 1 to global and 0 to previous give log(1 + e^-2) = 0.1269
    feature, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert model_contrastive(feature, other, other).item() == pytest.approx(math.log(2))
    assert model_contrastive(feature, feature, other, 0.5).item() == pytest.approx(0.1269, abs=5e-5)
    assert model_contrastive(feature, other, feature, 0.5).item() == pytest.approx(2.1269, abs=5e-5)


@given(seeds)
def test_the_contrastive_gradient_is_exactly_zero_when_previous_is_global(seed: int) -> None:
    features, frozen = normal(seed, 7, 16).float().requires_grad_(), normal(seed + 1, 7, 16).float()
    model_contrastive(features, frozen, frozen.clone()).backward()
    assert not features.grad.any()


@given(seeds, st.floats(0.05, 5))
def test_the_contrastive_term_equals_its_equation(seed: int, temperature: float) -> None:
    features, near, away = normal(seed, 5, 4), normal(seed + 1, 5, 4), normal(seed + 2, 5, 4)
    positive = torch.cosine_similarity(features, near) / temperature
    negative = torch.cosine_similarity(features, away) / temperature
    expected = -(positive - torch.stack([positive, negative]).logsumexp(0)).mean()
    torch.testing.assert_close(model_contrastive(features, near, away, temperature), expected)


def test_only_the_live_features_get_a_contrastive_gradient() -> None:
    features, near, away = (normal(seed, 5, 4).requires_grad_() for seed in range(3))
    torch.autograd.gradcheck(lambda f: model_contrastive(f, near.detach(), away.detach()), (features,))
    model_contrastive(features, near, away).backward()
    assert near.grad is None
    assert away.grad is None


# binary_margin


def test_golden_values_of_the_binary_margin() -> None:
    # spec N13b: s=30, m=0.4, λ=0.7, t=3, b=0
    cosines = torch.tensor([[0.6, 0.1, -0.2], [0.6, 0.1, -0.2]], dtype=torch.float64)
    own, public = binary_margin(cosines, torch.tensor([0, -1]), 30, 0.4, 0.7, 3, 0.0, reduction="none").tolist()
    assert own == pytest.approx(0.263204, abs=5e-7)
    assert public == pytest.approx(0.127203, abs=5e-7)
    positive = binary_margin(cosines[:1, :1], torch.tensor([0]), 30, 0.4, 0.7, 3, 0.0)
    assert positive.item() == pytest.approx(0.263200, abs=5e-7)
    assert own - positive.item() == pytest.approx(3.303e-6, abs=1e-9)


def test_golden_values_of_the_adjusted_similarity() -> None:
    # spec N7: the released form is -1, -0.75 and 1 at cosines -1, 0 and 1, with power 3
    assert adjust_similarity(torch.tensor([-1.0, 0.0, 1.0]), 3).tolist() == [-1.0, -0.75, 1.0]


def test_golden_values_of_the_bias() -> None:
    # spec N6
    assert binary_margin_bias(100, 30, 0.4, 0.7, 3) == pytest.approx(6.7760, abs=5e-5)
    assert binary_margin_bias(10_000, 30, 0.4, 0.7, 3) == pytest.approx(2.1373, abs=5e-5)


@given(st.integers(2, 200), st.floats(1, 64), st.floats(0, 0.5), st.floats(0.05, 0.95), st.floats(1, 6))
def test_the_bias_balances_positive_and_negative_gradients(
    classes: int, scale: float, margin: float, balance: float, power: float
) -> None:
    bias = binary_margin_bias(classes, scale, margin, balance, power)
    cosines = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    binary_margin(cosines, torch.tensor([0]), scale, margin, balance, power, bias, detached=True).backward()
    positive, negative = -cosines.grad[0, 0].item(), cosines.grad[0, 1:].sum().item()
    assert positive == pytest.approx(negative, rel=1e-6)


@given(seeds, st.floats(0, 1), st.floats(1, 5))
def test_the_binary_margin_equals_a_slow_reference(seed: int, balance: float, power: float) -> None:
    cosines, bias = torch.tanh(normal(seed, 4, 3)), normal(seed + 1, 3)
    labels = torch.randint(-1, 3, (4,), generator=torch.Generator().manual_seed(seed))
    expected = 0.0
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        for k, cosine in enumerate(row):
            g = 2 * ((cosine + 1) / 2) ** power - 1
            if k == label:
                expected += balance / 10 * math.log1p(math.exp(-10 * (g - 0.3) - bias[k].item()))
            else:
                expected += (1 - balance) / 10 * math.log1p(math.exp(10 * (g + 0.3) + bias[k].item()))
    value = binary_margin(cosines, labels, 10, 0.3, balance, power, bias)
    assert value.item() == pytest.approx(expected / 4)


def test_the_gradients_of_the_binary_margin_agree_with_finite_differences() -> None:
    cosines, bias = torch.tanh(normal(0, 4, 3)).requires_grad_(), normal(1, 3).requires_grad_()
    labels = torch.tensor([0, 2, -1, 1])
    torch.autograd.gradcheck(lambda c, b: binary_margin(c, labels, 10, 0.3, 0.7, 3, b), (cosines, bias))


def test_the_detached_gradient_is_that_of_a_plain_logit() -> None:
    cosines, labels = torch.tanh(normal(0, 4, 3)), torch.tensor([0, 2, -1, 1])
    through, detached, plain = (cosines.clone().requires_grad_() for _ in range(3))
    value = binary_margin(detached, labels, detached=True)
    value.backward()
    full = binary_margin(through, labels)
    full.backward()
    torch.testing.assert_close(value, full)
    # the same sigmoid weights, without g's derivative 3((z + 1)/2)²
    torch.testing.assert_close(detached.grad * 3 * ((cosines + 1) / 2) ** 2, through.grad)
    binary_margin(plain, labels, power=1, detached=True).backward()
    torch.testing.assert_close(plain.grad, torch.autograd.grad(binary_margin(plain, labels, power=1), plain)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    a, b, c = (normal(seed, 5, 4).to(dtype) for seed in range(3))
    assert torch.equal(positive_hinge(a, b), positive_hinge(a.float(), b.float()))
    assert torch.equal(model_contrastive(a, b, c), model_contrastive(a.float(), b.float(), c.float()))
    labels = torch.tensor([0, 1, -1, 2, 3])
    assert torch.equal(binary_margin(a.tanh(), labels), binary_margin(a.tanh().float(), labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(positive_hinge(a, b), positive_hinge(a.float(), b.float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_vectors_give_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    direction = torch.tensor([0.3, -0.7, 0.2, 0.6], dtype=dtype)
    features = torch.stack([direction, -direction, 1e4 * direction, 1e-4 * direction, 0 * direction]).requires_grad_()
    others = torch.stack([direction, direction, -direction, 0 * direction, direction])
    cosines = torch.tensor([[1.0, -1.0], [1.0 + 1e-6, -1.0 - 1e-6]], dtype=dtype, requires_grad=True)
    for value in (
        positive_hinge(features, direction, 0.9),
        model_contrastive(features, others, -others),
        binary_margin(cosines, torch.tensor([0, 1]), 64.0),
    ):
        gradients = [g for g in torch.autograd.grad(value, (features, cosines), allow_unused=True) if g is not None]
        assert value.isfinite()
        assert len(gradients) == 1
        assert gradients[0].isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: positive_hinge(torch.ones(2, 3), torch.ones(4)), r"got \(2, 3\) and \(4,\)"),
        (lambda: positive_hinge(torch.ones(0, 3), torch.ones(3)), "not empty"),
        (lambda: positive_hinge(torch.ones(2, 3), torch.ones(3), 90.0), "margin is 90.0: it is a cosine"),
        (lambda: positive_hinge(torch.ones(2, 3), torch.ones(3), reduction="avg"), "unknown reduction 'avg'"),
        (lambda: model_contrastive(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3, 3)), "of one shape"),
        (lambda: model_contrastive(*[torch.ones(2, 3)] * 3, 0.0), "temperature is 0.0"),
        (lambda: binary_margin(torch.ones(2, 3), torch.tensor([0, 3])), "label 3 is no class of 3"),
        (lambda: binary_margin(torch.ones(2, 3), torch.tensor([0, -2])), "label -2 is no class of 3"),
        (lambda: binary_margin(torch.ones(2, 3), torch.tensor([0])), r"got \(2, 3\) and \(1,\)"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0.0])), "labels must be int64"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0]), bias=torch.ones(2)), "one per class"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0]), scale=-1), "scale is -1"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0]), margin=40), "margin is 40"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0]), balance=1.7), "balance is 1.7"),
        (lambda: binary_margin(torch.ones(1, 3), torch.tensor([0]), power=0), "power is 0"),
        (lambda: binary_margin_bias(1), "no bias balances 1 classes"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedVisageError, match=message):
        call()
