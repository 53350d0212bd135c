"""Generations of party state: the accepted and the pending one are kept, all others forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Stamp
from fedvisage.federation import StateStore


def stamp(round: int, attempt: int = 1, repeat: int = 0) -> Stamp:
    return Stamp(round, "train", attempt, repeat)


def files(folder: Path, party: str = "ann") -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in (folder / party).iterdir())


def test_a_state_comes_back_by_its_generation(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    generation = store.save("ann", stamp(1), {"visits": 1, "w": torch.ones(3)}, "")
    state = StateStore(tmp_path).load("ann", generation)
    assert state["visits"] == 1
    assert state["w"].tolist() == [1, 1, 1]


def test_before_the_first_generation_the_state_is_empty(tmp_path: Path) -> None:
    assert StateStore(tmp_path).load("ann", "") == {}


def test_the_base_is_kept_and_anything_older_forgotten(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    first = store.save("ann", stamp(1), {"n": 1}, "")
    second = store.save("ann", stamp(2), {"n": 2}, first)
    assert files(tmp_path) == [first, second]
    third = store.save("ann", stamp(3), {"n": 3}, second)
    assert files(tmp_path) == [second, third]


def test_a_refused_generation_is_forgotten_and_the_accepted_one_goes_on(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    first = store.save("ann", stamp(1), {"n": 1}, "")
    store.save("ann", stamp(2), {"n": 2}, first)
    third = store.save("ann", stamp(3), {"n": 3}, first)
    assert files(tmp_path) == [first, third]
    assert store.load("ann", first)["n"] == 1


def test_workers_that_take_turns_at_a_party_do_not_trip_over_each_other(tmp_path: Path) -> None:
    one, other = StateStore(tmp_path), StateStore(tmp_path)
    base = ""
    for round, store in enumerate([one, other, other, one, one, other, one, other], 1):
        before = base
        base = store.save("ann", stamp(round), {"n": round}, before)
        assert files(tmp_path) == sorted({before, base} - {""})
        assert store.load("ann", base)["n"] == round


def test_after_a_restart_leftovers_are_removed(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    first = store.save("ann", stamp(1), {"n": 1}, "")
    store.save("ann", stamp(2), {"n": 2}, first)
    again = StateStore(tmp_path).save("ann", stamp(2, attempt=2), {"n": 2}, first)
    assert files(tmp_path) == [first, again]


def test_other_files_of_the_party_are_left_alone(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    first = store.save("ann", stamp(1), {"n": 1}, "")
    (tmp_path / "ann" / "model.safetensors").write_bytes(b"mine")
    second = store.save("ann", stamp(2), {"n": 2}, first)
    third = StateStore(tmp_path).save("ann", stamp(3), {"n": 3}, second)
    assert files(tmp_path) == [second, third, "model"]


@pytest.mark.parametrize("party", ["../eve", "", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(party: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="not the name of a party and a generation"):
        StateStore(tmp_path / "store").save(party, stamp(1), {"n": 1}, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("generation", ["../../etc/passwd", "000001", "000001.train.0", "x"])
def test_a_generation_that_is_none_is_refused(generation: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="not the name of a party and a generation"):
        StateStore(tmp_path).load("ann", generation)


def test_a_generation_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"cannot read .*000009\.train\.0\.1"):
        StateStore(tmp_path).load("ann", str(stamp(9)))


def test_round_numbers_beyond_six_digits_are_names_too(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    assert store.load("ann", store.save("ann", stamp(1_234_567), {"n": 1}, ""))["n"] == 1
