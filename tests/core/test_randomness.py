"""Random streams are named, not shared: what is drawn depends on the path alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.randomness import Streams

key = st.text(max_size=4) | st.integers(-5, 5)
path = st.lists(key, min_size=1, max_size=4).map(tuple)


def draws(streams: Streams, *purpose: str) -> list[float]:
    return streams.numpy(*purpose).random(3).tolist()


@given(path, path)
def test_different_paths_give_different_streams(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert (Streams(*one).bits() == Streams(*other).bits()) == (repr(one) == repr(other))


def test_a_separator_inside_a_name_does_not_imitate_a_path() -> None:
    assert Streams("a", "b").bits() != Streams("a\x1fstr:b").bits()


def test_a_number_and_its_digits_are_different_keys() -> None:
    assert Streams(1, 2).bits() != Streams(1, "2").bits()


@given(path, path)
def test_going_down_in_steps_or_at_once_is_the_same(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert Streams(*one).child(*other).bits() == Streams(*one, *other).bits() == Streams(*one).bits(*other)


def test_who_draws_first_does_not_matter() -> None:
    first = Streams(7, "a")
    alone = draws(first, "x")
    for other in ("y", "z"):
        draws(first, other)
    torch.rand(3)
    np.random.default_rng().random(3)
    assert draws(first, "x") == alone


def test_nothing_depends_on_the_global_seeds() -> None:
    torch.manual_seed(1)
    one = torch.rand(3, generator=Streams(1).torch("t"))
    torch.manual_seed(2)
    assert torch.equal(one, torch.rand(3, generator=Streams(1).torch("t")))


def test_torch_and_numpy_streams_differ_by_purpose() -> None:
    streams = Streams(1)
    a = torch.rand(1000, generator=streams.torch("a"), dtype=torch.float64)
    b = torch.rand(1000, generator=streams.torch("b"), dtype=torch.float64)
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.15  # 4.7 standard errors of 1/sqrt(1000)


def test_another_process_draws_the_same_numbers() -> None:
    code = """
from fedvisage.core.randomness import Streams
import torch
s = Streams(5, "round", 2, "party-07")
print(s.numpy("order").permutation(9).tolist(), torch.rand(2, generator=s.torch("w")).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    streams = Streams(5, "round", 2, "party-07")
    ours = streams.numpy("order").permutation(9).tolist(), torch.rand(2, generator=streams.torch("w")).tolist()
    assert done.stdout.strip() == f"{ours[0]} {ours[1]}"


def test_the_streams_of_a_seed_never_change() -> None:
    """Recorded once; a change here means that every published result changes."""
    assert Streams(1, "parties", 2, "party-00").bits("train", "order", 0) == RECORDED


RECORDED = 2286309140992545494711049883519494220
