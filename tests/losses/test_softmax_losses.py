"""The softmax losses: hand values, a slow reference, pytorch-metric-learning, and what must hold for any batch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses import LOSSES, adaface, arcface, cosface, loss_options, margin_loss, normalised_softmax, softmax
from fedvisage.losses.adaface import relative_norms, with_quality
from fedvisage.losses.arcface import add_angle

Loss = Callable[..., Tensor]
EVERY_FORM = [
    pytest.param(margin_loss("softmax"), id="softmax"),
    pytest.param(margin_loss("normalised-softmax"), id="normalised-softmax"),
    pytest.param(margin_loss("cosface"), id="cosface"),
    pytest.param(margin_loss("cosface", form="hinge"), id="cosface-hinge"),
    pytest.param(margin_loss("arcface"), id="arcface"),
    pytest.param(margin_loss("arcface", form="raw"), id="arcface-raw"),
    pytest.param(margin_loss("adaface"), id="adaface"),
]
seeds = st.integers(0, 2**32 - 1)


def batch(seed: int, samples: int = 6, classes: int = 5, size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Random float64 features, class embeddings and labels."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    class_embeddings = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    return features, class_embeddings, torch.randint(classes, (samples,), generator=generator)


def with_cosines(*cosines: float) -> tuple[Tensor, Tensor, Tensor]:
    """One feature of the first class whose cosines to orthogonal class embeddings are `cosines`."""
    rest = math.sqrt(1 - sum(cosine**2 for cosine in cosines))
    feature = torch.tensor([[*cosines, rest]], dtype=torch.float64)
    return 3.0 * feature, 0.5 * torch.eye(len(cosines), len(cosines) + 1, dtype=torch.float64), torch.tensor([0])


def slow_reference(
    features: Tensor,
    class_embeddings: Tensor,
    labels: Tensor,
    scale: float,
    shift: Callable[[float], float],
) -> float:
    """Mean cross-entropy of scaled cosines in plain Python; `shift` maps the angle of the true class to its cosine."""
    total = 0.0
    for feature, label in zip(features.tolist(), labels.tolist(), strict=True):
        logits = []
        for index, embedding in enumerate(class_embeddings.tolist()):
            dot = sum(a * b for a, b in zip(feature, embedding, strict=True))
            cosine = dot / math.hypot(*feature) / math.hypot(*embedding)
            logits.append(scale * (shift(math.acos(cosine)) if index == label else cosine))
        total += math.log(sum(math.exp(logit) for logit in logits)) - logits[label]
    return total / len(labels)


def test_golden_values_of_both_cosface_forms() -> None:
    # spec N13a: s=30, logit margin 10, cos_pos 0.5, negatives 0.1, 0.2, 0:
    # hinge 10 + log(e^3 + e^6 + e^0) - 15 = 1.05095, softplus log(1 + e^1.05095) = 1.35076.
    example = with_cosines(0.5, 0.1, 0.2, 0.0)
    assert cosface(*example, scale=30, margin=1 / 3).item() == pytest.approx(1.35076, abs=5e-6)
    assert cosface(*example, scale=30, margin=1 / 3, form="hinge").item() == pytest.approx(1.05095, abs=5e-6)


def test_golden_values_of_softmax_and_arcface() -> None:
    # logits (1.5*0.6, 1.5*0.8) = (0.9, 1.2): log(1 + e^0.3)
    example = with_cosines(0.6, 0.8 - 1e-9)
    assert softmax(*example).item() == pytest.approx(math.log1p(math.exp(0.3)), abs=1e-6)
    # θ = acos 0.6 = 0.927295, cos(θ + 0.5) = 0.143018; log(1 + e^(10 (0.8 - 0.143018)))
    expected = math.log1p(math.exp(10 * (0.8 - math.cos(math.acos(0.6) + 0.5))))
    assert arcface(*example, scale=10, margin=0.5).item() == pytest.approx(expected, abs=1e-6)


@given(seeds)
def test_equal_to_a_slow_reference(seed: int) -> None:
    example = batch(seed)

    def angular(theta: float) -> float:
        return math.cos(theta + 0.5) if theta + 0.5 <= math.pi else math.cos(theta) - 0.5 * math.sin(0.5)

    assert normalised_softmax(*example, scale=16).item() == pytest.approx(slow_reference(*example, 16, math.cos))
    assert cosface(*example, scale=30, margin=0.35).item() == pytest.approx(
        slow_reference(*example, 30, lambda theta: math.cos(theta) - 0.35)
    )
    assert arcface(*example, scale=64, margin=0.5).item() == pytest.approx(slow_reference(*example, 64, angular))


@given(seeds)
def test_the_raw_arcface_is_the_printed_one_at_every_angle(seed: int) -> None:
    example = batch(seed, size=2)
    expected = slow_reference(*example, 64, lambda theta: math.cos(theta + 0.5))
    assert arcface(*example, scale=64, margin=0.5, form="raw").item() == pytest.approx(expected)


@given(seeds, st.integers(1, 9), st.floats(0, 1), st.floats(0, 3))
def test_adaface_equals_a_slow_reference(seed: int, samples: int, margin: float, concentration: float) -> None:
    """Eq. 12 to 15 image by image; small dimensions make angles that the margin would move beyond 0 and pi."""
    features, class_embeddings, labels = batch(seed, samples=samples, size=2)
    norms = [math.hypot(*feature) for feature in features.tolist()]
    spread = statistics.stdev(norms) if samples > 1 else 0.0
    total = 0.0
    for place, norm in enumerate(norms):
        quality = 0.0 if spread < 1e-12 else concentration * (norm - statistics.fmean(norms)) / spread
        quality = max(-1.0, min(1.0, quality))

        def moved(theta: float, quality: float = quality) -> float:
            return math.cos(max(0.0, min(math.pi, theta - margin * quality))) - margin * (quality + 1)

        total += slow_reference(features[place : place + 1], class_embeddings, labels[place : place + 1], 64, moved)
    found = adaface(features, class_embeddings, labels, margin=margin, concentration=concentration)
    assert found.item() == pytest.approx(total / samples, abs=1e-6)


@given(seeds)
def test_adaface_without_concentration_is_cosface(seed: int) -> None:
    example = batch(seed)
    plain = cosface(*example, scale=64.0, margin=0.4)
    torch.testing.assert_close(adaface(*example, concentration=0.0), plain)


@pytest.mark.parametrize("seed", range(3))
def test_adafaces_gradients_agree_with_finite_differences_at_given_qualities(seed: int) -> None:
    """The quality of an image is a constant; with it held, the gradient is that of the loss."""
    features, class_embeddings, labels = batch(seed, samples=4, classes=3)
    quality = torch.tensor([-1.0, -0.3, 0.4, 1.0], dtype=torch.float64)
    torch.autograd.gradcheck(
        lambda f, w: with_quality(f, w, labels, quality, 8.0, 0.4, "mean"),
        (features.requires_grad_(), class_embeddings.requires_grad_()),
    )
    held = relative_norms(features.detach(), 0.333)
    both = (
        adaface(features, class_embeddings, labels),
        with_quality(features, class_embeddings, labels, held, 64.0, 0.4, "mean"),
    )
    found, expected = (torch.autograd.grad(value, (features, class_embeddings)) for value in both)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(margin_loss("normalised-softmax", scale=20.0), (NormalizedSoftmaxLoss, {"temperature": 0.05})),
        pytest.param(margin_loss("cosface", scale=30.0, margin=0.4), (CosFaceLoss, {"scale": 30, "margin": 0.4})),
        pytest.param(
            margin_loss("arcface", scale=64.0, margin=0.5), (ArcFaceLoss, {"scale": 64, "margin": math.degrees(0.5)})
        ),
    ],
    ids=["normalised-softmax", "cosface", "arcface"],
)
def test_value_and_gradients_equal_pytorch_metric_learning(ours: Loss, theirs: tuple[type, dict], seed: int) -> None:
    features, class_embeddings, labels = batch(seed, samples=64, classes=20, size=3)  # small d: angles beyond π - m too
    kind, options = theirs
    oracle = kind(num_classes=20, embedding_size=3, **options)
    oracle.W.data = class_embeddings.T.clone()
    mine = features.clone().requires_grad_(), class_embeddings.clone().requires_grad_()
    other = features.clone().requires_grad_()
    loss, expected = ours(*mine, labels), oracle(other, labels)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(mine[0].grad, other.grad)
    torch.testing.assert_close(mine[1].grad, oracle.W.grad.T)


@pytest.mark.parametrize("loss", EVERY_FORM[:-1])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_agree_with_finite_differences(loss: Loss, seed: int) -> None:
    features, class_embeddings, labels = batch(seed, samples=4, classes=3)
    torch.autograd.gradcheck(
        lambda f, w: loss(f, w, labels), (features.requires_grad_(), class_embeddings.requires_grad_())
    )


@given(seeds)
def test_without_margin_all_cosine_losses_are_one(seed: int) -> None:
    example = batch(seed)
    plain = normalised_softmax(*example, scale=20)
    torch.testing.assert_close(cosface(*example, scale=20, margin=0.0), plain)
    torch.testing.assert_close(arcface(*example, scale=20, margin=0.0), plain)


@given(seeds, st.floats(0.01, 100), st.floats(0.01, 100))
def test_cosine_losses_ignore_lengths(seed: int, a: float, b: float) -> None:
    features, class_embeddings, labels = batch(seed)
    for loss in (normalised_softmax, cosface, arcface):
        torch.testing.assert_close(
            loss(a * features, b * class_embeddings, labels), loss(features, class_embeddings, labels)
        )


@given(seeds)
def test_the_order_of_classes_does_not_matter(seed: int) -> None:
    features, class_embeddings, labels = batch(seed)
    order = torch.randperm(len(class_embeddings), generator=torch.Generator().manual_seed(seed))
    for name in LOSSES:
        loss = margin_loss(name)
        torch.testing.assert_close(
            loss(features, class_embeddings[order], torch.argsort(order)[labels]),
            loss(features, class_embeddings, labels),
        )


@given(seeds, st.floats(0.0, 1.0), st.floats(0.0, 0.5))
def test_a_larger_margin_is_harder(seed: int, margin: float, more: float) -> None:
    example = batch(seed)
    for loss in (cosface, arcface):
        assert loss(*example, margin=margin + more) >= loss(*example, margin=margin) - 1e-9


@given(seeds, st.floats(0.0, 1.0))
def test_the_hinge_form_is_below_the_softplus_form_by_at_most_log_two(seed: int, margin: float) -> None:
    example = batch(seed)
    hinge = cosface(*example, margin=margin, form="hinge", reduction="none")
    difference = cosface(*example, margin=margin, reduction="none") - hinge
    assert difference.min() >= -1e-9
    assert difference.max() <= math.log(2) + 1e-9


@given(st.floats(0.0, 1.5))
def test_arcface_falls_with_the_angle_everywhere(margin: float) -> None:
    cosines = torch.cos(torch.linspace(0.01, math.pi - 0.01, 500, dtype=torch.float64))
    assert (torch.diff(add_angle(cosines, margin)) < 0).all()


@pytest.mark.parametrize("loss", EVERY_FORM)
def test_reductions(loss: Loss) -> None:
    example = batch(0)
    each = loss(*example, reduction="none")
    assert each.shape == (6,)
    torch.testing.assert_close(loss(*example, reduction="sum"), each.sum())
    torch.testing.assert_close(loss(*example, reduction="mean"), each.mean())


@pytest.mark.parametrize("loss", EVERY_FORM)
def test_a_single_class_gives_exactly_nothing(loss: Loss) -> None:
    features, class_embeddings, labels = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in batch(0, classes=1)
    )
    features.requires_grad_()
    class_embeddings.requires_grad_()
    value = loss(features, class_embeddings, labels)
    value.backward()
    assert value.item() == 0.0
    assert not features.grad.any()
    assert not class_embeddings.grad.any()


@pytest.mark.parametrize("loss", EVERY_FORM)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_vectors_give_finite_losses_and_gradients(loss: Loss, dtype: torch.dtype) -> None:
    direction = torch.tensor([0.3, -0.7, 0.2, 0.6], dtype=dtype)
    features = torch.stack([direction, -direction, 1e4 * direction, 1e-4 * direction, 0 * direction]).requires_grad_()
    class_embeddings = torch.stack([direction, -direction, 0 * direction]).requires_grad_()
    for label in range(3):
        value = loss(features, class_embeddings, torch.full((5,), label))
        gradients = torch.autograd.grad(value, (features, class_embeddings))
        assert value.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_zero_feature_gets_no_exploding_gradient() -> None:
    _, class_embeddings, labels = batch(0, samples=1)
    feature = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    cosface(feature, class_embeddings, labels).backward()
    assert feature.grad.norm() < 100


@pytest.mark.parametrize("loss", EVERY_FORM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_computed_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    features, class_embeddings, labels = batch(0)
    features, class_embeddings = features.to(dtype).requires_grad_(), class_embeddings.to(dtype)
    value = loss(features, class_embeddings, labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(features.float(), class_embeddings.float(), labels))
    value.backward()
    assert features.grad.dtype == dtype


@pytest.mark.parametrize("loss", EVERY_FORM)
def test_autocast_changes_nothing(loss: Loss) -> None:
    features, class_embeddings, labels = batch(0)
    features, class_embeddings = features.float(), class_embeddings.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = loss(features, class_embeddings, labels)
    assert torch.equal(under_autocast, loss(features, class_embeddings, labels))


@pytest.mark.parametrize("loss", EVERY_FORM)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_left_alone(loss: Loss, dtype: torch.dtype) -> None:
    features, class_embeddings, labels = batch(0)
    features, class_embeddings = features.to(dtype), class_embeddings.to(dtype)
    before = features.clone(), class_embeddings.clone(), labels.clone()
    loss(features, class_embeddings, labels)
    assert all(torch.equal(a, b) for a, b in zip(before, (features, class_embeddings, labels), strict=True))


@pytest.mark.parametrize("loss", EVERY_FORM)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f, w, y: (f, w, y.clone().fill_(5)), "label 5 has no class embedding: there are 5 classes"),
        (lambda f, w, y: (f, w, y.clone().fill_(-100)), "label -100 has no class embedding"),
        (lambda f, w, y: (f, w[:, :3], y), r"got \(6, 8\), \(5, 3\) and \(6,\)"),
        (lambda f, w, y: (f, w, y[:2]), "features"),
        (lambda f, w, y: (f[:0], w, y[:0]), "none of them empty"),
        (lambda f, w, y: (f, w, y.int()), "labels must be int64"),
    ],
)
def test_batches_that_make_no_sense_are_refused(loss: Loss, change: Callable[..., tuple], message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        loss(*change(*batch(0)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosfacee", {}, "unknown loss 'cosfacee': did you mean 'cosface'"),
        ("cosface", {"margn": 0.4}, "loss 'cosface' has no option 'margn': did you mean 'margin'"),
        ("softmax", {"scale": 30.0}, "loss 'softmax' has no option 'scale': known: reduction"),
        ("cosface", {"form": "hing"}, "no form 'hing': did you mean 'hinge'"),
        ("cosface", {"margin": float("nan")}, "margin is nan"),
        ("cosface", {"scale": 0.0}, "scale is 0.0"),
        ("cosface", {"scale": "30"}, "cannot use scale = '30'"),
        ("cosface", {"reduction": "avg"}, "cannot use reduction = 'avg'"),
        ("cosface", {"form": "hinge", "reduction": "avg"}, "unknown reduction 'avg'"),
        ("arcface", {"margin": 28.6}, "angle in radians"),
        ("arcface", {"form": "row"}, "no form 'row': did you mean 'raw'"),
        ("adaface", {"margin": 1.2}, "from 0 to 1"),
        ("adaface", {"concentration": -1.0}, "cannot be negative"),
    ],
)
def test_wrong_names_and_options_are_refused_before_a_run(name: str, options: dict, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        margin_loss(name, **options)


def test_registered_losses_and_their_options() -> None:
    assert list(LOSSES) == ["adaface", "arcface", "cosface", "normalised-softmax", "softmax"]
    assert loss_options("arcface") == {"scale": 64.0, "margin": 0.5, "form": "falling", "reduction": "mean"}
    assert loss_options("cosface") == {"scale": 30.0, "margin": 0.35, "form": "softplus", "reduction": "mean"}


@settings(max_examples=20)
@given(seeds)
def test_float32_is_close_to_float64(seed: int) -> None:
    features, class_embeddings, labels = batch(seed)
    for name in LOSSES:
        loss = margin_loss(name)
        exact = loss(features, class_embeddings, labels)
        torch.testing.assert_close(
            loss(features.float(), class_embeddings.float(), labels).double(), exact, rtol=1e-4, atol=1e-4
        )
