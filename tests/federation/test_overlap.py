"""Exchanges beside others: while trainers train, other parties answer something else, and the bits do not tell."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import PARTIES, MakeToyHost, Outcome, Toy, at, run_toy

from fedvisage.core.assembly import Assembly
from fedvisage.core.codec import State, flatten
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Component, Context, Joined, Party, Result, Weighting
from fedvisage.core.parcel import BACKBONE, Parcel, Stamp
from fedvisage.core.phase import VALIDATOR, Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer
from fedvisage.federation import Event, Failure, InProcess, Workers
from fedvisage.federation.schedule import schedule
from fedvisage.privacy import read_ledger

EVERYBODY = PARTIES | {"vera": "validator", "vic": "validator"}
JUDGES = ("vera", "vic")


class Judging(Weighting):
    """Judges see the global model of a round twice, and their scores make ann count more."""

    every: int = 1
    overlap: bool = True
    meeting: str = ""
    """A folder in which judges wait for a trainer that is at work."""

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(
                "judge",
                every=self.every,
                repeats=2,
                beside="train" if self.overlap else "",
                roles=frozenset({VALIDATOR}),
                sampled=False,
                down={BACKBONE: "all"},
                reports=("score",),
                keeps_state=False,
            ),
        )

    def start(self, context: Context) -> State:
        return {"ann": 1.0, "scores": []}

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        return float(server["ann"]) if party == "ann" else 1.0

    def plan_judge(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        model = {name: tensor * (1 + context.repeat) for name, tensor in server[BACKBONE].items()}
        return {party: Parcel({BACKBONE: model}) for party in cohort}

    def judge(self, party: Party, parcel: Parcel) -> Answer:
        if self.meeting:
            meet(Path(self.meeting), f"judging.{party.round}", f"training.{party.round + 1}")
        return party.answer(score=float(parcel[BACKBONE]["w"].square().sum()) + len(party.name))

    def absorb_judge(self, server: State, result: Result, context: Context) -> State:
        scores = [numbers["score"] for numbers in result.statistics.values()]
        seen = [context.round, context.repeat, *scores]
        return server | {"ann": server["ann"] + sum(scores), "scores": [*server["scores"], seen]}


def meet(folder: Path, mine: str, theirs: str, patience: float = 60) -> None:
    """Say that one is at work and go on when the other is, too: neither ends where they do not work at once."""
    (folder / mine).touch()
    give_up = time.monotonic() + patience
    while not (folder / theirs).exists():
        if time.monotonic() > give_up:
            raise FedVisageError(f"{mine} never met {theirs}")
        time.sleep(0.01)


class Meeting(Toy):
    """From round 2 on a trainer works until a judge does."""

    folder: str

    def train(self, party: Party, parcel: Parcel) -> Answer:
        if party.round > 1:
            meet(Path(self.folder), f"training.{party.round}", f"judging.{party.round - 1}")
        return super().train(party, parcel)


def run(folder: Path, spoil: Any = None, **options: Any) -> Outcome:
    given: dict[str, Any] = {"weighting": Judging(), "parties": EVERYBODY} | options
    return run_toy(folder, spoil, **given)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_state(one: State, other: State) -> bool:
    (ours, our_rest), (theirs, their_rest) = flatten(one), flatten(other)
    return our_rest == their_rest and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_due_in_a_round_runs_beside_the_next_and_after_the_last_by_itself() -> None:
    steps = [
        (step.round, step.phase.name, [(small.round, small.repeat) for small in step.beside], step.last_of_round)
        for step in schedule([Toy(), Judging(every=2)], 5)
    ]
    assert steps == [
        (0, "join", [], False),
        (1, "train", [], True),
        (2, "train", [], True),
        (3, "train", [(2, 0), (2, 1)], True),
        (4, "train", [], True),
        (5, "train", [(4, 0), (4, 1)], False),
        (5, "judge", [], False),
        (5, "judge", [], True),
    ]


def test_where_the_phase_beside_is_not_due_nothing_waits_for_it() -> None:
    class Seldom(Toy):
        def phases(self) -> tuple[Phase, ...]:
            return (Phase("train", every=3), Phase("rest"))

    steps = [(s.round, s.phase.name, len(s.beside)) for s in schedule([Seldom(), Judging(every=2)], 3)]
    assert steps == [(1, "rest", 0), (2, "rest", 0), (3, "train", 2), (3, "rest", 0), (3, "judge", 0), (3, "judge", 0)]
    steps = [(s.round, s.phase.name, len(s.beside)) for s in schedule([Seldom(), Judging()], 3)]
    assert steps[:4] == [(1, "rest", 0), (1, "judge", 0), (1, "judge", 0), (2, "rest", 0)]


def test_a_round_is_weighed_by_what_was_known_when_it_began(tmp_path: Path) -> None:
    """By hand: the toy's noise of each party and 0.1 per visit; judges of round r are heard from round r + 2 on."""
    outcome = run(tmp_path, rounds=4)
    model, known, coming = torch.zeros(4, dtype=torch.float64), 1.0, 1.0
    heard: list[float] = []
    for round in range(1, 5):
        answers = {}
        for party in PARTIES:
            noise = Streams(1, "parties", round, party).torch("noise")
            answers[party] = model + (torch.randn(4, generator=noise) + 0.1 * round).double()
        weights = {party: known if party == "ann" else 1.0 for party in PARTIES}
        model = sum(w * answers[party] for party, w in weights.items()) / sum(weights.values())  # type: ignore[assignment]
        known = coming
        for factor in (1, 2):
            scores = [float((factor * model).square().sum()) + len(judge) for judge in JUDGES]
            heard += scores
            coming += sum(scores)
    assert torch.allclose(outcome.server[BACKBONE]["w"].double(), model, atol=1e-5)
    assert outcome.server["ann"] == pytest.approx(coming)
    assert [score for row in outcome.server["scores"] for score in row[2:]] == pytest.approx(heard)
    assert [row[:2] for row in outcome.server["scores"]] == [[r, repeat] for r in (1, 2, 3, 4) for repeat in (0, 1)]


