"""Sums that do not depend on who came first, and reductions against computations by hand."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import pack_flat
from fedvisage.core.method import Result
from fedvisage.core.parcel import BACKBONE, BUFFERS, OPTIMISER, PRIVATE_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.rule import Rule, Vectors
from fedvisage.federation import aggregation, stack
from fedvisage.federation.aggregation import CHUNKS, Aggregator, InOrder, OrderedSum, chunk_size
from fedvisage.methods.rules import Median, NormClipping, TrimmedMean

PHASE = Phase("train", up={BACKBONE: "weighted_sum", BUFFERS: "mean"}, trains=True)
SIZES = [1, 2, 63, 64, 65, 200]


def names(count: int) -> list[str]:
    return [f"p{number:04d}" for number in range(count)]


def answer(number: int, flat: bool = True) -> Parcel:
    generator = torch.Generator().manual_seed(number)
    groups = {
        BACKBONE: {"w": torch.randn(2, 3, generator=generator), "b": torch.randn(5, generator=generator)},
        BUFFERS: {"mean": torch.randn(3, generator=generator)},
    }
    return Parcel({g: pack_flat(t) if flat else t for g, t in groups.items()}, {"loss": float(number)})


def aggregate(count: int, order: list[int], skipped: frozenset[int] = frozenset(), flat: bool = True) -> Result:
    cohort = names(count)
    aggregator = Aggregator(PHASE, cohort)
    for number in order:
        if number in skipped:
            aggregator.skip(cohort[number], "gone")
            continue
        given_answer = answer(number, flat)
        aggregator.add(cohort[number], given_answer, number + 1.0, 0.0, Parcel())
        for group in given_answer.tensors.values():
            for tensor in group.values():
                tensor.fill_(torch.nan)  # the transport may overwrite an answer once it was taken
    return aggregator.result()


def same_bits(one: Result, other: Result) -> bool:
    assert [list(group) for group in one.reduced.values()] == [list(group) for group in other.reduced.values()]
    return all(
        torch.equal(tensor, other.reduced[group][name])
        for group, tensors in one.reduced.items()
        for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("count", SIZES)
def test_the_mean_equals_a_float64_reference(count: int) -> None:
    result = aggregate(count, list(range(count)))
    weights = torch.arange(1, count + 1, dtype=torch.float64)
    answers = [answer(number) for number in range(count)]
    for name in ("w", "b"):
        stacked = torch.stack([a[BACKBONE][name].double() for a in answers])
        wanted = torch.tensordot(weights / weights.sum(), stacked, 1)
        assert torch.allclose(result.reduced[BACKBONE][name].double(), wanted, atol=1e-6)
    plain = torch.stack([a[BUFFERS]["mean"].double() for a in answers]).mean(dim=0)
    assert torch.allclose(result.reduced[BUFFERS]["mean"].double(), plain, atol=1e-6)
    assert result.weights == pytest.approx(
        {n: float(w / weights.sum()) for n, w in zip(names(count), weights, strict=True)}
    )


@settings(max_examples=30)
@given(st.sampled_from(SIZES), st.randoms(use_true_random=False), st.booleans(), st.floats(0, 0.9))
def test_any_order_of_arrival_gives_the_same_bits(count: int, chance: object, flat: bool, gone: float) -> None:
    order = list(range(count))
    chance.shuffle(order)  # type: ignore[attr-defined]
    skipped = frozenset(n for n in range(count - 1) if chance.random() < gone)  # type: ignore[attr-defined]
    shuffled = aggregate(count, order, skipped, flat)
    assert same_bits(aggregate(count, list(range(count)), skipped), shuffled)
    assert list(shuffled.statistics) == [name for n, name in enumerate(names(count)) if n not in skipped]
    assert list(shuffled.absent) == [name for n, name in enumerate(names(count)) if n in skipped]


@pytest.mark.parametrize("count", SIZES)
def test_chunks_depend_on_the_number_of_parties_alone(count: int) -> None:
    assert chunk_size(count) == -(-count // CHUNKS)


@pytest.mark.parametrize("count", SIZES)
def test_answers_in_order_are_never_held(count: int) -> None:
    total = OrderedSum(count)
    for number in range(count):
        total.put(number, ({"g": {"t": torch.ones(2)}}, 1.0))
        assert len(total._order._held) == 0
        assert len(total._chunks) <= 1
        assert len(total._spare) <= 1
        assert all(not order._held for order, _ in total._chunks.values())
    assert total.total is not None
    assert total.total["g"]["t"].tolist() == [count, count]


@pytest.mark.parametrize("count", [1, 200])
def test_an_average_is_let_go_of_with_its_result_without_the_garbage_collector(count: int) -> None:
    gc.disable()
    try:
        result = aggregate(count, list(range(count)))
        gone = weakref.ref(result.reduced[BACKBONE]["w"])
        del result
        assert gone() is None
    finally:
        gc.enable()


def test_an_early_item_waits_for_its_turn_and_a_skipped_one_does_not_block() -> None:
    passed: list[str] = []
    order = InOrder[str](passed.append, str.upper)
    order.put(2, "c")
    order.put(1, None)
    assert passed == []
    order.put(0, "a")
    assert passed == ["a", "C"]


def test_what_can_rest_is_held_as_it_is_and_rests_once_it_was_passed_on() -> None:
    told: list[str] = []
    order = InOrder[str](told.append, str.upper)
    order.put(1, "b", lambda: told.append("b rests"))
    order.put(0, "a", lambda: told.append("a rests"))
    assert told == ["a", "a rests", "b", "b rests"]


@pytest.mark.parametrize("count", [2, 100])
def test_an_answer_that_can_rest_is_added_piece_by_piece_to_the_same_bits(count: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(aggregation, "PIECE", 4)
    whole, rested = aggregate(count, list(range(count))), list[str]()
    aggregator = Aggregator(PHASE, names(count))
    for number, party in enumerate(names(count)):
        given_answer = replace(answer(number), rest=lambda party=party: rested.append(party))
        aggregator.add(party, given_answer, number + 1.0, 0.0, Parcel())
    assert same_bits(aggregator.result(), whole)
    assert rested.count(names(count)[-1]) > 3, "11 numbers of a backbone, 4 at a time"


def test_nobody_counted_leaves_an_empty_result() -> None:
    result = aggregate(3, [0, 1, 2], frozenset({0, 1, 2}))
    assert result.reduced == {BACKBONE: {}, BUFFERS: {}}
    assert (result.weights, result.statistics) == ({}, {})


def test_answers_without_any_weight_are_an_error_that_names_them() -> None:
    aggregator = Aggregator(PHASE, ["ann", "bob"])
    aggregator.add("ann", answer(0), 0.0, 0.0, Parcel())
    aggregator.skip("bob", "gone")
    with pytest.raises(FedVisageError, match="answers of ann have no weight"):
        aggregator.result()


def test_a_group_that_nobody_has_is_left_out() -> None:
    aggregator = Aggregator(PHASE, ["ann"])
    aggregator.add("ann", Parcel({BACKBONE: {"w": torch.ones(2)}}), 2.0, 0.0, Parcel())
    reduced = aggregator.result().reduced
    assert reduced[BUFFERS] == {}
    assert reduced[BACKBONE]["w"].tolist() == [1, 1]


def row(*values: float) -> Tensors:
    return {"t": torch.tensor(values, dtype=torch.float32)}


def reduce(folder: Path, rule: Rule, answers: Sequence[Tensors], sent: Tensors | None = None) -> Tensors:
    cohort = names(len(answers))
    aggregator = Aggregator(SUMMED, cohort, rule, spill=folder)
    for party, tensors in reversed(list(zip(cohort, answers, strict=True))):
        aggregator.add(party, Parcel({BACKBONE: tensors}), 1.0, 0.0, Parcel({BACKBONE: sent or {}}))
    return aggregator.result().reduced[BACKBONE]


SUMMED = Phase("train", up={BACKBONE: "weighted_sum"}, trains=True)


def test_the_median_is_coordinate_wise_and_averages_the_middle_two(tmp_path: Path) -> None:
    """By hand: of 1, 9, 2 the median is 2; of 1, 9, 2, 4 it is (2 + 4) / 2."""
    three = [row(1, 10), row(9, 30), row(2, 20)]
    assert reduce(tmp_path, Median(), three)["t"].tolist() == [2, 20]
    assert reduce(tmp_path, Median(), [*three, row(4, 0)])["t"].tolist() == [3, 15]
    assert reduce(tmp_path, Median(), [row(5, 6)])["t"].tolist() == [5, 6]


def test_the_trimmed_mean_cuts_the_same_share_at_both_ends(tmp_path: Path) -> None:
    """By hand: of 0, 1, 2, 3, 100 without the smallest and the largest the mean is 2."""
    five = [row(100), row(1), row(0), row(3), row(2)]
    assert reduce(tmp_path, TrimmedMean(trim=0.2), five)["t"].tolist() == [2]
    assert reduce(tmp_path, TrimmedMean(trim=0.1), five)["t"].tolist() == pytest.approx([106 / 5])
    assert reduce(tmp_path, TrimmedMean(trim=0.49), five)["t"].tolist() == [2]
    assert reduce(tmp_path, TrimmedMean(trim=0.49), [row(1), row(3)])["t"].tolist() == [2]


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.34)])
def test_a_robust_rule_ignores_weights_and_one_liar(rule: Rule, tmp_path: Path) -> None:
    aggregator = Aggregator(SUMMED, ["a", "b", "c"], rule, spill=tmp_path)
    for name, value, weight in (("c", 1e6, 1e6), ("a", 1.0, 1.0), ("b", 2.0, 1.0)):
        aggregator.add(name, Parcel({BACKBONE: {"t": torch.tensor([value])}}), weight, 0.0, Parcel())
    assert aggregator.result().reduced[BACKBONE]["t"].tolist() == [2.0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "the answers' files are removed"


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.2)])
def test_blocks_of_coordinates_give_the_bits_of_the_whole(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against torch's sort of everything at once, over tensors of several shapes and dtypes."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (7, 3), "b": (), "c": (11,)}
    for kind in (torch.float32, torch.float64):
        answers = [
            {n: torch.randn(shape, generator=generator).to(kind) for n, shape in shapes.items()} for _ in range(6)
        ]
        monkeypatch.setattr(stack, "BLOCK_BYTES", 200)
        found = reduce(tmp_path, rule, answers)
        cut = rule.cut(6)  # type: ignore[attr-defined]
        for name in shapes:
            slow = torch.stack([answer[name] for answer in answers]).sort(dim=0).values[cut : 6 - cut].mean(dim=0)
            assert torch.equal(found[name], slow)
            assert found[name].dtype == kind


class Farthest(Rule):
    """A rule over whole vectors: the answer that is farthest from what went down."""

    needs: ClassVar[Literal["sum", "individual"]] = "individual"

    def reduce(self, answers: Vectors, weights: Sequence[float], sent: Vectors) -> Tensor:
        apart = answers.block(0, answers.size) - sent.block(0, sent.size)
        return torch.from_numpy(answers.block(0, answers.size)[int((apart**2).sum(axis=1).argmax())])


def test_a_rule_may_look_at_whole_vectors_and_at_what_went_down(tmp_path: Path) -> None:
    found = reduce(tmp_path, Farthest(), [row(9, 9), row(-5, 0), row(8, 8)], sent=row(8, 8))
    assert found["t"].tolist() == [-5, 0]


def test_norm_clipping_shortens_the_step_and_keeps_its_direction() -> None:
    """From (1, 1) by (3, 4), norm 5, clipped to 1: (1.6, 1.8). The second stays; equal weights average the two."""
    down = Parcel({BACKBONE: {"t": torch.ones(2)}})
    aggregator = Aggregator(SUMMED, ["a", "b"], NormClipping(clip=1.0))
    aggregator.add("a", Parcel({BACKBONE: {"t": torch.tensor([4.0, 5.0])}}), 1.0, 5.0, down)
    aggregator.add("b", Parcel({BACKBONE: {"t": torch.tensor([1.0, 1.5])}}), 1.0, 0.5, down)
    assert aggregator.result().reduced[BACKBONE]["t"].tolist() == pytest.approx([1.3, 1.65])


@pytest.mark.parametrize("small", [0, 1 << 16])
def test_individual_answers_come_back_by_party_in_order_and_are_copies(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "SMALL", small)
    phase = Phase("train", up={PRIVATE_EMBEDDINGS: "individual", BACKBONE: "weighted_sum"}, trains=True)
    aggregator = Aggregator(phase, ["a", "b", "c"], individual=frozenset({BACKBONE, OPTIMISER}))
    live = torch.ones(2)
    for name in ("c", "a"):
        parcel = Parcel({PRIVATE_EMBEDDINGS: {"own": live}, BACKBONE: {"w": live}})
        aggregator.add(name, parcel, 1.0, 0.0, Parcel())
        live += 1
    aggregator.skip("b", "gone")
    result = aggregator.result()
    assert list(result.individual) == [BACKBONE, PRIVATE_EMBEDDINGS]
    assert list(result.individual[PRIVATE_EMBEDDINGS]) == ["a", "c"]
    assert result.individual[BACKBONE]["c"]["w"].tolist() == [1, 1]
    assert result.individual[PRIVATE_EMBEDDINGS]["a"]["own"].tolist() == [2, 2]
    assert result.reduced[BACKBONE]["w"].tolist() == [1.5, 1.5]


def test_large_individual_answers_go_to_disk_and_come_back_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "SPILL_BYTES", 100)
    phase = Phase("train", up={PRIVATE_EMBEDDINGS: "individual"}, trains=True)
    aggregator = Aggregator(phase, names(4), spill=tmp_path)
    given_answers = {name: {"own": torch.randn(3, 5), "count": torch.tensor([n])} for n, name in enumerate(names(4))}
    for name, tensors in given_answers.items():
        aggregator.add(name, Parcel({PRIVATE_EMBEDDINGS: tensors}), 1.0, 0.0, Parcel())
    kept = aggregator.result().individual[PRIVATE_EMBEDDINGS]
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3
    assert len(kept) == 4
    for name, tensors in given_answers.items():
        assert all(torch.equal(kept[name][key], tensor) for key, tensor in tensors.items())
