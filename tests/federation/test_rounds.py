"""The round loop with a real method, real party state and real files; faults come in through the transport."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import PARTIES, ByNumber, MakeToyHost, Outcome, Toy, at, fails, run_toy

from fedvisage.config import Federation as Settings
from fedvisage.core.codec import State, flatten, load_state, save_state
from fedvisage.core.errors import Diverged, FedVisageError, Kind
from fedvisage.core.method import Component, Context, Party, Result
from fedvisage.core.parcel import BACKBONE, BUFFERS, OPTIMISER, Parcel, Stamp
from fedvisage.core.phase import Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer
from fedvisage.federation import Event, Failure, Federation, InProcess, StateStore
from fedvisage.federation.schedule import draw_cohort, schedule
from fedvisage.privacy import read_ledger
from fedvisage.report.absences import absences
from fedvisage.report.folder import read_metrics


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_state(one: State, other: State) -> bool:
    (ours, our_rest), (theirs, their_rest) = flatten(one), flatten(other)
    return our_rest == their_rest and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_round_is_the_weighted_mean_of_the_answers(tmp_path: Path) -> None:
    """By hand for round 1: each party adds its own noise and 0.1; samples 10, 20 and 30 are the weights."""
    outcome = run_toy(tmp_path, rounds=1)
    wanted = torch.zeros(4, dtype=torch.float64)
    for party, samples in (("ann", 10), ("bob", 20), ("cat", 30)):
        noise = Streams(1, "parties", 1, party).torch("noise")
        wanted += samples / 60 * (torch.randn(4, generator=noise) + 0.1).double()
    assert torch.allclose(outcome.server[BACKBONE]["w"].double(), wanted, atol=1e-6)


def test_a_row_tells_kinds_of_refusals_and_what_share_of_a_partys_answers_counted(tmp_path: Path) -> None:
    """Bob is refused in rounds 2 and 4 of 4, and the last of them ends the run: cat is lost as well."""

    def spoil(party: str, sent: Parcel, answer: Any) -> list[Any]:
        if (party, sent.stamp.round) == ("cat", 4):
            return [(party, Failure("lost"))]
        if (party, sent.stamp.round) in (("bob", 2), ("bob", 4)):
            FAULTS["Inf"][0](sent, answer)
        return [(party, answer)]

    with pytest.raises(FedVisageError, match="1 of 3 parties counted"):
        run_toy(tmp_path, spoil, rounds=4)
    found = rows(tmp_path)
    assert [(row.get("refused"), row.get("counted")) for row in found] == [
        (None, None),
        (None, None),
        ({"bob": "not-finite"}, {"bob": 0.5}),
        (None, None),
        ({"bob": "not-finite", "cat": "failed"}, {"bob": 0.5, "cat": 0.75}),
    ]
    assert [str(one) for one in absences(read_metrics(tmp_path / "metrics.jsonl"))] == [
        "bob, train: 2 of 4 answers counted (50%); buffers holds 1 values that are not finite in 'm' (first: inf)",
        "cat, train: 3 of 4 answers counted (75%); lost",
    ]


@pytest.fixture(scope="module")
def without_bob(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Bob is lost before he trains in round 2, so that his state cannot have moved."""
    folder = tmp_path_factory.mktemp("without")

    def lose(party: str, sent: Parcel, answer: Parcel | Failure) -> list[Any]:
        return [(party, Failure("lost") if (party, sent.stamp.round) == ("bob", 2) else answer)]

    return run_toy(folder, lose)


def tensor(group: str, name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Parcel, Any], None]:
    def spoil(sent: Parcel, answer: Parcel) -> None:
        changed = change(answer[group][name])
        if isinstance(changed, torch.Tensor):
            answer[group][name] = changed

    return spoil


def number(name: str, value: float) -> Callable[[Parcel, Any], None]:
    return lambda sent, answer: answer.statistics.update({name: value})