def test_metrics_stand_in_the_order_of_a_run_without_overlap(tmp_path: Path) -> None:
    run(tmp_path / "beside")
    run(tmp_path / "after", weighting=Judging(overlap=False))
    keys = [
        [(row["round"], row["phase"], row["repeat"]) for row in rows(tmp_path / name)] for name in ("beside", "after")
    ]
    assert keys[0] == keys[1]
    first, second = ([r for r in rows(tmp_path / n) if r["round"] == 1] for n in ("beside", "after"))
    assert first == second, "the first round and its judges know of nothing else"
    assert rows(tmp_path / "beside") != rows(tmp_path / "after")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, bytes]:
    folder = tmp_path_factory.mktemp("clean")
    outcome = run(folder)
    return outcome, (folder / "metrics.jsonl").read_bytes()


class Stop(Exception):
    """The process dies."""


def stop_at(count: int) -> Callable[[Event], None]:
    seen = iter(range(1, 10_000))

    def watch(event: Event) -> None:
        if next(seen) == count:
            raise Stop

    return watch


def test_after_a_stop_at_any_event_the_resumed_run_ends_with_the_same_bits(
    clean: tuple[Outcome, bytes], tmp_path: Path
) -> None:
    outcome, metrics = clean
    stopped = {(event.kind, event.phase) for event in outcome.events}
    assert stopped >= {(kind, phase) for kind in ("planned", "answer", "absorbed") for phase in ("train", "judge")}
    for count in range(1, len(outcome.events) + 1):
        with pytest.raises(Stop):
            run(tmp_path / "broken", watch=stop_at(count))
        resumed = run(tmp_path / "broken")
        assert same_state(resumed.server, outcome.server), count
        assert (tmp_path / "broken" / "metrics.jsonl").read_bytes() == metrics, count
        assert resumed.book.norms == outcome.book.norms
        shutil.rmtree(tmp_path / "broken")


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_bits(clean: tuple[Outcome, bytes], workers: int, tmp_path: Path) -> None:
    outcome = run(tmp_path, workers=workers)
    assert same_state(outcome.server, clean[0].server)
    assert (tmp_path / "metrics.jsonl").read_bytes() == clean[1]


