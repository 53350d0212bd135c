"""What crosses: a parcel's bytes come back exactly, its size is what its tensors take, and junk is a ValueError."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.codec import pack
from fedvisage.core.flat import layout
from fedvisage.core.parcel import (
    BACKBONE,
    BUFFERS,
    GROUPS,
    PRIVATE_EMBEDDINGS,
    Parcel,
    Stamp,
    decode,
    encode,
    group_bytes,
    layout_bytes,
)


def example() -> Parcel:
    return Parcel(
        {BACKBONE: {"conv.weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(0)}, BUFFERS: {}},
        {"loss": 0.1, "samples": 12.0},
        Stamp(3, "train", 2, 1),
        "000002.train.0.1",
    )


def test_a_parcel_comes_back_exactly() -> None:
    parcel = example()
    back = decode(bytearray(encode(parcel)))
    assert back.statistics == parcel.statistics
    assert back.stamp == parcel.stamp
    assert back.generation == parcel.generation
    assert {group: list(tensors) for group, tensors in back.tensors.items()} == {
        BACKBONE: ["conv.weight", "bias"],
        BUFFERS: [],
    }
    assert torch.equal(back[BACKBONE]["conv.weight"], parcel[BACKBONE]["conv.weight"])
    assert back[BACKBONE]["bias"].shape == (0,)


def test_some_groups_can_be_encoded_alone() -> None:
    parcel = example()
    parcel.tensors[PRIVATE_EMBEDDINGS] = {"all": torch.ones(2)}
    back = decode(bytearray(encode(parcel, [PRIVATE_EMBEDDINGS])))
    assert list(back.tensors) == [PRIVATE_EMBEDDINGS]
    assert back.statistics == parcel.statistics


@given(
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=4),
    st.integers(0, 10**6),
    st.text(max_size=5),
)
def test_numbers_and_stamps_of_any_kind_survive(numbers: dict[str, float], round: int, phase: str) -> None:
    parcel = Parcel({}, numbers, Stamp(round, phase, 1, 2))
    back = decode(bytearray(encode(parcel)))
    assert (back.statistics, back.stamp) == (numbers, parcel.stamp)


def test_tensor_names_with_slashes_stay_in_their_group() -> None:
    parcel = Parcel({"a": {"b/c": torch.zeros(1)}, "a/b": {"c": torch.ones(1)}})
    back = decode(bytearray(encode(parcel)))
    assert (back["a"]["b/c"].item(), back["a/b"]["c"].item()) == (0.0, 1.0)


def test_its_size_counts_four_bytes_per_float_and_eight_per_number() -> None:
    parcel = example()
    assert parcel.nbytes == 6 * 4 + 2 * 8
    assert group_bytes(parcel[BACKBONE]) == layout_bytes(layout(parcel[BACKBONE])) == 24


def test_a_group_that_is_absent_has_no_tensors() -> None:
    assert example().get(PRIVATE_EMBEDDINGS) == {}


def test_every_group_is_explained() -> None:
    assert all(len(text) > 20 for text in GROUPS.values())


@given(st.binary(max_size=100))
def test_random_bytes_are_a_value_error(junk: bytes) -> None:
    with pytest.raises(ValueError):
        decode(bytearray(junk))


SOUND = {"tensors": {}, "statistics": {}, "stamp": [1, "train", 1, 0], "generation": ""}
UNSOUND = {
    "no head at all": None,
    "a list": "[]",
    "not JSON": "{",
    "nested deeply": "[" * 100_000,
    "a tensor that is not there": json.dumps(SOUND | {"tensors": {"g": {"n": {"$": "x"}}}}),
    "a tensor that is a list": json.dumps(SOUND | {"tensors": {"g": {"n": []}}}),
    "a group that is a number": json.dumps(SOUND | {"tensors": {"g": 3}}),
    "a number that is a word": json.dumps(SOUND | {"statistics": {"samples": "many"}}),
    "a number beyond floats": json.dumps(SOUND | {"statistics": {"samples": 10**400}}),
    "a stamp too short": json.dumps(SOUND | {"stamp": [1]}),
    "an endless stamp": '{"tensors":{},"statistics":{},"stamp":[Infinity,"train",1,0],"generation":""}',
    "no generation": json.dumps({key: value for key, value in SOUND.items() if key != "generation"}),
}


@pytest.mark.parametrize("head", UNSOUND.values(), ids=UNSOUND)
def test_a_head_that_is_no_parcel_is_a_value_error(head: str | None) -> None:
    with pytest.raises(ValueError):
        decode(bytearray(b"".join(pack({}, {} if head is None else {"parcel": head}))))
