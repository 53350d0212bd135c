"""Every kind of bad answer is refused with a reason that names it; a good one is measured exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.config import Guard as Rules
from fedvisage.core.errors import Kind
from fedvisage.core.flat import layout, pack_flat
from fedvisage.core.method import Joined
from fedvisage.core.parcel import BACKBONE, BUFFERS, OPTIMISER, PRIVATE_EMBEDDINGS, Parcel, Stamp, Tensors
from fedvisage.core.phase import Phase
from fedvisage.federation.bounds import History
from fedvisage.federation.guard import BLOCK, REST, Guard, Refused
from fedvisage.federation.plain import strangeness

VARIANCE = "norm.running_var"
STAMP = Stamp(3, "train", 1)
PHASE = Phase(
    "train",
    down={BACKBONE: "all", BUFFERS: "all"},
    up={BACKBONE: "weighted_sum", BUFFERS: "weighted_sum"},
    reports=("samples", "loss"),
    may_report=("classes",),
    trains=True,
)
RULES = Rules(max_samples=1000, norm_multiple=None, model_multiple=None)
JOINED = {"ann": Joined("trainer", 10, 3), "bob": Joined("trainer", 20, 4)}


def sent() -> Parcel:
    backbone = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
    return Parcel({BACKBONE: backbone, BUFFERS: {"mean": torch.zeros(3), VARIANCE: torch.ones(2)}}, stamp=STAMP)


def good() -> Parcel:
    backbone = {"w": torch.ones(2, 3), "b": torch.full((3,), 2.0)}
    buffers = {"mean": torch.ones(3), VARIANCE: torch.ones(2)}
    return Parcel({BACKBONE: backbone, BUFFERS: buffers}, {"samples": 10.0, "loss": 1.5}, STAMP)


def guard(**changes: Any) -> Guard:
    return replace(Guard(PHASE, STAMP, frozenset(JOINED), JOINED, RULES), **changes)


def check(answer: Parcel, party: str = "ann", by: Guard | None = None) -> float:
    down = sent()
    return (by or guard()).check(party, answer, {group: layout(down[group]) for group in PHASE.up}, down)


def test_a_good_answer_gives_the_norm_of_its_change() -> None:
    """Six ones and three twos: the square root of 6 + 12."""
    assert check(good()) == pytest.approx(18**0.5, rel=1e-6)


Spoil = Callable[[Parcel], object]


def put(group: str, name: str, tensor: torch.Tensor) -> Spoil:
    return lambda answer: answer[group].update({name: tensor})


def count(name: str, value: float) -> Spoil:
    return lambda answer: answer.statistics.update({name: value})


def stamped(stamp: Stamp) -> Spoil:
    return lambda answer: setattr(answer, "stamp", stamp)


BAD: dict[str, tuple[Spoil, str]] = {
    "NaN": (lambda a: a[BACKBONE]["w"].__setitem__((0, 1), torch.nan), r"backbone holds 1 values .* in 'w' .*nan"),
    "Inf": (lambda a: a[BUFFERS]["mean"].fill_(torch.inf), r"buffers holds 3 values that are not finite in 'mean'"),
    "minus Inf": (lambda a: a[BACKBONE]["b"].__setitem__(0, -torch.inf), r"backbone holds 1 values .* in 'b' .*-inf"),
    "values beyond measure": (lambda a: a[BACKBONE]["w"].fill_(1e30), "backbone holds values too large to measure"),
    "wrong shape": (put(BACKBONE, "w", torch.ones(3, 2)), r"backbone: 'w' has shape \(3, 2\), expected \(2, 3\)"),
    "broadcastable shape": (
        put(BACKBONE, "w", torch.ones(1, 3)),
        r"backbone: 'w' has shape \(1, 3\), expected \(2, 3\)",
    ),
    "a scalar for a vector": (
        put(BUFFERS, "mean", torch.tensor(1.0)),
        r"buffers: 'mean' has shape \(\), expected \(3,\)",
    ),
    "wrong dtype": (put(BACKBONE, "w", torch.ones(2, 3, dtype=torch.float64)), "'w' has dtype torch.float64, expected"),
    "half precision": (put(BACKBONE, "w", torch.ones(2, 3).half()), "'w' has dtype torch.float16, expected"),
    "missing key": (lambda a: a[BACKBONE].pop("b"), "backbone: missing key 'b'"),
    "extra key": (put(BACKBONE, "spy", torch.ones(1)), "backbone: extra key 'spy'"),
    "missing group": (lambda a: a.tensors.pop(BUFFERS), "buffers: missing key 'mean'"),
    "extra group": (lambda a: a.tensors.update({OPTIMISER: {"m": torch.ones(1)}}), "extra group 'optimiser'"),
    "templates nobody asked for": (
        lambda a: a.tensors.update({PRIVATE_EMBEDDINGS: {"all": torch.ones(3, 4)}}),
        r"extra group 'class_embeddings\.private', which train does not declare",
    ),
    "negative sample count": (count("samples", -1), "samples = -1 is not a count between 1 and 1,000"),
    "zero samples": (count("samples", 0), "samples = 0 is not a count"),
    "half a sample": (count("samples", 10.5), r"samples = 10\.5 is not a count"),
    "huge sample count": (count("samples", 1e12), r"samples = 1e\+12 is not a count"),
    "NaN samples": (count("samples", float("nan")), "number 'samples' is nan"),
    "an absurd loss": (count("loss", 1e12), r"number 'loss' is 1e\+12, beyond the bound 1e\+06"),
    "an absurdly negative loss": (count("loss", -1e300), "number 'loss' is -1e"),
    "infinite loss": (count("loss", float("inf")), "number 'loss' is inf"),
    "other samples than at joining": (count("samples", 11), "samples = 11, but 10 at joining"),
    "other classes than at joining": (count("classes", 4), "classes = 4, but 3 at joining"),
    "missing number": (lambda a: a.statistics.pop("loss"), "missing number 'loss'"),
    "extra number": (count("secret", 1), "extra number 'secret'"),
    "a number with a huge name": (count("n" * 10**6, 1), r"extra number 'n{80}\.\.\. \(1,000,000 characters\)'"),
    "a tensor with a huge name": (
        put(BACKBONE, "w" * 10**6, torch.ones(1)),
        r"backbone: extra key 'w{80}\.\.\. \(1,000,000",
    ),
    "a group with a huge name": (lambda a: a.tensors.update({"g" * 10**6: {}}), r"extra group 'g{80}\.\.\. \("),
    "many numbers": (lambda a: a.statistics.update({f"n{n}": 1.0 for n in range(10**5)}), "oversize: .* bytes"),
    "negative variance": (put(BUFFERS, VARIANCE, torch.tensor([1.0, -0.5])), "has a variance of -0.5"),
    "a huge mean": (
        put(BUFFERS, "mean", torch.full((3,), -2e4)),
        r"'mean' has a value 2e\+04, beyond the bound 1e\+04",
    ),
    "a huge variance": (put(BUFFERS, VARIANCE, torch.tensor([1.0, 2e8])), r"has a variance 2e\+08, beyond the bound"),
    "sparse": (put(BACKBONE, "w", torch.eye(2, 3).to_sparse()), "backbone: 'w' is a sparse_coo tensor"),
    "meta": (put(BACKBONE, "w", torch.ones(2, 3, device="meta")), "backbone: 'w' is a meta tensor, without values"),
    "expanded": (put(BACKBONE, "w", torch.ones(1).expand(2, 3)), "'w' has elements that overlap in memory"),
    "overlapping": (put(BACKBONE, "w", torch.ones(4).as_strided((2, 3), (1, 1))), "'w' has elements that overlap"),
    "no tensor": (put(BACKBONE, "w", [1.0, 2.0]), "backbone: 'w' is a list and no tensor"),  # type: ignore[arg-type]
    "oversize": (put(BACKBONE, "w", torch.ones(100, 100)), "oversize: 40,048 bytes where 4,152 are enough"),
    "stale round": (
        stamped(Stamp(2, "train", 1)),
        r"stale: answers 000002\.train\.0\.1, asked was 000003\.train\.0\.1",
    ),
    "another phase": (stamped(Stamp(3, "evaluate", 1)), r"stale: answers 000003\.evaluate"),
    "an earlier attempt": (stamped(Stamp(3, "train", 0)), r"stale: answers 000003\.train\.0\.0"),
    "an earlier repeat": (stamped(Stamp(3, "train", 1, 4)), r"stale: answers 000003\.train\.4\.1"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("flat", [False, True], ids=["by tensor", "as one vector"])
def test_a_bad_answer_is_refused_with_a_reason_that_names_it(spoil: Spoil, reason: str, flat: bool) -> None:
    answer = good()
    spoil(answer)
    if flat and not any(map(strangeness, answer[BACKBONE].values())):
        answer.tensors = {group: pack_flat(tensors) for group, tensors in answer.tensors.items()}
    with pytest.raises(Refused, match=reason):
        check(answer)


def test_a_stale_answer_is_told_apart_because_the_right_one_may_follow() -> None:
    by = guard()
    late = good()
    late.stamp = Stamp(2, "train", 1)
    with pytest.raises(Refused) as refused:
        check(late, by=by)
    assert refused.value.kind is Kind.STALE
    assert check(good(), by=by) > 0


def test_of_a_repeated_answer_the_first_counts() -> None:
    by = guard()
    check(good(), by=by)
    with pytest.raises(Refused, match="repeated answer: the first one counts"):
        check(good(), by=by)


def test_a_refused_answer_is_not_mended_by_a_second_one() -> None:
    by = guard()
    bad = good()
    bad[BACKBONE]["w"].fill_(torch.nan)
    with pytest.raises(Refused, match="not finite"):
        check(bad, by=by)
    with pytest.raises(Refused, match="repeated answer"):
        check(good(), by=by)


def test_a_party_that_was_not_asked_is_refused() -> None:
    with pytest.raises(Refused, match="not asked in this round"):
        check(good(), party="eve")


def test_an_update_beyond_the_bound_is_refused_with_both_numbers() -> None:
    """The change has norm sqrt(18) = 4.243."""
    with pytest.raises(Refused, match=r"norm 4\.243, beyond the bound 4"):
        check(good(), by=guard(rules=Rules(norm_bound=4.0)))
    assert check(good(), by=guard(rules=Rules(norm_bound=4.25))) == pytest.approx(4.2426, abs=1e-4)


def test_an_update_is_compared_with_the_model_that_went_down() -> None:
    """A change of norm 4.243 to ones and twos, whose norm is as much, and to zeros, whose place nine ones take."""
    down, answer = good(), good()
    for tensor in answer[BACKBONE].values():
        tensor *= 2
    expected = {group: layout(down[group]) for group in PHASE.up}
    for times, passes in ((1.01, True), (0.99, False)):
        by = guard(rules=Rules(model_multiple=times))
        if passes:
            assert by.check("ann", answer, expected, down) == pytest.approx(4.2426, abs=1e-4)
        else:
            with pytest.raises(Refused, match=r"norm 4\.243, beyond the bound 4\.2, which is 0\.99 times the model"):
                by.check("ann", answer, expected, down)
    check(good(), by=guard(rules=Rules(model_multiple=1.42)))
    with pytest.raises(Refused, match=r"beyond the bound 4\.2,"):
        check(good(), by=guard(rules=Rules(model_multiple=1.4)))


def test_an_update_is_compared_by_the_local_steps_of_its_party() -> None:
    """Ann has one step and bob two; the usual update is 0.1, and as much per step."""
    history = History(roles={"trainer": [[0.1, 0.1]]})
    by = guard(rules=Rules(norm_multiple=30.0), history=history, steps=lambda joined: joined.samples // 10)
    answer = good()
    answer.statistics["samples"] = 20.0
    assert check(answer, "bob", by) == pytest.approx(4.2426, abs=1e-4)
    with pytest.raises(Refused, match=r"bound 3, which is 30 times what is usual for a trainer of 1 local steps"):
        check(good(), "ann", by)


def test_counts_at_joining_are_only_bounded() -> None:
    phase = Phase("join", "start", reports=("samples",), may_report=("classes",), counts=True)
    by = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES)
    assert by.check("ann", Parcel({}, {"samples": 7.0, "classes": 2.0}, STAMP), {}, Parcel()) == 0.0
    by = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES)
    with pytest.raises(Refused, match="classes = 0 is not a count"):
        by.check("ann", Parcel({}, {"samples": 7.0, "classes": 0.0}, STAMP), {}, Parcel())


def test_a_reason_is_one_short_line_that_no_terminal_obeys() -> None:
    """A party's account of its failure, or a name in its answer, may hold anything."""
    assert str(Refused(Kind.FAILED, "the disk\n is \x1b[2Jfull")) == "the disk is ?[2Jfull"
    assert len(str(Refused(Kind.FAILED, "x" * 10**6))) == 300