def instead(*answers: Any) -> Callable[[Parcel, Any], list[Any]]:
    return lambda sent, answer: [("bob", one(answer) if callable(one) else one) for one in answers]


def old(answer: Parcel) -> Parcel:
    return Parcel(answer.tensors, answer.statistics, Stamp(1, "train", 1), "000001.train.0.1")


FAULTS: dict[str, tuple[Callable[[Parcel, Any], Any], str]] = {
    "NaN": (tensor(BACKBONE, "w", lambda t: t.__setitem__(0, torch.nan)), "backbone holds 1 values"),
    "Inf": (tensor(BUFFERS, "m", lambda t: t.__setitem__(0, torch.inf)), "buffers holds 1 values"),
    "wrong shape": (tensor(BACKBONE, "w", lambda t: t[:3]), "'w' has shape (3,), expected (4,)"),
    "broadcastable shape": (tensor(BACKBONE, "v", lambda t: t[:1]), "'v' has shape (1, 2), expected (2, 2)"),
    "wrong dtype": (tensor(BACKBONE, "w", lambda t: t.double()), "has dtype torch.float64"),
    "missing key": (lambda sent, answer: answer[BACKBONE].__delitem__("v"), "missing key 'v'"),
    "extra key": (lambda sent, answer: answer[BACKBONE].update(x=torch.ones(1)), "extra key 'x'"),
    "missing group": (lambda sent, answer: answer.tensors.__delitem__(BUFFERS), "buffers: missing key 'm'"),
    "extra group": (lambda sent, answer: answer.tensors.update(optimiser={"m": torch.ones(1)}), "extra group"),
    "a group with a hostile name": (
        lambda sent, answer: answer.tensors.update({'x"}\n{"': {"\n": torch.ones(1)}}),
        "extra group",
    ),
    "negative sample count": (number("samples", -20), "samples = -20 is not a count"),
    "zero samples": (number("samples", 0), "samples = 0 is not a count"),
    "huge sample count": (number("samples", 1e15), "is not a count"),
    "NaN samples": (number("samples", float("nan")), "number 'samples' is nan"),
    "another sample count": (number("samples", 21), "samples = 21, but 20 at joining"),
    "NaN loss": (number("loss", float("nan")), "number 'loss' is nan"),
    "missing number": (lambda sent, answer: answer.statistics.__delitem__("loss"), "missing number 'loss'"),
    "extra number": (number("more", 1), "extra number 'more'"),
    "oversize": (tensor(BACKBONE, "w", lambda t: torch.ones(100_000)), "oversize"),
    "beyond the norm bound": (tensor(BACKBONE, "w", lambda t: t + 1e6), "beyond the bound"),
    "stale": (instead(old), "stale: answers 000001.train.0.1"),
    "a huge update": (tensor(BACKBONE, "w", lambda t: t + 1e15), "beyond the bound"),
    "an absurd loss": (number("loss", 1e30), "number 'loss' is 1e+30, beyond the bound 1e+06"),
    "a huge name of a number": (number("n" * 10**6, 1), "extra number 'nnn"),
    "a huge name of a tensor": (
        lambda sent, answer: answer[BACKBONE].update({"w" * 10**6: torch.ones(1)}),
        "extra key",
    ),
    "a huge name of a group": (lambda sent, answer: answer.tensors.update({"g" * 10**6: {}}), "extra group 'ggg"),
    "many tensors": (lambda s, a: a[BACKBONE].update({str(n): torch.ones(0) for n in range(10**5)}), "extra key '0'"),
    "sparse": (tensor(BACKBONE, "w", lambda t: t.to_sparse()), "backbone: 'w' is a sparse_coo tensor"),
    "meta": (tensor(BACKBONE, "w", lambda t: t.to("meta")), "backbone: 'w' is a meta tensor"),
    "overlapping": (tensor(BACKBONE, "w", lambda t: t.as_strided((4,), (0,))), "'w' has elements that overlap"),
    "no tensor": (lambda sent, answer: answer[BACKBONE].update(w=[1.0] * 4), "'w' is a list and no tensor"),
    "no answer": (lambda sent, answer: [], "no answer"),
    "failure": (fails("its process was killed"), "its process was killed"),
    "a failure, then an answer": (instead(Failure("hiccup"), lambda answer: answer), "hiccup"),
    "bad, then good": (instead(lambda a: Parcel({}, a.statistics, a.stamp), lambda a: a), "missing key"),
}


@pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_answer_is_named_and_the_rest_is_as_if_its_party_had_failed(
    fault: Callable[[Parcel, Any], Any], reason: str, without_bob: Outcome, tmp_path: Path
) -> None:
    outcome = run_toy(tmp_path, at(2, "bob", fault))
    assert same_state(outcome.server, without_bob.server)
    assert outcome.book.generations == without_bob.book.generations
    second = next(row for row in rows(tmp_path) if row["round"] == 2)
    assert list(second["absent"]) == ["bob"]
    assert reason in second["absent"]["bob"]
    assert second["accepted"] == 2
    assert reason in (tmp_path / "failures.log").read_text()
    assert "round 2, train, bob: " in (tmp_path / "failures.log").read_text()
    third = next(row for row in rows(tmp_path) if row["round"] == 3)
    assert third["absent"] == {}
    assert len(list(read_ledger(tmp_path / "ledger.jsonl"))) > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*.*")) < 1_000_000, "names of any length are cut"


HARMLESS: dict[str, tuple[Callable[[Parcel, Any], Any], str]] = {
    "twice the same": (instead(lambda a: a, lambda a: a), "bob: repeated answer: the first one counts"),
    "good, then bad": (instead(lambda a: a, lambda a: Parcel({}, {}, a.stamp)), "bob: repeated answer: the first one"),
    "good, then a failure": (
        instead(lambda a: a, Failure("late hiccup")),
        "bob: repeated answer: the first one counts",
    ),
    "stale, then good": (instead(old, lambda a: a), "bob: stale: answers"),
    "stale twice, then good": (instead(old, old, lambda a: a), "bob: stale: answers"),
    "somebody nobody asked": (lambda sent, answer: [("eve", answer), ("bob", answer)], "eve: not asked in this round"),
}


@pytest.mark.parametrize(("fault", "says"), HARMLESS.values(), ids=HARMLESS)
def test_one_good_answer_counts_once_whatever_else_arrives(
    fault: Callable[[Parcel, Any], Any], says: str, tmp_path: Path
) -> None:
    outcome = run_toy(tmp_path / "fault", at(2, "bob", fault))
    clean = run_toy(tmp_path / "clean")
    assert same_state(outcome.server, clean.server)
    assert (tmp_path / "fault" / "metrics.jsonl").read_bytes() == (tmp_path / "clean" / "metrics.jsonl").read_bytes()
    assert outcome.book.generations == clean.book.generations
    assert f"round 2, train, {says}" in (tmp_path / "fault" / "failures.log").read_text()


def test_the_order_of_arrival_changes_nothing(tmp_path: Path) -> None:
    def two_fail(party: str, sent: Parcel, answer: Parcel | Failure) -> list[Any]:
        return [(party, Failure(f"{party} is gone") if party != "cat" and sent.stamp.round == 2 else answer)]

    one = run_toy(tmp_path / "a", two_fail, quorum=0.1)
    other = run_toy(tmp_path / "b", two_fail, quorum=0.1, reverse=True)
    assert same_state(one.server, other.server)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight: float, tmp_path: Path) -> None:
    run_toy(tmp_path, weighting=ByNumber(override={"bob": weight}))
    assert rows(tmp_path)[0]["absent"] == {"bob": f"its weight would be {weight:g}"}


