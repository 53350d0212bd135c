"""Generations of party state: the accepted and the pending one are kept, all others forgotten."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Stamp
from fedvisage.federation import StateStore

Open = Callable[[], StateStore]


def stamp(round: int, attempt: int = 1, repeat: int = 0) -> Stamp:
    return Stamp(round, "train", attempt, repeat)


@pytest.fixture(params=["small states in one database", "large states as files"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    if request.param.startswith("large"):
        monkeypatch.setattr("fedvisage.federation.store.LARGE", 0)
    stores: list[StateStore] = []

    def make() -> StateStore:
        stores.append(StateStore(tmp_path))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_a_state_comes_back_by_its_generation(open_store: Open) -> None:
    generation = open_store().save("ann", stamp(1), {"visits": 1, "w": torch.ones(3)}, "")
    state = open_store().load("ann", generation)
    assert state["visits"] == 1
    assert state["w"].tolist() == [1, 1, 1]


def test_before_the_first_generation_the_state_is_empty(open_store: Open) -> None:
    assert open_store().load("ann", "") == {}


def test_the_base_is_kept_and_anything_older_forgotten(open_store: Open) -> None:
    store = open_store()
    first = store.save("ann", stamp(1), {"n": 1}, "")
    second = store.save("ann", stamp(2), {"n": 2}, first)
    assert store.generations("ann") == [first, second]
    third = store.save("ann", stamp(3), {"n": 3}, second)
    assert store.generations("ann") == [second, third]


def test_a_refused_generation_is_forgotten_and_the_accepted_one_goes_on(open_store: Open) -> None:
    store = open_store()
    first = store.save("ann", stamp(1), {"n": 1}, "")
    store.save("ann", stamp(2), {"n": 2}, first)
    third = store.save("ann", stamp(3), {"n": 3}, first)
    assert store.generations("ann") == [first, third]
    assert store.load("ann", first)["n"] == 1


def test_workers_that_take_turns_at_a_party_do_not_trip_over_each_other(open_store: Open) -> None:
    one, other = open_store(), open_store()
    base = ""
    for round, store in enumerate([one, other, other, one, one, other, one, other], 1):
        before = base
        base = store.save("ann", stamp(round), {"n": round}, before)
        assert store.generations("ann") == sorted({before, base} - {""})
        assert store.load("ann", base)["n"] == round


def test_parties_do_not_touch_each_others_states(open_store: Open) -> None:
    store = open_store()
    kept = store.save("ben", stamp(1), {"n": "ben"}, "")
    for round in (1, 2, 3):
        store.save("ann", stamp(round), {"n": "ann"}, "")
    assert store.generations("ben") == [kept]
    assert store.load("ben", kept)["n"] == "ben"


def test_after_a_restart_leftovers_are_removed(open_store: Open) -> None:
    store = open_store()
    first = store.save("ann", stamp(1), {"n": 1}, "")
    store.save("ann", stamp(2), {"n": 2}, first)
    again = open_store().save("ann", stamp(2, attempt=2), {"n": 2}, first)
    assert store.generations("ann") == [first, again]


def test_no_file_stays_of_a_forgotten_large_state_and_none_of_ours_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvisage.federation.store.LARGE", 100)
    store = StateStore(tmp_path)
    generation = ""
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "model.safetensors").write_bytes(b"mine")
    for round in range(1, 6):
        generation = store.save("ann", stamp(round), {"w": torch.zeros(100)}, generation)
    store.close()
    expected = [f"{stamp(4)}.safetensors", f"{stamp(5)}.safetensors", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "ann").iterdir()) == expected


@pytest.mark.parametrize("party", ["../eve", "", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(party: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="cannot name a party"):
        StateStore(tmp_path / "store").save(party, stamp(1), {"n": 1}, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("generation", ["../../etc/passwd", "000001", str(stamp(9)), "x"])
def test_a_generation_that_is_not_there_is_an_error_of_ours(generation: str, open_store: Open) -> None:
    open_store().save("ann", stamp(1), {"n": 1}, "")
    with pytest.raises(FedVisageError, match=re.escape(generation)):
        open_store().load("ann", generation)


def test_a_damaged_database_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "states.sqlite").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(FedVisageError, match="cannot use the party states"):
        StateStore(tmp_path).load("ann", str(stamp(1)))


def test_round_numbers_beyond_six_digits_are_names_too(open_store: Open) -> None:
    store = open_store()
    assert store.load("ann", store.save("ann", stamp(1_234_567), {"n": 1}, ""))["n"] == 1


def test_opening_waits_for_another_worker_that_holds_the_file(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "states.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, other.close)
    release.start()
    store = StateStore(tmp_path)
    generation = store.save("ann", stamp(1), {"n": 1}, "")
    assert store.load("ann", generation)["n"] == 1
    release.join()