def test_nobody_joins_with_more_people_than_images() -> None:
    phase = Phase("join", "start", reports=("samples",), may_report=("classes",), counts=True)
    by = Guard(phase, STAMP, frozenset({"ann"}), {}, RULES)
    with pytest.raises(Refused, match="8 classes cannot share 7 samples"):
        by.check("ann", Parcel({}, {"samples": 7.0, "classes": 8.0}, STAMP), {}, Parcel())
    by = Guard(phase, STAMP, frozenset({"ann"}), {}, Rules(max_classes=5))
    with pytest.raises(Refused, match="classes = 6 is not a count between 1 and 5"):
        by.check("ann", Parcel({}, {"samples": 7.0, "classes": 6.0}, STAMP), {}, Parcel())


@pytest.mark.parametrize(("declared", "passes"), [({}, 999.0), ({PRIVATE_EMBEDDINGS: 1.5}, 1.4)])
def test_class_embeddings_are_no_longer_than_the_phase_declares(declared: dict[str, float], passes: float) -> None:
    """Rows of two numbers of equal size: their length is the square root of two times as much."""
    phase = Phase("train", up={PRIVATE_EMBEDDINGS: "individual"}, largest=declared)
    for length in (passes, 1.1 * passes, 1e6):
        rows = torch.full((3, 2), 0.1)
        rows[1] = length / 2**0.5
        group = {"own": rows}
        by, expected = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES), {PRIVATE_EMBEDDINGS: layout(group)}
        parcel = Parcel({PRIVATE_EMBEDDINGS: group}, {}, STAMP)
        if length == passes:
            by.check("ann", parcel, expected, Parcel())
            continue
        with pytest.raises(Refused, match=r"class_embeddings\.private: 'own' has a row of length") as refused:
            by.check("ann", parcel, expected, Parcel())
        assert refused.value.kind is Kind.BEYOND