def test_the_order_of_arrival_changes_nothing(clean: tuple[Outcome, bytes], tmp_path: Path) -> None:
    assert same_state(run(tmp_path, reverse=True).server, clean[0].server)
    assert (tmp_path / "metrics.jsonl").read_bytes() == clean[1]


def test_trainers_and_judges_are_busy_at_the_same_time(tmp_path: Path) -> None:
    """Every trainer of rounds 2 and 3 waits, at work, for a judge at work, and the other way round."""
    meeting = str(tmp_path)
    judging = Judging(meeting=meeting)
    (tmp_path / "training.4").touch()  # nobody trains beside the last round's judges
    outcome = run(tmp_path / "run", method=Meeting(folder=meeting), weighting=judging, workers=2)
    assert not (tmp_path / "run" / "failures.log").exists()
    assert {(row["round"], row["phase"]) for row in rows(tmp_path / "run") if row["absent"]} == set()
    kinds = [(event.kind, event.phase) for event in outcome.events if event.round in (1, 2)]
    assert ("planned", "judge") in kinds


NAN = float("nan")


def score(value: float) -> Callable[[Parcel, Any], None]:
    return lambda sent, answer: answer.statistics.update(score=value)


def test_a_faulty_answer_on_either_side_is_named_and_the_rest_counts(tmp_path: Path) -> None:
    def both(party: str, sent: Parcel, answer: Any) -> list[Any]:
        for spoil in (at(1, "vic", score(NAN), "judge"), at(2, "bob", lambda sent, a: [("bob", Failure("lost"))])):
            answers = spoil(party, sent, answer)
            if answers != [(party, answer)]:
                return answers
        return [(party, answer)]

    run(tmp_path, both)
    absent = [(row["round"], row["phase"], row["repeat"], row["absent"]) for row in rows(tmp_path) if row["absent"]]
    wrong = {"vic": "number 'score' is nan"}
    assert absent == [(1, "judge", 0, wrong), (1, "judge", 1, wrong), (2, "train", 0, {"bob": "lost"})]
    log = (tmp_path / "failures.log").read_text()
    assert "round 1, judge, vic: number 'score' is nan" in log
    assert "round 2, train, bob: lost" in log


def test_an_answer_to_the_exchange_before_is_stale_and_the_right_one_counts(
    clean: tuple[Outcome, bytes], tmp_path: Path
) -> None:
    def late(party: str, sent: Parcel, answer: Any) -> list[Any]:
        old = Parcel({}, {"score": 7.0}, Stamp(1, "judge", 1, 0))
        again = (party, sent.stamp.round, sent.stamp.repeat) == ("vic", 1, 1) and sent.stamp.phase == "judge"
        return [*([("vic", old)] if again else []), (party, answer), *([("vic", old)] if again else [])]

    assert same_state(run(tmp_path, late).server, clean[0].server)
    assert (tmp_path / "metrics.jsonl").read_bytes() == clean[1]
    assert "stale: answers 000001.judge.0.1, asked was 000001.judge.1.1" in (tmp_path / "failures.log").read_text()


def test_an_answer_that_never_comes_holds_up_nothing(tmp_path: Path) -> None:
    run(tmp_path, at(1, "vic", lambda sent, answer: [], "judge"))
    absent = [(row["round"], row["phase"], row["absent"]) for row in rows(tmp_path) if row["absent"]]
    assert absent == [(1, "judge", {"vic": "no answer"})] * 2


@pytest.mark.parametrize("side", ["judge", "train"])
def test_below_the_quorum_of_either_side_the_run_ends_and_can_go_on(
    side: str, clean: tuple[Outcome, bytes], tmp_path: Path
) -> None:
    def lose(party: str, sent: Parcel, answer: Any) -> list[Any]:
        round = 1 if side == "judge" else 2
        return [(party, Failure("gone") if (sent.stamp.phase, sent.stamp.round) == (side, round) else answer)]

    with pytest.raises(FedVisageError, match=rf"round \d, {side}: 0 of \d parties counted"):
        run(tmp_path, lose)
    assert same_state(run(tmp_path).server, clean[0].server)
    assert (tmp_path / "metrics.jsonl").read_bytes() == clean[1]