def test_below_the_quorum_the_run_ends_with_one_line_that_says_who_and_why(tmp_path: Path) -> None:
    def lose(party: str, sent: Parcel, answer: Parcel | Failure) -> list[Any]:
        return [(party, Failure("out of memory") if party != "ann" and sent.stamp.round == 2 else answer)]

    wanted = r"round 2, train: 1 of 3 parties counted, 2 needed; bob: out of memory \(all reasons in .*failures\.log\)"
    with pytest.raises(FedVisageError, match=wanted):
        run_toy(tmp_path, lose)
    log = (tmp_path / "failures.log").read_text()
    assert "round 2, train, bob: out of memory" in log
    assert "round 2, train, cat: out of memory" in log
    assert run_toy(tmp_path).book.step == 4
    assert same_state(run_toy(tmp_path / "clean").server, run_toy(tmp_path).server)


def test_no_words_of_a_party_end_a_run_as_diverged(tmp_path: Path) -> None:
    """What a failure says is for people to read: the kind that came with it decides."""

    def lose(party: str, sent: Parcel, answer: Any) -> list[Any]:
        words = "training diverged: a disk beyond the bound is not finite, and too large to measure"
        return [(party, Failure(words, kind=kind) if sent.stamp.round == 2 else answer)]

    kind = Kind.FAILED
    with pytest.raises(FedVisageError, match="0 of 3 parties counted") as error:
        run_toy(tmp_path / "words", lose)
    assert not isinstance(error.value, Diverged)
    kind = Kind.DIVERGED
    with pytest.raises(Diverged, match="0 of 3 parties counted"):
        run_toy(tmp_path / "kind", lose)


@pytest.mark.parametrize("fault", ["NaN", "beyond the norm bound"])
def test_a_run_whose_parties_leave_all_bounds_has_diverged(fault: str, tmp_path: Path) -> None:
    """So it would again; a party that is lost for another reason may come back."""

    def spoil(party: str, sent: Parcel, answer: Any) -> list[Any]:
        if sent.stamp.round == 2 and party in lost:
            return [(party, Failure("lost"))]
        if sent.stamp.round == 2:
            FAULTS[fault][0](sent, answer)
        return [(party, answer)]

    lost: set[str] = set()
    with pytest.raises(Diverged, match="0 of 3 parties counted"):
        run_toy(tmp_path / "all", spoil)
    lost.add("ann")
    with pytest.raises(FedVisageError, match="0 of 3 parties counted") as error:
        run_toy(tmp_path / "but one", spoil)
    assert not isinstance(error.value, Diverged)


def test_the_text_of_an_exception_at_the_party_is_in_the_log(tmp_path: Path) -> None:
    class Broken(Toy):
        def train(self, party: Party, parcel: Parcel) -> Answer:
            if party.name == "bob":
                raise RuntimeError("the camera is covered")
            return super().train(party, parcel)

    run_toy(tmp_path, method=Broken())
    assert rows(tmp_path)[1]["absent"] == {"bob": "RuntimeError: the camera is covered"}
    assert "Traceback" in (tmp_path / "failures.log").read_text()


def test_a_party_that_cannot_join_is_never_asked_again(tmp_path: Path) -> None:
    outcome = run_toy(tmp_path, at(0, "bob", number("samples", 0), phase="join"))
    assert "is not a count" in outcome.book.refused["bob"]
    assert {party for party, stamp, _ in outcome.transport.sent if stamp.phase == "train"} == {"ann", "cat"}


