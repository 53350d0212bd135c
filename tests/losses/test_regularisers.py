"""What pushes class embeddings apart on the server: golden values, and closed forms against dense autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses import (
    average_shared,
    cosface,
    cosine_regulariser,
    cosine_regulariser_gradient,
    gradient_correction,
    gradient_correction_gradient,
    mined_spreadout_gradient,
    softmax,
    spreadout,
    spreadout_gradient,
)
from fedvisage.losses.correction import CorrectionForm
from fedvisage.losses.spreadout import SpreadoutDistance

FORMS: tuple[CorrectionForm, ...] = ("softmax", "cosface", "arcface")
DISTANCES: tuple[SpreadoutDistance, ...] = ("cosine", "half-cosine", "squared-euclidean", "euclidean")
MARGINS = {"cosine": 0.7, "half-cosine": 0.35, "squared-euclidean": 1.4, "euclidean": math.sqrt(1.4)}
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autograd(function, embeddings: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    leaf = embeddings.clone().requires_grad_()
    value = function(leaf)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


@st.composite
def federations(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Class embeddings, owners in any order (parties of one class among them) and identities, some shared."""
    owner, identity = [], []
    people = draw(st.integers(1, 12))
    for party in draw(st.lists(st.integers(-3, 40), min_size=1, max_size=5, unique=True)):
        held = draw(st.lists(st.integers(0, people), min_size=1, max_size=6, unique=True))
        owner += [party] * len(held)
        identity += held
    order = draw(st.permutations(range(len(owner))))
    size, length, seed = draw(st.integers(1, 6)), draw(st.sampled_from([0.1, 1.0, 4.0])), draw(seeds)
    embeddings = length * normal(seed, len(owner), size)
    return embeddings, torch.tensor(owner)[list(order)], torch.tensor(identity)[list(order)]


def slow_correction(embeddings: Tensor, owner: Tensor, identity: Tensor) -> tuple[float, Tensor]:
    """FedGC's raw form by the paper's sums, one anchor and one class embedding at a time."""
    value, gradient = 0.0, torch.zeros_like(embeddings)
    for person in identity.unique().tolist():
        anchor = embeddings[identity == person].mean(dim=0)
        holders = set(owner[identity == person].tolist())
        negatives = [j for j in range(len(owner)) if owner[j].item() not in holders]
        own = math.exp(anchor @ anchor)
        total = own + sum(math.exp(embeddings[j] @ anchor) for j in negatives)
        value -= math.log(own / total)
        for j in negatives:
            gradient[j] += math.exp(embeddings[j] @ anchor) / total * anchor
    return value, gradient


# gradient correction


def test_golden_value_and_gradient_of_gradient_correction() -> None:
    # spec N13c: rows (1, 0) and (0, 1) on one party, (0.6, 0.8) on another
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    expected = torch.tensor([[0.161584, 0.215446], [0.197360, 0.263146], [0.401312, 0.450166]], dtype=torch.float64)
    owner = torch.tensor([0, 0, 1])
    value, gradient = autograd(lambda w: gradient_correction(w, owner), embeddings)
    closed = gradient_correction_gradient(embeddings, owner)
    for v, g in ((value.item(), gradient), closed):
        assert v == pytest.approx(2.0230556, abs=5e-8)
        torch.testing.assert_close(g, expected, atol=5e-7, rtol=0)


def test_the_gradient_is_the_papers_and_not_that_of_live_anchors() -> None:
    # spec N1: without the detach the gradient is another direction (0.19 in its example)
    embeddings, owner = normal(0, 12, 6), torch.arange(12) // 3
    _, gradient = autograd(lambda w: gradient_correction(w, owner), embeddings)
    torch.testing.assert_close(gradient, slow_correction(embeddings, owner, torch.arange(12))[1])
    live = embeddings.clone().requires_grad_()
    logits = (live @ live.T).masked_fill((owner[:, None] == owner) & ~torch.eye(12, dtype=torch.bool), -math.inf)
    (logits.logsumexp(1) - logits.diagonal()).sum().backward()
    assert torch.cosine_similarity(gradient.flatten(), live.grad.flatten(), dim=0) < 0.6


