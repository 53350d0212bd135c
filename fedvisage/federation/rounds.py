"""The round loop: plan, exchange, guard, aggregate, absorb, checkpoint; the same for every method and transport."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from types import MappingProxyType
from typing import Any

from fedvisage.config import Federation as Settings
from fedvisage.core.assembly import Assembly
from fedvisage.core.codec import State
from fedvisage.core.errors import Diverged, FedVisageError, Kind
from fedvisage.core.memory import give_back
from fedvisage.core.method import Component, Context, Joined, Method, Rates, Result, Weighting, no_rates
from fedvisage.core.parcel import BACKBONE, Parcel, Stamp, Tensors
from fedvisage.core.phase import Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.rule import rule_of
from fedvisage.federation.aggregation import Aggregator
from fedvisage.federation.bounds import History
from fedvisage.federation.checkpoint import Book, Checkpoints
from fedvisage.federation.guard import NOT_ASKED, REPEATED, Guard, Refused
from fedvisage.federation.schedule import Step, draw_cohort, schedule, shortened
from fedvisage.federation.trackers import JsonLines, Tracker
from fedvisage.federation.transport import Failure, Transport
from fedvisage.privacy import Ledger


@dataclass(frozen=True)
class Event:
    """Something happened: `planned`, `answer`, `absorbed`, `saved` or `note`. For progress bars and tests."""

    kind: str
    round: int
    rounds: int
    phase: str
    party: str = ""
    done: int = 0
    total: int = 0
    verdict: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


CAPPED = "capped"
"""Answers of an exchange whose weight was cut to the most that the weighting allows; not said where there is none."""
ANSWERED = Parcel()
"""In place of a parcel whose answer came: ten thousand of them are a lot to hold until the last."""

Observe = Callable[[int, State, Mapping[str, str], bool], Mapping[str, Mapping[str, float]]]
"""Scores of the global model after a round, by the set of people they are on.

It is told the parties' generations, and whether this is the last round.
"""


@dataclass
class Exchange:
    """An exchange under way: what went down, and what has become of the answers so far."""

    step: Step
    server: State
    """As it was when the exchange was planned."""
    context: Context
    parcels: dict[str, Parcel]
    guard: Guard
    aggregator: Aggregator
    waiting: set[str]
    most: float
    """Largest weight of an answer."""
    refused: dict[str, Refused] = field(default_factory=dict)
    """Why a party's answer does not count, or did not when it last sent one that was stale."""
    norms: dict[str, float] = field(default_factory=dict)
    """Norms of the accepted updates of the backbone."""


@dataclass
class Records:
    """What is written down in one attempt at a run."""

    attempt: int
    book: Book
    ledger: Ledger
    metrics: JsonLines