def test_the_ledger_has_both_sides_under_their_own_rounds(tmp_path: Path) -> None:
    run(tmp_path, rounds=2)
    entries = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "party" in row]
    judged = [
        (row["round"], row.get("repeat", 0), row["direction"], row["group"])
        for row in entries
        if row["party"] == "vera"
    ]
    each = [("down", BACKBONE), ("up", "statistics")]
    joined = [(0, 0, "down", "statistics"), (0, 0, "up", "statistics")]
    assert judged == joined + [(round, repeat, *way) for round in (1, 2) for repeat in (0, 1) for way in each]


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase("judge", beside="trian", roles=frozenset({VALIDATOR})), "no phase of a round is called so"),
        (Phase("judge", beside="join", roles=frozenset({VALIDATOR})), "no phase of a round is called so"),
        (Phase("judge", beside="train"), "both ask the source, target, trainer"),
    ],
)
def test_a_party_does_one_thing_at_a_time(phase: Phase, words: str) -> None:
    class Other(Component):
        def phases(self) -> tuple[Phase, ...]:
            return (phase,)

    with pytest.raises(FedVisageError, match=f"'judge' cannot run beside '{phase.beside}': {words}"):
        Assembly([Toy(), Other()])


def test_one_phase_has_one_beside_it() -> None:
    class Other(Component):
        def phases(self) -> tuple[Phase, ...]:
            return (Phase("look", beside="train", roles=frozenset({VALIDATOR})),)

    with pytest.raises(FedVisageError, match="cannot run beside 'train': another does already"):
        Assembly([Toy(), Judging(), Other()])


@pytest.mark.parametrize("wrong", [{"when": "end"}, {"counts": True}, {"trains": True}])
def test_only_a_phase_of_rounds_that_neither_trains_nor_counts_runs_beside_another(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot run beside another"):
        Phase("judge", beside="train", **wrong)


def parcels(phase: str, repeat: int, parties: Sequence[str]) -> dict[str, Parcel]:
    shared = {"w": torch.full((4,), float(repeat)), "v": torch.zeros(2, 2)}
    return {party: Parcel({BACKBONE: shared}, stamp=Stamp(1, phase, 1, repeat)) for party in parties}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_next_is_taken_when_the_one_before_is_answered(workers: int, tmp_path: Path) -> None:
    """Also where there is nothing but what is beside, and where somebody is asked for nothing in between."""
    maker = MakeToyHost(tmp_path, (Toy(), Judging()), tuple(EVERYBODY.items()))
    transport: Any = Workers(maker, workers) if workers else InProcess(maker)
    open: set[str] = set()
    taken: list[int] = []

    def others() -> Iterator[dict[str, Parcel]]:
        for repeat, asked in enumerate((JUDGES, (), JUDGES)):
            assert not open
            open.update(asked)
            taken.append(repeat)
            yield parcels("judge", repeat, asked)

    scores: list[float] = []
    for party, answer in transport.exchange({}, others()):
        assert isinstance(answer, Parcel)
        open.remove(party)
        scores.append(answer.statistics["score"] - len(party))
    transport.close()
    assert taken == [0, 1, 2]
    assert scores == [0.0, 0.0, 16.0, 16.0], "what all receive alike is the exchange's own"


class Kills(Toy):
    """Bob's process ends in round 2."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        if (party.name, party.round) == ("bob", 2):
            os._exit(3)
        return super().train(party, parcel)


def test_a_worker_that_dies_at_one_exchange_costs_the_other_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, method=Kills(), workers=2)
    absent = {(row["round"], row["phase"]): list(row["absent"]) for row in rows(tmp_path) if row["absent"]}
    assert absent == {(2, "train"): ["bob"]}
    assert len(outcome.server["scores"]) == 6