@given(st.permutations(range(3)), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.lists(st.integers(-3, 3)))
def test_whatever_strides_let_two_indices_meet_overlap(order: list[int], shape: list[int], more: list[int]) -> None:
    """Against counting the places; strides that only look as if they met may be called overlapping, too."""
    dense = torch.arange(4.0**3)
    steps = [0, 0, 0]
    reach = 1
    for dimension, slack in zip(order, [*more, 0, 0, 0], strict=False):
        steps[dimension] = max(0, reach + slack)
        reach = max(reach, steps[dimension] * shape[dimension])
    if sum((size - 1) * step for size, step in zip(shape, steps, strict=True)) >= len(dense):
        return
    tensor = dense.as_strided(shape, steps)
    met = len(tensor.unique()) < tensor.numel()
    assert not met or strangeness(tensor)
    assert not strangeness(torch.zeros(shape).permute(order))


def dense(answer: Tensors, start: Tensors) -> float:
    return float(sum((answer[name].double() - start[name].double()).square().sum() for name in answer)) ** 0.5


@given(st.lists(st.sampled_from([1, 3, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]), max_size=4), st.booleans())
def test_the_norm_equals_a_dense_computation_for_any_sizes(sizes: list[int], flat: bool) -> None:
    generator = torch.Generator().manual_seed(len(sizes))
    start = {str(i): torch.randn(size, generator=generator) for i, size in enumerate(sizes)}
    after = {name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in start.items()}
    phase = Phase("train", up={BACKBONE: "weighted_sum"}, trains=True)
    by = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES)
    answer, down = (pack_flat(after), pack_flat(start)) if flat else (after, start)
    norm = by.check("ann", Parcel({BACKBONE: answer}, {}, STAMP), {BACKBONE: layout(start)}, Parcel({BACKBONE: down}))
    assert norm == pytest.approx(dense(after, start), rel=1e-4, abs=1e-9)