@given(federations())
def test_gradient_correction_equals_the_papers_sums(federation: tuple[Tensor, Tensor, Tensor]) -> None:
    embeddings, owner, identity = federation
    expected, direction = slow_correction(embeddings, owner, identity)
    value, gradient = autograd(lambda w: gradient_correction(w, owner, identity), embeddings)
    assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(gradient, direction)


@given(federations(), st.sampled_from(FORMS), st.booleans(), st.sampled_from([None, 1, 2, 5]))
def test_the_closed_form_equals_dense_autograd(
    federation: tuple[Tensor, Tensor, Tensor], form: CorrectionForm, shared: bool, block: int | None
) -> None:
    embeddings, owner, identity = federation
    people = identity if shared else None
    value, gradient = autograd(lambda w: gradient_correction(w, owner, people, form=form), embeddings)
    closed = gradient_correction_gradient(embeddings, owner, people, form=form, block=block)
    assert closed.value == pytest.approx(value.item(), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(closed.gradient, gradient)
    single = gradient_correction_gradient(embeddings.float(), owner, people, form=form, block=block)
    assert single.gradient.dtype == torch.float32
    torch.testing.assert_close(single.gradient.double(), gradient, rtol=2e-4, atol=2e-4)


@given(federations(), st.sampled_from(FORMS), seeds)
def test_a_permutation_of_classes_or_party_names_changes_only_the_order(
    federation: tuple[Tensor, Tensor, Tensor], form: CorrectionForm, seed: int
) -> None:
    embeddings, owner, identity = federation
    value, gradient = gradient_correction_gradient(embeddings, owner, identity, form=form)
    order = torch.randperm(len(owner), generator=torch.Generator().manual_seed(seed))
    moved = gradient_correction_gradient(embeddings[order], -owner[order], 7 - identity[order], form=form)
    assert moved.value == pytest.approx(value, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(moved.gradient, gradient[order])


@given(federations(), st.sampled_from(FORMS))
def test_identities_that_nobody_shares_change_nothing(
    federation: tuple[Tensor, Tensor, Tensor], form: CorrectionForm
) -> None:
    embeddings, owner, _ = federation
    alone = torch.randperm(len(owner), generator=torch.Generator().manual_seed(0)) * 3
    value, gradient = gradient_correction_gradient(embeddings, owner, form=form)
    again = gradient_correction_gradient(embeddings, owner, alone, form=form)
    assert again.value == pytest.approx(value, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(again.gradient, gradient)


@pytest.mark.parametrize("form", FORMS)
def test_a_single_party_has_nothing_to_correct(form: CorrectionForm) -> None:
    embeddings, owner = normal(0, 5, 4).float(), torch.full((5,), 3)
    for value, gradient in (
        gradient_correction_gradient(embeddings, owner, form=form),
        autograd(lambda w: gradient_correction(w, owner, form=form), embeddings),
        cosine_regulariser_gradient(embeddings, owner),
    ):
        assert float(value) == 0.0
        assert not gradient.any()


def test_an_identity_held_by_everybody_is_nobodys_negative_anchor() -> None:
    embeddings, owner = normal(0, 4, 3), torch.tensor([0, 0, 1, 1])
    everybody = gradient_correction_gradient(embeddings, owner, torch.tensor([7, 1, 7, 2]))
    without = gradient_correction(embeddings, owner, torch.tensor([7, 1, 7, 2]))
    assert everybody.value == pytest.approx(without.item())
    # its anchor adds nothing: the value is that of the anchors 1 and 2 alone
    expected = sum(
        math.log1p(sum(math.exp(embeddings[j] @ embeddings[i] - embeddings[i] @ embeddings[i]) for j in others))
        for i, others in ((1, (2, 3)), (3, (0, 1)))
    )
    assert everybody.value == pytest.approx(expected)


@pytest.mark.parametrize("length", [1e-3, 1.0, 30.0, 1e3])
def test_no_length_overflows(length: float) -> None:
    embeddings, owner = length * normal(0, 40, 16).float(), torch.arange(40) // 10
    closed = gradient_correction_gradient(embeddings, owner)
    exact = gradient_correction_gradient(embeddings.double(), owner)
    assert math.isfinite(closed.value)
    assert closed.gradient.isfinite().all()
    assert closed.value == pytest.approx(exact.value, rel=1e-4)


def test_one_class_per_party_and_zero_rows() -> None:
    embeddings = normal(0, 30, 8)
    embeddings[[3, 17]] = 0
    owner = torch.arange(30)
    for form in FORMS:
        value, gradient = autograd(lambda w, form=form: gradient_correction(w, owner, form=form), embeddings)
        closed = gradient_correction_gradient(embeddings, owner, form=form, block=7)
        assert closed.value == pytest.approx(value.item())
        torch.testing.assert_close(closed.gradient, gradient)


def test_the_margin_is_what_makes_the_normalised_forms_push() -> None:
    embeddings, owner = normal(0, 50, 64), torch.arange(50) // 10
    for form in ("cosface", "arcface"):
        pushed = gradient_correction_gradient(embeddings, owner, form=form, scale=64, margin=0.5).gradient.norm()
        inert = gradient_correction_gradient(embeddings, owner, form=form, scale=64, margin=0.0).gradient.norm()
        assert pushed > 1e3 * inert


def test_a_step_down_the_gradient_moves_parties_apart() -> None:
    embeddings, owner = normal(0, 30, 8), torch.arange(30) // 10
    for form in FORMS:
        value, gradient = gradient_correction_gradient(embeddings, owner, form=form)
        assert gradient_correction_gradient(embeddings - 0.01 * gradient, owner, form=form).value < value


# the cosine regulariser


@given(federations(), st.booleans(), st.booleans())
def test_the_cosine_regularisers_closed_form_equals_dense_autograd(
    federation: tuple[Tensor, Tensor, Tensor], normalised: bool, shared: bool
) -> None:
    embeddings, owner, identity = federation
    people = identity if shared else None
    value, gradient = autograd(lambda w: cosine_regulariser(w, owner, people, normalised=normalised), embeddings)
    closed = cosine_regulariser_gradient(embeddings, owner, people, normalised=normalised)
    assert closed.value == pytest.approx(value.item(), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(closed.gradient, gradient)


def test_the_cosine_regularisers_gradient_is_the_sum_of_the_other_parties_embeddings() -> None:
    embeddings, owner = normal(0, 6, 4), torch.tensor([0, 1, 1, 2, 0, 2])
    closed = cosine_regulariser_gradient(embeddings, owner).gradient
    for j in range(6):
        torch.testing.assert_close(closed[j], embeddings[owner != owner[j]].sum(dim=0))


# spreadout


def test_golden_values_of_spreadout() -> None:
    # spec N13d: rows (1, 0), (0.8, 0.6), (0, 1) with 1 - cos and margin 0.7: 2 (0.5² + 0.3²) over ordered pairs
    embeddings = torch.tensor([[2.0, 0.0], [0.8, 0.6], [0.0, 3.0]], dtype=torch.float64)
    assert spreadout(embeddings, 0.7).item() == pytest.approx(0.68)
    assert spreadout(embeddings, 0.7, reduction="mean").item() == pytest.approx(0.113333, abs=5e-7)
    assert spreadout_gradient(embeddings, 0.7).value == pytest.approx(0.68)
    assert spreadout_gradient(embeddings, 0.7, reduction="mean").value == pytest.approx(0.68 / 6)


def test_the_size_of_a_spreadout_step() -> None:
    # spec N4: 1,000 classes, 512-d, 5% of pairs above cosine 0.3: gradients of about 29 for the sum and 2.9e-5 for the
    # mean, so that a step of 10 would throw unit vectors away and 10 · 0.001 moves them by 0.29. Here 20 groups of 50.
    centres, noise = normal(0, 20, 512), normal(1, 1000, 512)
    embeddings = torch.nn.functional.normalize(centres.repeat(50, 1) + 0.95 * noise)
    cosines = embeddings @ embeddings.T
    assert (cosines > 0.3).sum().item() / 1e6 == pytest.approx(0.05, abs=0.002)
    summed = spreadout_gradient(embeddings).gradient.norm(dim=1).mean().item()
    averaged = spreadout_gradient(embeddings, reduction="mean").gradient.norm(dim=1).mean().item()
    assert 20 < summed < 40
    assert averaged == pytest.approx(summed / (1000 * 999))


@given(
    seeds, st.integers(1, 20), st.integers(1, 6), st.sampled_from(DISTANCES), st.floats(0.1, 2.0), st.integers(1, 25)
)
def test_spreadouts_closed_form_equals_dense_autograd(
    seed: int, classes: int, size: int, distance: SpreadoutDistance, margin: float, block: int
) -> None:
    embeddings = normal(seed, classes, size + 1)
    value, gradient = autograd(lambda w: spreadout(w, margin, distance), embeddings)
    closed = spreadout_gradient(embeddings, margin, distance, block=block)
    assert closed.value == pytest.approx(value.item(), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(closed.gradient, gradient)


@pytest.mark.parametrize("distance", DISTANCES)
def test_spreadouts_gradient_agrees_with_finite_differences(distance: SpreadoutDistance) -> None:
    torch.autograd.gradcheck(lambda w: spreadout(w, MARGINS[distance], distance), (normal(0, 5, 3).requires_grad_(),))


@given(seeds)
def test_equivalent_margins_act_on_the_same_pairs(seed: int) -> None:
    embeddings = normal(seed, 12, 5)
    cosine = spreadout(embeddings)
    torch.testing.assert_close(4 * spreadout(embeddings, 0.35, "half-cosine"), cosine)
    torch.testing.assert_close(spreadout(embeddings, 1.4, "squared-euclidean"), 4 * cosine)
    touched = spreadout_gradient(embeddings).gradient.norm(dim=1) > 1e-9
    assert torch.equal(spreadout_gradient(embeddings, math.sqrt(1.4), "euclidean").gradient.norm(dim=1) > 1e-9, touched)


@pytest.mark.parametrize("distance", DISTANCES)
def test_duplicates_zero_rows_and_single_classes_stay_finite(distance: SpreadoutDistance) -> None:
    embeddings = normal(0, 6, 4).float()
    embeddings[1] = embeddings[0]
    embeddings[2] = -embeddings[0]
    embeddings[5] = 0
    closed = spreadout_gradient(embeddings, MARGINS[distance], distance)
    assert math.isfinite(closed.value)
    assert closed.gradient.abs().max() < 100
    value, gradient = spreadout_gradient(embeddings[:1], MARGINS[distance], distance, reduction="mean")
    assert value == 0
    assert not gradient.any()


def test_a_spreadout_step_reduces_it_and_far_classes_are_left_alone() -> None:
    embeddings = torch.nn.functional.normalize(normal(0, 50, 8))
    value, gradient = spreadout_gradient(embeddings)
    assert spreadout_gradient(embeddings - 1e-3 * gradient).value < value
    assert not spreadout_gradient(torch.eye(8)).gradient.any()


def test_mining_everything_is_spreadout_and_mining_less_is_less() -> None:
    embeddings = normal(0, 40, 6)
    exact = spreadout_gradient(embeddings)
    everything = mined_spreadout_gradient(embeddings, 39)
    assert everything.value == pytest.approx(exact.value)
    torch.testing.assert_close(everything.gradient, exact.gradient)
    sampled = mined_spreadout_gradient(embeddings, 39, among=torch.arange(40).flip(0))
    torch.testing.assert_close(sampled.gradient, exact.gradient)
    errors = []
    for nearest in (1, 5, 10, 20):
        mined = mined_spreadout_gradient(embeddings, nearest)
        assert mined.value <= exact.value + 1e-9
        errors.append(((mined.gradient - exact.gradient).norm() / exact.gradient.norm()).item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01
    among = torch.tensor([3, 8, 20])
    few = mined_spreadout_gradient(embeddings, 10, among=among)
    value, gradient = autograd(
        lambda w: (
            (0.7 - 1 + torch.nn.functional.normalize(w) @ torch.nn.functional.normalize(w[among]).T)
            .clamp_min(0)[torch.arange(40)[:, None] != among]
            .square()
            .sum()
        ),
        embeddings,
    )
    assert few.value == pytest.approx(value.item())
    torch.testing.assert_close(few.gradient, gradient)


# what they share


def test_shared_copies_are_averaged() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
    averaged = average_shared(embeddings, torch.tensor([9, 9, 4]))
    assert averaged.tolist() == [[2.0, 1.0], [2.0, 1.0], [5.0, 5.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    embeddings, owner = normal(0, 20, 8).to(dtype), torch.arange(20) // 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = gradient_correction_gradient(embeddings, owner), spreadout_gradient(embeddings)
        dense = gradient_correction(embeddings, owner), spreadout(embeddings)
    full = gradient_correction_gradient(embeddings.float(), owner), spreadout_gradient(embeddings.float())
    for a, b, value in zip(half, full, dense, strict=True):
        assert a.value == b.value
        assert torch.equal(a.gradient, b.gradient)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(b.value, rel=1e-5)


def test_inputs_are_left_alone() -> None:
    embeddings, owner, identity = (
        normal(0, 9, 4),
        torch.tensor([2, 0, 1] * 3),
        torch.tensor([0, 0, 0, 1, 2, 3, 4, 4, 5]),
    )
    before = embeddings.clone()
    for form in FORMS:
        gradient_correction_gradient(embeddings, owner, identity, form=form)
    for ordered in (owner, owner.sort().values):
        cosine_regulariser_gradient(embeddings, ordered)
        gradient_correction_gradient(embeddings, ordered, form="cosface")
    for distance in DISTANCES:
        spreadout_gradient(embeddings, 1.0, distance)
    mined_spreadout_gradient(embeddings, 3)
    assert torch.equal(embeddings, before)


ROWS, OWNER = torch.ones(3, 2), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_correction(ROWS, OWNER[:2]), r"owner must be one int64 per class embedding, \(3,\)"),
        (lambda: gradient_correction_gradient(ROWS, OWNER.int()), "got torch.int32"),
        (lambda: gradient_correction_gradient(ROWS, OWNER, OWNER[:2]), "identity must be one int64"),
        (lambda: gradient_correction_gradient(ROWS, OWNER * 0, OWNER * 0), "party 0 holds identity 0 3 times"),
        (lambda: gradient_correction_gradient(ROWS, OWNER, form="cosfacee"), "did you mean 'cosface'"),
        (lambda: gradient_correction(ROWS, OWNER, scale=30.0), "softmax form .* has no scale"),
        (lambda: gradient_correction(ROWS, OWNER, form="cosface", scale=0.0), "scale is 0.0"),
        (lambda: gradient_correction(ROWS, OWNER, form="arcface", margin=28.6), "arcface form is 28.6"),
        (lambda: gradient_correction_gradient(ROWS, OWNER, block=0), "block must be at least 1"),
        (lambda: gradient_correction_gradient(ROWS[:0], OWNER[:0]), "not empty"),
        (lambda: spreadout(ROWS[0]), "class embeddings"),
        (lambda: spreadout(OWNER[:, None]), "real numbers"),
        (lambda: spreadout(ROWS, 0.7, "cosin"), "did you mean 'cosine'"),
        (lambda: spreadout_gradient(ROWS, float("nan")), "margin is nan"),
        (lambda: spreadout_gradient(ROWS, reduction="avg"), "not 'avg'"),
        (lambda: spreadout_gradient(ROWS, block=0), "block must be at least 1"),
        (lambda: mined_spreadout_gradient(ROWS, 0), "at least 1 nearest class"),
        (lambda: average_shared(ROWS, OWNER[:2]), "2 identities for 3"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FedVisageError, match=message):
        call()


@pytest.mark.parametrize(("step", "factor"), [(0.5, 0.5), (1.0, 0.0), (1.9, 0.9), (3.0, 2.0)])
def test_while_all_are_alike_correction_takes_out_what_parties_have_in_common(step: float, factor: float) -> None:
    """Short class embeddings are all as confusable as each other: every anchor pushes everybody of other parties alike.

    What all share is then multiplied by 1 - step N / (N + 1), N others: a step of 1 removes it, and beyond 2 it grows.
    """
    parties, classes, size = 8, 5, 16
    generator = torch.Generator().manual_seed(1)
    own = 1e-3 * torch.randn(parties * classes, size, generator=generator, dtype=torch.float64)
    rows = own - own.mean(dim=0) + 2e-3
    owner = torch.arange(parties).repeat_interleave(classes)
    others = (parties - 1) * classes
    moved = rows - step * gradient_correction_gradient(rows, owner).gradient
    expected = 1 - step * others / (others + 1)
    assert abs(abs(expected) - factor) < 0.1
    common = moved.mean(dim=0) / rows.mean(dim=0)
    torch.testing.assert_close(common, torch.full_like(common, expected), atol=0.01, rtol=0)


@pytest.mark.parametrize(("length", "changes_training"), [(0.05, False), (1.5, True)])
def test_correcting_short_raw_embeddings_cannot_change_what_softmax_teaches(
    length: float, changes_training: bool
) -> None:
    """Why the correction does nothing to raw softmax while class embeddings are short.

    Every class of a party is then moved by the same vector, and a softmax over the party's classes does not see what
    is added to all of them. Only longer embeddings make the closest classes count more than the others.
    """
    parties, classes, size = 8, 4, 32
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(parties * classes, size, generator=generator, dtype=torch.float64)
    rows *= length / rows.norm(dim=1, keepdim=True)
    owner = torch.arange(parties).repeat_interleave(classes)
    moved = rows - gradient_correction_gradient(rows, owner).gradient
    features = torch.randn(20, size, generator=generator, dtype=torch.float64)
    labels = torch.arange(20) % classes

    def taught(embeddings: Tensor) -> Tensor:
        inputs = features.clone().requires_grad_()
        softmax(inputs, embeddings[:classes], labels).backward()  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        return inputs.grad

    before, after = taught(rows), taught(moved)
    change = float((after - before).norm() / before.norm())
    assert change > 0.1 if changes_training else change < 1e-3
    assert float((moved - rows)[owner == 0].norm()) > 0.1 * float(rows[owner == 0].norm())  # though they did move


@given(seeds, st.integers(2, 40), st.integers(2, 24), st.floats(0.3, 3.0))
def test_normalised_corrections_leave_people_alone_who_are_far_apart(
    seed: int, classes: int, size: int, length: float
) -> None:
    """Why it does little to a few hundred people: each of the others pushes by e^{s(cos - 1 + m)} at most.

    At 30 / 0.35 that is 5e-4 for a cosine of 0.4, and 2e-6 for one of 0.2.
    """
    rows, owner = length * normal(seed, classes, size), torch.arange(classes) % 2
    gradient = gradient_correction_gradient(rows, owner, form="cosface", scale=30, margin=0.35).gradient
    directions = rows / rows.norm(dim=1, keepdim=True)
    pushes = torch.exp(30 * (directions @ directions.T - 0.65)).clamp(max=1) * (owner[:, None] != owner)
    bound = 30 * pushes.sum(dim=1) / rows.norm(dim=1)
    assert (gradient.norm(dim=1) <= bound * (1 + 1e-9)).all()


def test_the_raw_correction_turns_what_parties_have_in_common_and_cosface_sees_it() -> None:
    """With cosines around 0.2 the raw form changes directions, and so what CosFace teaches; CosFace's own does not."""
    rows, owner = 0.1 * (normal(1, 32, 128) + 0.5 * normal(2, 128)), torch.arange(32) // 4
    features, labels = normal(3, 20, 128), torch.arange(20) % 4

    def taught(embeddings: Tensor) -> Tensor:
        inputs = features.clone().requires_grad_()
        cosface(inputs, embeddings[:4], labels).backward()  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        return inputs.grad

    before, change = taught(rows), {}
    for form in ("softmax", "cosface"):
        moved = rows - gradient_correction_gradient(rows, owner, form=form).gradient
        change[form] = float((taught(moved) - before).norm() / before.norm())
    assert change["softmax"] > 0.05
    assert change["cosface"] < 0.005
