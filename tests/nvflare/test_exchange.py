"""Exchanges beside each other over the real link, with a controller whose sites answer when a test wants them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvisage.core.parcel import BACKBONE, Parcel, Stamp, encode
from fedvisage.federation.nvflare.link import Closed, call
from fedvisage.federation.nvflare.parts import join_parts
from fedvisage.federation.nvflare.transport import NVFlare, Station
from fedvisage.federation.nvflare.wire import PREPARE
from fedvisage.federation.transport import Failure

TRAINERS, VALIDATORS = ("ann", "bob"), ("vera", "vic")
Task = tuple[int, str, str, int]
"""Number, party, phase and repeat of something a site was asked for."""


@dataclass
class Sites:
    """The console, the controller and the sites of a federation in one; `due` says which open tasks are answered."""

    folder: Path
    due: Callable[[int, list[Task]], list[Task]]
    """Given the number of the job and what its sites are at; raises `Closed` where the job goes down."""
    asked: list[tuple[int, str, str, int]] = field(default_factory=list)
    """Job, party, phase and repeat, as they came."""
    jobs: int = 0

    def connected(self) -> set[str]:
        return {*TRAINERS, *VALIDATORS}

    def abort_ours(self) -> int:
        return 0

    def submit(self, job: Path) -> str:
        self.jobs += 1
        threading.Thread(target=self._control, args=(self.jobs,), daemon=True).start()
        return str(self.jobs)

    def status(self, job: str) -> str:
        return "RUNNING"

    def culprit(self, job: str) -> str:
        return "ann"

    def close(self) -> None:
        pass

    def _control(self, job: int) -> None:
        link = call(self.folder)
        shared: Any = b""
        answers: dict[int, bytes] = {}
        open: list[Task] = []
        try:
            link.send({"kind": "hello", "job": str(job), "sites": sorted(self.connected())})
            while True:
                header, payload = link.receive()
                if header["kind"] == "shared":
                    shared = payload
                if header["kind"] == "end":
                    break
                if header["kind"] == "task":
                    open.append(self._note(job, header, shared, payload, answers))
                told = [task for task in open if task[2] == PREPARE]
                for task in told or self.due(job, open):
                    open.remove(task)
                    link.send({"kind": "answer", "task": task[0]}, [answers.pop(task[0])])
        except Closed:
            pass
        finally:
            link.close()

    def _note(self, job: int, header: Any, shared: Any, own: Any, answers: dict[int, bytes]) -> Task:
        """What a site is asked for, and its answer: what the model it got is filled with."""
        number, party, phase = int(header["task"]), str(header["party"]), str(header["phase"])
        answer, repeat = Parcel(), 0
        if phase != PREPARE:
            parcel = join_parts(shared, own)
            repeat = parcel.stamp.repeat
            answer = Parcel(statistics={"seen": float(parcel[BACKBONE]["w"][0])}, stamp=parcel.stamp)
        answers[number] = encode(answer)
        self.asked.append((job, party, phase, repeat))
        return number, party, phase, repeat


def parcels(phase: str, repeat: int, parties: tuple[str, ...], fill: float) -> dict[str, Parcel]:
    model = {"w": torch.full((3,), fill)}
    return {party: Parcel({BACKBONE: model}, stamp=Stamp(1, phase, 1, repeat)) for party in parties}


def exchange(
    folder: Path, due: Callable[[int, list[Task]], list[Task]], timeout: float | None = None
) -> tuple[list[tuple[str, Any]], Sites, list[str]]:
    """Training beside three candidates: answers as they came, what the sites saw, and notes."""
    sites, notes = Sites(folder, due), list[str]()
    line = NVFlare(Station(folder, sites, (*TRAINERS, *VALIDATORS)))  # type: ignore[arg-type]
    line.begin(lambda party: b"", timeout, lambda stamp, text: notes.append(text))

    def candidates() -> Iterator[dict[str, Parcel]]:
        for repeat in range(3):
            yield parcels("validate", repeat, VALIDATORS, 10.0 + repeat)

    answers = []
    try:
        for party, answer in line.exchange(parcels("train", 0, TRAINERS, 1.0), candidates()):
            answers.append((party, answer.reason if isinstance(answer, Failure) else answer.statistics["seen"]))
    finally:
        line.close()
    return answers, sites, notes


def test_candidates_go_on_while_trainers_are_busy(tmp_path: Path) -> None:
    """Trainers answer only once the last candidate has gone to the last validator."""

    def due(job: int, open: list[Task]) -> list[Task]:
        over = any(task[1:] == ("vic", "validate", 2) for task in open)
        return [task for task in open if task[2] == "validate" or over]

    answers, sites, notes = exchange(tmp_path, due, timeout=60)
    assert [answer for answer in answers if answer[0] in VALIDATORS] == [
        (party, value) for value in (10.0, 11.0, 12.0) for party in VALIDATORS
    ]
    assert sorted(answer for answer in answers if answer[0] in TRAINERS) == [("ann", 1.0), ("bob", 1.0)]
    assert sites.jobs == 1
    assert notes == []


def test_a_lost_job_costs_only_what_was_missing_on_either_side(tmp_path: Path) -> None:
    """It goes down when bob has answered, and vera the second candidate; for the third she is made ready again."""

    def due(job: int, open: list[Task]) -> list[Task]:
        if [job, *(task[1:] for task in open)] == [1, ("ann", "train", 0), ("vic", "validate", 1)]:
            raise Closed
        return [task for task in open if job == 2 or task[1] != "ann"]

    answers, sites, notes = exchange(tmp_path, due)
    assert sorted(map(str, answers)) == sorted(
        map(str, [("ann", 1.0), ("bob", 1.0), *((v, value) for v in VALIDATORS for value in (10.0, 11.0, 12.0))])
    )
    second = [asked[1:] for asked in sites.asked if asked[0] == 2]
    assert {asked[0] for asked in second if asked[1] == PREPARE} == {*TRAINERS, *VALIDATORS}
    assert [asked for asked in second if asked[1] != PREPARE] == [
        ("ann", "train", 0),
        ("vic", "validate", 1),
        ("vera", "validate", 2),
        ("vic", "validate", 2),
    ]
    assert notes == ["the job was lost (the process of ann ended); another is submitted"]


@pytest.mark.parametrize("late", [("vic",), VALIDATORS])
def test_a_late_validator_is_left_out_of_the_candidates_that_follow(tmp_path: Path, late: tuple[str, ...]) -> None:
    def due(job: int, open: list[Task]) -> list[Task]:
        return [task for task in open if task[1] not in late]

    answers, sites, _ = exchange(tmp_path, due, timeout=1)
    wanted = {party: [1.0] for party in TRAINERS} | {party: [10.0, 11.0, 12.0] for party in VALIDATORS}
    wanted |= {party: ["no answer within 1 s"] * 3 for party in late}
    assert {party: [what for who, what in answers if who == party] for party in wanted} == wanted
    assert [asked[2:] for asked in sites.asked if asked[1] == "vic" and asked[2] != PREPARE] == [("validate", 0)]


def test_a_late_trainer_does_not_make_validators_late(tmp_path: Path) -> None:
    def due(job: int, open: list[Task]) -> list[Task]:
        return [task for task in open if task[1] != "bob"]

    answers, _, _ = exchange(tmp_path, due, timeout=1)
    assert ("bob", "no answer within 1 s") in answers
    assert [what for who, what in answers if who == "vera"] == [10.0, 11.0, 12.0]