def test_the_norm_has_the_same_bits_however_the_tensors_lie_in_memory() -> None:
    generator = torch.Generator().manual_seed(5)
    start = {str(i): torch.randn(size, generator=generator) for i, size in enumerate([7, 1000, 33, 5000])}
    after = {name: value + torch.randn(value.shape, generator=generator) for name, value in start.items()}
    turned = dict(reversed(list(after.items())))
    norms = set()
    for answer in (after, pack_flat(after), turned, pack_flat(turned)):
        for down in (start, pack_flat(start)):
            by = Guard(PHASE, STAMP, frozenset({"ann"}), JOINED, RULES)
            parcel = Parcel({BACKBONE: answer}, {"samples": 10.0, "loss": 1.0}, STAMP)
            norms.add(by.check("ann", parcel, {BACKBONE: layout(start)}, Parcel({BACKBONE: down})))
    assert len(norms) == 1


def test_an_answer_that_can_rest_does_so_on_the_way_to_the_same_norm() -> None:
    start = pack_flat({"w": torch.zeros(REST + 5), "b": torch.ones(3)})
    after = pack_flat({"w": torch.linspace(-1, 1, REST + 5), "b": torch.zeros(3)})
    rests, norms = list[str](), set()
    for rest in (None, lambda: rests.append("rest")):
        by = Guard(PHASE, STAMP, frozenset({"ann"}), JOINED, RULES)
        parcel = Parcel({BACKBONE: after}, {"samples": 10.0, "loss": 1.0}, STAMP, rest=rest)
        norms.add(by.check("ann", parcel, {BACKBONE: layout(start)}, Parcel({BACKBONE: start})))
    assert len(norms) == len(rests) == 1


@pytest.mark.parametrize("place", [0, BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_one_bad_value_is_found_anywhere_in_a_large_tensor(place: int, value: float) -> None:
    start = torch.zeros(2 * BLOCK + 6)
    after = start.clone()
    after[place] = value
    phase = Phase("train", up={BACKBONE: "weighted_sum"}, trains=True)
    by = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES)
    with pytest.raises(Refused, match="1 values that are not finite in 'w'"):
        by.check(
            "ann",
            Parcel({BACKBONE: {"w": after}}, {}, STAMP),
            {BACKBONE: layout({"w": start})},
            Parcel({BACKBONE: {"w": start}}),
        )


def test_two_huge_opposite_values_are_refused_without_a_warning() -> None:
    start = {"w": torch.full((4,), -3e38)}
    phase = Phase("train", up={BACKBONE: "weighted_sum"}, trains=True)
    by = Guard(phase, STAMP, frozenset({"ann"}), JOINED, RULES)
    answer = Parcel({BACKBONE: {"w": torch.full((4,), 3e38)}}, {}, STAMP)
    with pytest.raises(Refused, match="too large to measure"):
        by.check("ann", answer, {BACKBONE: layout(start)}, Parcel({BACKBONE: start}))