@pytest.mark.parametrize("by", [100, 1e15])
def test_a_jump_in_size_is_refused_by_what_was_there_before(by: float, tmp_path: Path) -> None:
    """In the first round that is the model, eight zeros whose place ones take; later, bob's own updates."""
    grow = tensor(BACKBONE, "w", lambda t: t + by)
    run_toy(tmp_path / "first", at(1, "bob", grow))
    first = rows(tmp_path / "first")[1]["absent"]["bob"]
    assert first.endswith("beyond the bound 28.28, which is 10 times the model that went down")
    run_toy(tmp_path / "second", at(2, "bob", grow))
    assert "beyond the bound" in rows(tmp_path / "second")[2]["absent"]["bob"]
    run_toy(tmp_path / "off", at(2, "bob", grow), guard={"norm_multiple": None, "model_multiple": None})
    assert rows(tmp_path / "off")[2]["absent"] == {}


def test_a_run_begun_when_roles_were_not_told_apart_goes_on(tmp_path: Path) -> None:
    """Its checkpoint keeps no norms by role: the first bound is the model's."""
    with pytest.raises(Stop):
        run_toy(tmp_path, watch=stop_at(12))
    path = tmp_path / "checkpoints" / "last.safetensors"
    state = load_state(path)
    assert state["book"]["step"] == 2
    save_state(path, state | {"book": {name: value for name, value in state["book"].items() if name != "history"}})
    clean = run_toy(tmp_path / "clean")
    assert same_state(run_toy(tmp_path).server, clean.server)


