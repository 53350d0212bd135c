"""Parties inline or over worker processes: the same bits, and a dead worker costs one answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import PARTIES, ByNumber, MakeToyHost, Toy

from fedvisage.config import Federation as Settings
from fedvisage.core.errors import Diverged, FedVisageError, Kind
from fedvisage.core.method import Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel, Stamp
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer
from fedvisage.federation import Failure, Federation, Host, InProcess, Workers
from fedvisage.methods.rules import NormClipping

MANY = {f"p{number:02d}": "trainer" for number in range(12)}


class Moody(Toy):
    """Does what its party's name says."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        match party.name:
            case "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exits":
                os._exit(3)
            case "sleeps":
                time.sleep(60)
            case "raises":
                raise RuntimeError("two lines\nof trouble")
            case "errs":
                raise FedVisageError("the disk of this party is full")
            case "diverges":
                raise Diverged("the loss is nan")
        return super().train(party, parcel)


@dataclass(frozen=True)
class CannotStart:
    def __call__(self, worker: int) -> Host:
        raise FedVisageError("no such data folder")


def run(folder: Path, transport: Any, parties: dict[str, str], **settings: Any) -> Any:
    federation = Federation(
        Toy(), ByNumber(), [NormClipping(clip=1.0)], parties, transport, Settings(**settings), folder, Streams(1), {}, 4
    )
    try:
        return federation.run()[0]
    finally:
        transport.close()


def maker(folder: Path, parties: dict[str, str], method: Toy | None = None) -> MakeToyHost:
    return MakeToyHost(folder, (method or Toy(), ByNumber()), tuple(parties.items()))


def joined(transport: Any, parties: list[str]) -> dict[str, str]:
    """Let parties join; their generations."""
    stamp = Stamp(0, "join", 1)
    answers = dict(transport.exchange({party: Parcel(stamp=stamp) for party in parties}))
    return {party: answer.generation for party, answer in answers.items()}


def trained(transport: Any, generations: dict[str, str], round: int = 1) -> dict[str, Parcel | Failure]:
    shared = {BACKBONE: {"w": torch.zeros(4), "v": torch.zeros(2, 2)}, BUFFERS: {"m": torch.zeros(3)}}
    parcels = {
        party: Parcel(dict(shared), stamp=Stamp(round, "train", 1), generation=generation)
        for party, generation in generations.items()
    }
    return dict(transport.exchange(parcels))


def test_two_workers_give_the_bits_of_none(tmp_path: Path) -> None:
    for name in ("inline", "workers"):
        (tmp_path / name).mkdir()
    settings = {"rounds": 3, "participation": 0.6}
    inline = run(tmp_path / "inline", InProcess(maker(tmp_path / "inline", MANY)), MANY, **settings)
    workers = run(tmp_path / "workers", Workers(maker(tmp_path / "workers", MANY), 2), MANY, **settings)
    for group in (BACKBONE, BUFFERS):
        assert all(torch.equal(workers[group][name], tensor) for name, tensor in inline[group].items())
    assert (tmp_path / "inline" / "metrics.jsonl").read_bytes() == (tmp_path / "workers" / "metrics.jsonl").read_bytes()
    states = {
        name: sorted(
            str(path.relative_to(tmp_path / name)) for path in (tmp_path / name / "parties").rglob("*.safetensors")
        )
        for name in ("inline", "workers")
    }
    assert states["inline"] == states["workers"]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers for all tests below: starting one takes seconds."""
    names = ("a", "b", "c", "d", "kills", "exits", "sleeps", "raises", "errs", "diverges")
    parties = dict.fromkeys(names, "trainer")
    transport = Workers(maker(tmp_path_factory.mktemp("pool"), parties, Moody()), 2, timeout=3)
    yield transport
    transport.close()


@pytest.mark.parametrize(
    ("party", "reason", "kind"),
    [
        ("kills", "its worker process was killed by signal 9", Kind.FAILED),
        ("exits", "its worker process ended with code 3", Kind.FAILED),
        ("sleeps", "no answer within 3 s", Kind.FAILED),
        ("raises", "RuntimeError: two lines", Kind.FAILED),
        ("errs", "the disk of this party is full", Kind.FAILED),
        ("diverges", "the loss is nan", Kind.DIVERGED),
    ],
)
def test_one_party_fails_by_name_and_the_others_count(pool: Workers, party: str, reason: str, kind: Kind) -> None:
    generations = joined(pool, ["a", "b", party, "c", "d"])
    answers = trained(pool, generations)
    failure = answers[party]
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.kind) == (reason, kind)
    assert {name for name, answer in answers.items() if isinstance(answer, Parcel)} == {"a", "b", "c", "d"}
    again = trained(pool, {name: answers[name].generation for name in "abcd"}, round=2)  # type: ignore[union-attr]
    assert all(isinstance(answer, Parcel) for answer in again.values())


def test_the_parties_after_a_killed_worker_are_served_by_its_successor(tmp_path: Path) -> None:
    parties = dict.fromkeys(["a", "kills", "z"], "trainer")
    transport = Workers(maker(tmp_path, parties, Moody()), 1)
    answers = trained(transport, joined(transport, list(parties)))
    transport.close()
    assert {name: isinstance(answer, Parcel) for name, answer in answers.items()} == {
        "a": True,
        "kills": False,
        "z": True,
    }


def test_the_story_of_an_exception_comes_along(pool: Workers) -> None:
    failure = trained(pool, joined(pool, ["raises"]))["raises"]
    assert isinstance(failure, Failure)
    assert "Traceback" in failure.detail
    assert "two lines\nof trouble" in failure.detail


def test_a_worker_that_died_between_two_exchanges_is_replaced(pool: Workers) -> None:
    generations = joined(pool, ["a", "b", "c", "d"])
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join(10)
    answers = trained(pool, generations)
    assert all(isinstance(answer, Parcel) for answer in answers.values()), answers


def test_an_exchange_with_nobody_is_over_at_once(pool: Workers) -> None:
    assert list(pool.exchange({})) == []


def test_a_worker_that_cannot_start_says_why() -> None:
    with pytest.raises(FedVisageError, match="worker 0 could not start: no such data folder"):
        Workers(CannotStart(), 1)


def test_inline_an_exception_is_a_failure_of_its_party_only(tmp_path: Path) -> None:
    transport = InProcess(maker(tmp_path, {"a": "trainer", "raises": "trainer"}, Moody()))
    answers = trained(transport, joined(transport, ["raises", "a"]))
    transport.close()
    assert answers["raises"].reason == "RuntimeError: two lines"  # type: ignore[union-attr]
    assert isinstance(answers["a"], Parcel)


def test_inline_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    transport = InProcess(maker(tmp_path, PARTIES), threads=before + 1)
    assert torch.get_num_threads() == before + 1
    transport.close()
    assert torch.get_num_threads() == before


def test_after_closing_no_worker_is_left(tmp_path: Path) -> None:
    transport = Workers(maker(tmp_path, PARTIES), 1)
    process = transport._workers[0].process
    assert process.is_alive()
    transport.close()
    assert not process.is_alive()
