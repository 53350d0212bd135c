"""A group handled as one vector gives the same results as handled tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.codec import neighbours
from fedvisage.core.flat import Flat, columns, copy, is_flat, layout, pack_flat, zeros_flat
from fedvisage.core.parcel import Parcel, decode, encode, group_bytes

shapes = st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3), max_size=5)


def numbered(sizes: dict[str, list[int]], first: float = 0.0) -> dict[str, torch.Tensor]:
    group, count = {}, first
    for name, shape in sizes.items():
        group[name] = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + count
        count += group[name].numel()
    return group


@given(shapes)
def test_a_packed_group_is_equal_by_name_and_shares_nothing(sizes: dict[str, list[int]]) -> None:
    group = numbered(sizes)
    packed = pack_flat(group)
    assert list(packed) == list(group)
    assert all(torch.equal(packed[name], group[name]) for name in group)
    assert layout(packed) == layout(group)
    assert group_bytes(packed) == group_bytes(group)
    for tensor in packed.values():
        tensor.add_(1)
    assert all(torch.equal(group[name], value) for name, value in numbered(sizes).items())


@given(shapes)
def test_copying_whole_and_by_name_agree(sizes: dict[str, list[int]]) -> None:
    values = numbered(sizes, first=5.0)
    turned = dict(reversed(list(values.items())))
    for source in (values, pack_flat(values), pack_flat(turned)):
        into = pack_flat(numbered(sizes))
        copy(into, source)
        assert all(torch.equal(into[name], values[name]) for name in values)


def test_groups_in_another_order_are_matched_by_name() -> None:
    one = pack_flat({"a": torch.ones(2), "b": torch.zeros(1)})
    other = pack_flat({"b": torch.full((1,), 5.0), "a": torch.full((2,), 7.0)})
    ours, theirs = columns(one, other)
    assert [(a.tolist(), b.tolist()) for a, b in zip(ours, theirs, strict=True)] == [
        ([1.0, 1.0], [7.0, 7.0]),
        ([0.0], [5.0]),
    ]


def test_after_an_entry_is_replaced_the_old_vector_is_not_used() -> None:
    group = pack_flat({"a": torch.zeros(2), "b": torch.zeros(1)})
    assert is_flat(group)
    group["a"] = torch.full((2,), 3.0)
    assert not is_flat(group)
    into = pack_flat({"a": torch.ones(2), "b": torch.ones(1)})
    copy(into, group)
    assert into["a"].tolist() == [3.0, 3.0]
    group["c"] = torch.zeros(4)
    assert group_bytes(group) == 4 * 7
    assert list(layout(group)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "change",
    [
        lambda group: group.update(a=torch.ones(2)),
        lambda group: group.__ior__({"a": torch.ones(2)}),
        lambda group: group.setdefault("c", torch.ones(2)),
        lambda group: group.pop("a"),
        lambda group: group.popitem(),
        lambda group: group.__delitem__("b"),
        lambda group: group.clear(),
    ],
)
def test_no_way_of_changing_a_group_leaves_it_flat(change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    group = pack_flat({"a": torch.zeros(2), "b": torch.zeros(1)})
    change(group)
    assert not is_flat(group)
    assert group_bytes(group) == sum(4 * tensor.numel() for tensor in group.values())


@given(shapes)
def test_zeros_have_the_shapes_of_the_group(sizes: dict[str, list[int]]) -> None:
    group = numbered(sizes, first=5.0)
    zeros = zeros_flat(group)
    assert layout(zeros) == layout(group)
    assert not any(tensor.any() for tensor in zeros.values())
    assert is_flat(zeros) == bool(group)


def test_mixed_dtypes_stay_apart() -> None:
    group = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.int64)}
    for packed in (pack_flat(group), zeros_flat(group)):
        assert not is_flat(packed)
        assert packed["b"].dtype == torch.int64


def test_tensors_side_by_side_in_one_buffer_are_found() -> None:
    vector = torch.arange(5.0)
    assert isinstance(neighbours({"a": vector[:2], "b": vector[2:]}), Flat)
    assert not isinstance(neighbours({"b": vector[2:], "a": vector[:2]}), Flat)
    assert not isinstance(neighbours({"a": vector[:2], "b": vector[3:]}), Flat)
    assert not isinstance(neighbours({"a": vector[:3], "b": vector[2:]}), Flat)
    assert not isinstance(neighbours({"a": vector[:2], "b": "text"}), Flat)


def test_a_group_from_the_wire_is_one_vector_again() -> None:
    sent = pack_flat({"a": torch.ones(3), "b": torch.zeros(2, 2)})
    back = decode(bytearray(encode(Parcel({"g": sent, "h": {"n": torch.ones(2)}}, {"loss": 1.0}))))
    assert is_flat(back["g"])


@given(shapes)
def test_a_group_from_the_wire_has_the_values_that_were_sent(sizes: dict[str, list[int]]) -> None:
    group = numbered({name: shape for name, shape in sizes.items() if name != "$"})
    back = decode(bytearray(encode(Parcel({"g": group}))))["g"]
    into = pack_flat({name: torch.full_like(value, -1) for name, value in group.items()})
    copy(into, back)
    assert all(torch.equal(into[name], value) for name, value in group.items())