class Rest(Component):
    """Phases at the start, every second round, thrice in a row and at the end."""

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("greet", "start", keeps_state=False),
            Phase("second", every=2, keeps_state=False),
            Phase("thrice", every=3, repeats=3, keeps_state=False),
            Phase("bye", "end", keeps_state=False),
        )

    def plan(self, phase: Phase, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        return {party: Parcel() for party in cohort}

    def local(self, phase: Phase, party: Party, parcel: Parcel) -> Answer:
        return party.answer()

    def absorb(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        seen = server.get("seen", [])
        return server | {"seen": [*seen, [context.round, phase.name, context.repeat]]}


def test_phases_run_at_their_time_and_in_their_order(tmp_path: Path) -> None:
    steps = [(step.round, step.phase.name, step.repeat, step.last_of_round) for step in schedule([Toy(), Rest()], 5)]
    assert steps == [
        (0, "join", 0, False),
        (0, "greet", 0, False),
        (1, "train", 0, True),
        (2, "train", 0, False),
        (2, "second", 0, True),
        (3, "train", 0, False),
        (3, "thrice", 0, False),
        (3, "thrice", 1, False),
        (3, "thrice", 2, True),
        (4, "train", 0, False),
        (4, "second", 0, True),
        (5, "train", 0, False),
        (5, "second", 0, False),
        (5, "thrice", 0, False),
        (5, "thrice", 1, False),
        (5, "thrice", 2, True),
        (5, "bye", 0, False),
    ]
    outcome = run_toy(tmp_path, others=[Rest()], rounds=5)
    logged = [(row["round"], row["phase"], row["repeat"]) for row in rows(tmp_path)]
    assert logged == [step[:3] for step in steps]
    assert [tuple(entry) for entry in outcome.server["seen"]] == [s[:3] for s in steps if s[1] not in ("join", "train")]


def test_repeats_have_their_own_stamps_states_and_streams(tmp_path: Path) -> None:
    outcome = run_toy(tmp_path, method=Toy(repeats=3), rounds=1)
    stamps = [str(stamp) for party, stamp, _ in outcome.transport.sent if party == "ann"]
    assert stamps == ["000000.join.0.1", "000001.train.0.1", "000001.train.1.1", "000001.train.2.1"]
    generations = [generation for party, _, generation in outcome.transport.sent if party == "ann"]
    assert generations == ["", *stamps[:3]]
    losses = [row["parties"]["ann"]["loss"] for row in rows(tmp_path) if row["phase"] == "train"]
    assert losses == pytest.approx([0.1, 0.2, 0.3])
    kept = StateStore(tmp_path / "parties").generations("ann")
    assert kept == ["000001.train.1.1", "000001.train.2.1"]


def test_every_repeat_draws_numbers_of_its_own(tmp_path: Path) -> None:
    drawn: list[torch.Tensor] = []

    def keep(party: str, sent: Parcel, answer: Any) -> list[Any]:
        if party == "ann" and sent.stamp.phase == "train":
            moved = answer[BACKBONE]["w"] - sent[BACKBONE]["w"]
            drawn.append(moved - answer.statistics["loss"])
        return [(party, answer)]

    run_toy(tmp_path, keep, method=Toy(repeats=2), rounds=2)
    assert len(drawn) == 4
    for one in range(4):
        for other in range(one):
            assert (drawn[one] - drawn[other]).abs().max() > 0.01


def test_what_parties_compute_once_is_computed_anew_in_each_exchange(tmp_path: Path) -> None:
    computed: list[Stamp] = []

    class Sharing(Toy):
        def train(self, party: Party, parcel: Parcel) -> Answer:
            def expensive() -> Stamp:
                computed.append(parcel.stamp)
                return parcel.stamp

            assert party.once("features", expensive) == parcel.stamp
            return super().train(party, parcel)

    run_toy(tmp_path, method=Sharing(repeats=2), rounds=2)
    assert computed == [
        Stamp(1, "train", 1, 0),
        Stamp(1, "train", 1, 1),
        Stamp(2, "train", 1, 0),
        Stamp(2, "train", 1, 1),
    ]


def test_the_order_in_which_a_method_plans_changes_nothing(tmp_path: Path) -> None:
    class Backwards(Toy):
        def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
            return super().plan_train(server, list(reversed(cohort)), context)

    parties = {f"p{n}": "trainer" for n in range(7)}
    one = run_toy(tmp_path / "a", parties=parties, rounds=4)
    other = run_toy(tmp_path / "b", parties=parties, rounds=4, method=Backwards())
    assert same_state(one.server, other.server)


def test_a_refused_answer_is_rolled_back_at_the_party(tmp_path: Path) -> None:
    spoil = at(2, "bob", tensor(BACKBONE, "w", lambda t: t * torch.nan))
    outcome = run_toy(tmp_path, spoil, rounds=4)
    named = [(stamp.round, generation) for party, stamp, generation in outcome.transport.sent if party == "bob"]
    assert named == [
        (0, ""),
        (1, "000000.join.0.1"),
        (2, "000001.train.0.1"),
        (3, "000001.train.0.1"),
        (4, "000003.train.0.1"),
    ]
    losses = [row["parties"].get("bob", {}).get("loss") for row in rows(tmp_path) if row["phase"] == "train"]
    assert losses == [pytest.approx(0.1), None, pytest.approx(0.2), pytest.approx(0.3)]


def test_every_parcel_is_in_the_ledger_with_its_bytes(tmp_path: Path) -> None:
    """Eight floats of backbone and three of buffers: 32 and 12 bytes; each number is 8."""
    run_toy(tmp_path, at(2, "bob", number("samples", 0)), rounds=2)
    entries = [row for row in read_ledger(tmp_path / "ledger.jsonl") if "layout" not in row]
    found = {
        (e["round"], e["phase"], e["party"], e["direction"], e["group"], e["bytes"], e.get("refused", "")[:11])
        for e in entries
    }
    wanted = set()
    for party in PARTIES:
        wanted |= {(0, "join", party, "down", "statistics", 0, ""), (0, "join", party, "up", "statistics", 8, "")}
        for round in (1, 2):
            verdict = "samples = 0" if (party, round) == ("bob", 2) else ""
            for direction, reason in (("down", ""), ("up", verdict)):
                wanted.add((round, "train", party, direction, BACKBONE, 32, reason))
                wanted.add((round, "train", party, direction, BUFFERS, 12, reason))
            wanted.add((round, "train", party, "up", "statistics", 16, verdict))
    assert found == wanted
    assert len(entries) == len(found)


class Stop(Exception):
    pass


def stop_at(count: int) -> Callable[[Event], None]:
    seen = iter(range(1, 10_000))

    def watch(event: Event) -> None:
        if next(seen) == count:
            raise Stop

    return watch


def test_after_a_stop_at_any_event_the_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    spoil = at(2, "bob", tensor(BACKBONE, "w", lambda t: t * torch.nan))
    clean = run_toy(tmp_path / "clean", spoil, others=[Rest()])
    assert len(clean.events) > 40
    metrics = (tmp_path / "clean" / "metrics.jsonl").read_bytes()
    for count in range(1, len(clean.events) + 1):
        folder = tmp_path / "broken"
        with pytest.raises(Stop):
            run_toy(folder, spoil, others=[Rest()], watch=stop_at(count))
        resumed = run_toy(folder, spoil, others=[Rest()])
        assert same_state(resumed.server, clean.server), count
        assert (folder / "metrics.jsonl").read_bytes() == metrics, count
        assert resumed.book.history == clean.book.history
        shutil.rmtree(folder)


def test_a_run_stopped_again_and_again_still_ends_with_the_same_bits(tmp_path: Path) -> None:
    clean = run_toy(tmp_path / "clean")
    for count in (3, 4, 5, 6, 7, 8):
        with pytest.raises(Stop):
            run_toy(tmp_path / "broken", watch=stop_at(count))
    resumed = run_toy(tmp_path / "broken")
    assert same_state(resumed.server, clean.server)
    assert {row["attempt"] for row in read_ledger(tmp_path / "broken" / "ledger.jsonl") if "attempt" in row} > {1, 2}


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run_toy(tmp_path)
    again = run_toy(tmp_path)
    assert again.transport.sent == []
    assert same_state(first.server, again.server)


def test_what_a_method_has_not_declared_is_not_sent_down(tmp_path: Path) -> None:
    class Leaky(Toy):
        def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
            parcels = super().plan_train(server, cohort, context)
            parcels["cat"].tensors[OPTIMISER] = {"m": torch.ones(1)}
            return parcels

    with pytest.raises(FedVisageError, match="'train' would send undeclared 'optimiser' to cat; nothing was sent"):
        run_toy(tmp_path, method=Leaky())
    assert {row["phase"] for row in read_ledger(tmp_path / "ledger.jsonl") if "phase" in row} == {"join"}


def test_numbers_nobody_declared_are_not_sent_down(tmp_path: Path) -> None:
    class Leaky(Toy):
        def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
            parcels = super().plan_train(server, cohort, context)
            parcels["ann"].statistics["seed"] = 1.0
            return parcels

    with pytest.raises(FedVisageError, match="undeclared 'seed' to ann"):
        run_toy(tmp_path, method=Leaky())


def test_what_is_declared_for_all_is_the_same_for_all(tmp_path: Path) -> None:
    class Partial(Toy):
        def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
            parcels = super().plan_train(server, cohort, context)
            parcels["cat"].tensors[BACKBONE] = {"w": torch.ones(4), "v": torch.ones(2, 2)}
            return parcels

    with pytest.raises(FedVisageError, match="backbone of its own to cat, but declares it the same for all"):
        run_toy(tmp_path, method=Partial())


@pytest.mark.parametrize("what", ["group", "number"])
def test_what_a_method_has_not_declared_does_not_leave_a_party(what: str, tmp_path: Path) -> None:
    class Leaky(Toy):
        def train(self, party: Party, parcel: Parcel) -> Answer:
            answer = super().train(party, parcel)
            if party.name == "bob":
                if what == "group":
                    return answer.more({OPTIMISER: {"m": torch.ones(1)}})
                return answer.more(optimiser=1.0)
            return answer

    run_toy(tmp_path, method=Leaky())
    reason = rows(tmp_path)[1]["absent"]["bob"]
    assert reason == "phase 'train' would send undeclared 'optimiser'; nothing was sent"
    ups = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row.get("direction") == "up"]
    assert {row["party"] for row in ups if row["phase"] == "train"} == {"ann", "cat"}


ROLES = {"s": "source", **{f"t{n}": "target" for n in range(8)}, **{f"v{n}": "validator" for n in range(3)}}
SAMPLED = Phase("train", roles=frozenset({"source", "target"}), always=frozenset({"source"}))


def test_participation_draws_a_share_within_each_role() -> None:
    streams = Streams(1)
    drawn = [draw_cohort(SAMPLED, ROLES, 0.25, streams, round) for round in range(1, 200)]
    assert all(cohort[0] == "s" and len(cohort) == 3 and cohort == sorted(cohort) for cohort in drawn)
    counts = [sum(f"t{n}" in cohort for cohort in drawn) for n in range(8)]
    assert min(counts) > 25, "about 50 of 199 each; 25 is four standard deviations below"
    assert draw_cohort(SAMPLED, ROLES, 0.25, streams, 7) == drawn[6]


def test_everybody_takes_part_where_sampling_does_not_apply() -> None:
    streams = Streams(1)
    everybody = [party for party, role in ROLES.items() if role != "validator"]
    assert draw_cohort(Phase("train", sampled=False), ROLES, 0.1, streams, 1) == everybody
    assert draw_cohort(SAMPLED, ROLES, 1.0, streams, 1) == everybody
    assert draw_cohort(Phase("train", roles=frozenset({"trainer"})), ROLES, 0.5, streams, 1) == []


def test_a_share_is_rounded_up_to_at_least_one() -> None:
    roles = {f"p{n}": "trainer" for n in range(10)}
    sizes = [len(draw_cohort(Phase("train"), roles, share, Streams(1), 1)) for share in (0.01, 0.1, 0.11, 0.3, 0.7)]
    assert sizes == [1, 1, 2, 3, 7]


def test_only_the_drawn_parties_are_asked(tmp_path: Path) -> None:
    parties = {f"p{n}": "trainer" for n in range(5)}
    outcome = run_toy(tmp_path, parties=parties, participation=0.4, rounds=6)
    asked: dict[int, set[str]] = {}
    for party, stamp, _ in outcome.transport.sent:
        asked.setdefault(stamp.round, set()).add(party)
    assert asked[0] == set(parties)
    assert all(len(asked[round]) == 2 for round in range(1, 7))
    assert len({frozenset(asked[round]) for round in range(1, 7)}) > 1


def test_nobody_to_train_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="round 1, train: no party takes part"):
        run_toy(tmp_path, parties={"v": "validator"})


def test_two_components_with_one_phase_name_are_refused(tmp_path: Path) -> None:
    class Other(Component):
        def phases(self) -> tuple[Phase, ...]:
            return (Phase("train"),)

    with pytest.raises(FedVisageError, match="two components bring a phase called 'train'"):
        run_toy(tmp_path, others=[Other()])


def test_the_observer_is_asked_once_at_the_end_of_each_round(tmp_path: Path) -> None:
    transport = InProcess(MakeToyHost(tmp_path))
    asked: list[int] = []

    def observe(round: int, server: State, generations: Mapping[str, str], last: bool) -> dict[str, dict[str, float]]:
        asked.append(round)
        assert last == (round == 2)
        assert generations.keys() == PARTIES.keys()
        return {"test": {"accuracy": 0.5}}

    Federation(
        Toy(), ByNumber(), [], PARTIES, transport, Settings(rounds=2), tmp_path, Streams(1), {}, 4, observe=observe
    ).run()
    transport.close()
    assert asked == [1, 2]
    assert [row for row in rows(tmp_path) if row["phase"] == "test"] == [
        {"round": 1, "phase": "test", "accuracy": 0.5},
        {"round": 2, "phase": "test", "accuracy": 0.5},
    ]