class Federation:
    """Runs a method over a transport, from the last checkpoint on."""

    def __init__(
        self,
        method: Method,
        weighting: Weighting,
        others: Sequence[Component],
        parties: Mapping[str, str],
        transport: Transport,
        settings: Settings,
        folder: Path,
        streams: Streams,
        initial: State,
        embedding_size: int,
        trackers: Sequence[Tracker] = (),
        watch: Callable[[Event], None] = lambda event: None,
        observe: Observe | None = None,
        rates: Rates = no_rates,
    ) -> None:
        self.method, self.weighting, self.parties = method, weighting, dict(parties)
        self.transport, self.settings, self.folder = transport, settings, folder
        self.streams, self.initial, self.trackers = streams, initial, trackers
        self.embedding_size = embedding_size
        self.watch, self.observe, self.rates = watch, observe, rates
        self.assembly = Assembly([method, weighting, *others])
        self.rule = rule_of(others)
        self.steps = schedule(self.assembly.components, settings.rounds)

    def run(self) -> tuple[State, Book]:
        """The final server state and the book, going on from the checkpoint where there is one."""
        try:
            return self._run()
        except OSError as error:
            raise FedVisageError(f"cannot write the run in {self.folder}: {error.strerror or error}") from error

    def _run(self) -> tuple[State, Book]:
        checkpoints = Checkpoints(self.folder / "checkpoints")
        attempt = checkpoints.attempt()
        found = checkpoints.load()
        book = found[1] if found else Book()
        if book.ended:
            self.steps = shortened(self.assembly.components, self.steps, book.ended_at)
        server = found[0] if found else self.assembly.start(self._context(0, book))
        self.initial = {}  # a model's worth of memory, which nobody needs in the rounds
        with ExitStack() as stack:
            ledger = stack.enter_context(Ledger(self.folder / "ledger.jsonl"))
            metrics = JsonLines(self.folder / "metrics.jsonl", book.metrics_bytes)
            for tracker in (metrics, *self.trackers):
                stack.callback(tracker.close)
            records = Records(attempt, book, ledger, metrics)
            while book.step < len(self.steps):
                step = self.steps[book.step]
                server = self._exchange(step, server, records)
                book.step += 1
                book.metrics_bytes = metrics.sync()
                ledger.flush()
                checkpoints.save(server, book)
                if step.phase.when == "start":
                    give_back()  # joining parties leave gaps that training does not fill
                self._tell("saved", step)
        rmtree(self.folder / "spill", ignore_errors=True)
        return server, book

    def _context(self, round: int, book: Book, repeat: int = 0) -> Context:
        rounds = self.settings.rounds
        given = (self.streams, round, rounds, book.joined, self.initial, self.embedding_size, repeat)
        return Context(*given, rates=self.rates)

    def _exchange(self, step: Step, server: State, records: Records) -> State:
        """The server state after an exchange and those beside it, whatever order their answers arrive in.

        All are planned and weighed by what was known before; those beside are absorbed one by one, then this one.
        """
        main = self._open(step, server, records)
        beside = list[Exchange]()

        def others() -> Iterator[dict[str, Parcel]]:
            nonlocal server
            for small in step.beside:
                beside.append(self._open(small, server, records))
                yield beside[0].parcels
                server = self._close(beside.pop(), server, records)

        for party, answer in self.transport.exchange(main.parcels, others()) if main.parcels or step.beside else ():
            asked = next((exchange for exchange in beside if party in exchange.parcels), main)
            self._take(asked, party, answer, records)
            del answer
        return self._close(main, server, records)

    def _open(self, step: Step, server: State, records: Records) -> Exchange:
        """Plan an exchange and write down what goes down."""
        phase, book, ledger = step.phase, records.book, records.ledger
        context = self._context(step.round, book, step.repeat)
        asked = book.joined.keys() | (self.parties.keys() - book.refused.keys() if phase.counts else set())
        roles = {party: role for party, role in self.parties.items() if party in asked}
        cohort = draw_cohort(phase, roles, self.settings.participation, self.streams, step.round)
        parcels = self.assembly.plan(phase, server, cohort, context)
        _check_down(phase, parcels, cohort)
        stamp = Stamp(step.round, phase.name, records.attempt, step.repeat)
        for party, parcel in parcels.items():
            parcel.stamp, parcel.generation = stamp, book.generations.get(party, "")
            ledger.record(party, "down", parcel)
        ledger.flush()
        self._tell("planned", step, total=len(cohort))
        guard, aggregator = self._desk(phase, stamp, parcels, book)
        most = self.weighting.most([joined for joined in book.joined.values() if joined.role in phase.roles])
        return Exchange(step, server, context, parcels, guard, aggregator, set(parcels), most)

    def _take(self, exchange: Exchange, party: str, answer: Parcel | Failure, records: Records) -> None:
        """Count one answer, or say why it does not count."""
        step, parcels, verdict = exchange.step, exchange.parcels, ""
        try:
            self._count(exchange, party, answer, records)
        except Refused as reason:
            verdict = str(reason)
            if isinstance(answer, Parcel):
                records.ledger.record(party, "up", answer, verdict)
            self._note_failure(step, party, verdict, answer)
            if party in exchange.waiting:
                exchange.refused[party] = reason
            if reason.kind is Kind.STALE:
                return
            if party in exchange.waiting:
                exchange.aggregator.skip(party, verdict)
        if party in exchange.waiting:
            exchange.waiting.remove(party)
            parcels[party] = ANSWERED
        done = len(parcels) - len(exchange.waiting)
        self._tell("answer", step, party=party, done=done, total=len(parcels), verdict=verdict)

    def _count(self, exchange: Exchange, party: str, answer: Parcel | Failure, records: Records) -> None:
        phase, server, parcels, book = exchange.step.phase, exchange.server, exchange.parcels, records.book
        if party not in exchange.waiting:
            known = party in parcels
            raise Refused(Kind.REPEATED if known else Kind.NOT_ASKED, REPEATED if known else NOT_ASKED)
        if isinstance(answer, Failure):
            raise Refused(answer.kind, answer.reason)
        expected = self.assembly.expect(phase, server, party, parcels[party], exchange.context)
        norm = exchange.guard.check(party, answer, expected, parcels[party])
        joined = _joined(phase, self.parties[party], answer) or book.joined[party]
        weight = self.weighting.weight(self.assembly.hidden(server), party, joined, answer.statistics)
        if not 0 <= weight < math.inf:
            raise Refused(Kind.WEIGHT, f"its weight would be {weight:g}")
        if weight > exchange.most:
            weight = exchange.most
            exchange.context.numbers[CAPPED] = exchange.context.numbers.get(CAPPED, 0) + 1
        records.ledger.record(party, "up", answer)
        if self.assembly.chain:
            answer = self.assembly.chain.received(phase, party, answer, exchange.context)
        exchange.aggregator.add(party, answer, weight, norm, parcels[party])
        exchange.norms[party] = norm
        exchange.refused.pop(party, None)
        if answer.generation:
            book.generations[party] = answer.generation

    def _close(self, exchange: Exchange, server: State, records: Records) -> State:
        """The server state after the answers that counted."""
        step, phase, aggregator, book = exchange.step, exchange.step.phase, exchange.aggregator, records.book
        for party in sorted(exchange.waiting):
            if party not in exchange.refused:
                exchange.refused[party] = Refused(Kind.NO_ANSWER, "no answer")
                self._note_failure(step, party, "no answer", Failure("no answer"))
            aggregator.skip(party, str(exchange.refused[party]))
        exchange.waiting.clear()
        self._check_quorum(exchange, records)
        self._remember_norms(exchange, book)
        result = aggregator.result()
        self._remember(phase, result, book)
        server = self.assembly.absorb(phase, server, result, exchange.context)
        if exchange.context.ended and not book.ended:
            self._end(exchange.context.ended, book)
        self._log(exchange, result, server, records)
        return server

    def _end(self, reason: str, book: Book) -> None:
        now = self.steps[book.step]
        book.ended, book.ended_at, book.ended_round = reason, book.step + 1, now.round
        self.steps = shortened(self.assembly.components, self.steps, book.ended_at)
        self._tell("note", now, verdict=f"the run ends here: {reason}")

    def _desk(self, phase: Phase, stamp: Stamp, parcels: Mapping[str, Parcel], book: Book) -> tuple[Guard, Aggregator]:
        """Who checks the answers of an exchange, and who counts them."""
        guard = Guard(
            phase,
            stamp,
            frozenset(parcels),
            book.joined,
            self.settings.guard,
            book.history.get(phase.name, History()),
            partial(self.assembly.local_steps, phase),
            self.rates(stamp.round) if phase.trains and self.rates is not no_rates else 1.0,
        )
        aggregator = Aggregator(
            phase,
            sorted(parcels),
            self.rule,
            self.weighting.individual if phase.trains else frozenset(),
            self.folder / "spill" / phase.name,
        )
        return guard, aggregator

    def _check_quorum(self, exchange: Exchange, records: Records) -> None:
        step, aggregator, asked = exchange.step, exchange.aggregator, len(exchange.parcels)
        needed = max(1, math.ceil(self.settings.quorum * asked - 1e-9)) if asked else 0
        if asked == 0 and (step.phase.trains or step.phase.counts):
            raise FedVisageError(f"round {step.round}, {step.phase.name}: no party takes part")
        if aggregator.accepted < needed:
            records.metrics.log(_row(exchange, {}, aggregator.absent, records.book))
            party, reason = next(iter(aggregator.absent.items()))
            diverged = all(refused.kind.tells_divergence for refused in exchange.refused.values())
            kind = Diverged if diverged else FedVisageError
            raise kind(
                f"round {step.round}, {step.phase.name}: {aggregator.accepted} of {asked} parties counted, "
                f"{needed} needed; {party}: {reason} (all reasons in {self.folder / 'failures.log'})"
            )

    def _remember_norms(self, exchange: Exchange, book: Book) -> None:
        phase = exchange.step.phase
        if not phase.trains or not exchange.norms or BACKBONE not in phase.up:
            return
        book.norms.append(median(exchange.norms.values()))
        history, guard = book.history.setdefault(phase.name, History()), exchange.guard
        for role in sorted({self.parties[party] for party in exchange.norms}):
            norms = {party: norm / guard.rate for party, norm in exchange.norms.items() if self.parties[party] == role}
            steps = {party: guard.steps(book.joined[party]) for party in norms}
            history.add(role, norms, steps, guard.floor / guard.rate)

    def _remember(self, phase: Phase, result: Result, book: Book) -> None:
        if not phase.counts:
            return
        for party, numbers in result.statistics.items():
            book.joined[party] = Joined(self.parties[party], int(numbers["samples"]), int(numbers.get("classes", 0)))
        book.refused |= result.absent

    def _log(self, exchange: Exchange, result: Result, server: State, records: Records) -> None:
        step = exchange.step
        names = sorted({name for numbers in result.statistics.values() for name in numbers})
        summary = {name: result.average(name) for name in names} | exchange.context.numbers
        rows = [_row(exchange, summary, result.absent, records.book, result.statistics)]
        self._tell("absorbed", step, numbers=summary)
        book, now = records.book, self.steps[records.book.step]
        observe = self.observe if now.last_of_round and step.phase is now.phase else None
        last = bool(book.ended) or step.round == self.settings.rounds
        seen = observe(step.round, server, book.generations, last) if observe else {}
        rows += [{"round": step.round, "phase": people, **scores} for people, scores in seen.items()]
        for entry in rows:
            for tracker in (records.metrics, *self.trackers):
                tracker.log(entry)

    def _note_failure(self, step: Step, party: str, verdict: str, answer: Parcel | Failure) -> None:
        detail = answer.detail if isinstance(answer, Failure) else ""
        with (self.folder / "failures.log").open("a", encoding="utf-8") as file:
            file.write(f"round {step.round}, {step.phase.name}, {party}: {verdict}\n{detail}")

    def _tell(self, kind: str, step: Step, **more: Any) -> None:
        self.watch(Event(kind, step.round, self.settings.rounds, step.phase.name, **more))


def _row(
    exchange: Exchange,
    summary: Mapping[str, float],
    absent: Mapping[str, str],
    book: Book,
    parties: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The row of an exchange in the metrics. Where an answer did not count it says what kind of refusal that was.

    After training it says, too, in what share of its exchanges so far the party's answer counted.
    """
    step = exchange.step
    row: dict[str, Any] = {"round": step.round, "phase": step.phase.name, "repeat": step.repeat, **summary}
    row |= {"accepted": len(parties), "parties": dict(parties), "absent": absent}
    if step.phase.trains:
        for party in exchange.parcels:
            counted, asked = book.counted.get(party, (0, 0))
            book.counted[party] = [counted + (party not in absent), asked + 1]
    if absent:
        row["refused"] = {party: exchange.refused[party].kind for party in absent}
    if absent and step.phase.trains:
        row["counted"] = {party: round(book.counted[party][0] / book.counted[party][1], 6) for party in absent}
    return row


def _joined(phase: Phase, role: str, answer: Parcel) -> Joined | None:
    if not phase.counts:
        return None
    return Joined(role, int(answer.statistics["samples"]), int(answer.statistics.get("classes", 0)))


def _check_down(phase: Phase, parcels: Mapping[str, Parcel], cohort: Sequence[str]) -> None:
    """A method may only send what it declares, to whom it declares."""
    if set(parcels) != set(cohort):
        raise FedVisageError(f"phase '{phase.name}' planned for other parties than its cohort")
    shared: dict[str, Tensors] = {}
    for party, parcel in parcels.items():
        undeclared = [*(parcel.tensors.keys() - phase.down.keys()), *(parcel.statistics.keys() - set(phase.sends))]
        if undeclared:
            what = f"undeclared '{undeclared[0]}' to {party}"
            raise FedVisageError(f"phase '{phase.name}' would send {what}; nothing was sent")
        for group, tensors in parcel.tensors.items():
            if phase.down[group] == "all" and shared.setdefault(group, tensors) is not tensors:
                what = f"{group} of its own to {party}, but declares it the same for all"
                raise FedVisageError(f"phase '{phase.name}' would send {what}; nothing was sent")
