"""The NVFlare transport, as the round loop sees it: exchanges that survive the death of a job, a site or the server.

A job is opened when the first parcel is to be sent. Where it is lost, another is submitted and only the answers that
are still missing are asked for again. A party that gives no answer is left out until its site is connected again; the
next exchange then opens a new job, with it. Every site works on its own task, so exchanges beside each other are simply
all asked for.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvisage.core.errors import FedVisageError, reported_kind
from fedvisage.core.parcel import Parcel, Stamp, decode, pieces, shared_groups
from fedvisage.federation.nvflare.body import Body
from fedvisage.federation.nvflare.console import Console, Unreachable, patiently
from fedvisage.federation.nvflare.jobs import EXECUTOR, write_job
from fedvisage.federation.nvflare.link import Closed, Link, Listener
from fedvisage.federation.nvflare.parts import own_groups
from fedvisage.federation.nvflare.wire import FEW, PREPARE, Content, look, total
from fedvisage.federation.transport import Failure

NOT_CONNECTED = "its site is not connected"
MOST_LOSSES = 6
"""Jobs lost in one exchange before the run gives up."""
POISONED = 3
"""Jobs that one party's process may bring down in one exchange before the party is left out of it."""

Note = Callable[[Stamp, str], None]


@dataclass(frozen=True)
class Station:
    """Where the run meets the federation: the server's folder on this host, and who belongs to it."""

    folder: Path
    console: Console
    parties: tuple[str, ...]
    silence: float = 30.0
    """Seconds without a sign of life after which a party's process is given up."""
    patience: float = 600.0
    """Seconds to wait for a server that does not answer."""
    gather: float = 60.0
    """Seconds to wait for sites that are not connected, at the start and after the server was away."""
    executor: str = EXECUTOR
    """What answers at the sites."""


class Lost(Exception):
    """The job has gone."""


class _Open:
    """What an exchange still waits for, its own parcels and those beside it."""

    def __init__(self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]]) -> None:
        self.waiting = dict(parcels)
        self._others, self._beside = filter(None, beside), frozenset[str]()
        self.more()
        self.parties = frozenset(self.waiting)
        """All that are asked for something at some time."""

    def more(self) -> Mapping[str, Parcel]:
        """The next parcels beside, if those before have been answered; they are waited for from now on."""
        if self._beside & self.waiting.keys():
            return {}
        parcels = next(self._others, {})
        self._beside = frozenset(parcels)
        self.waiting |= parcels
        return parcels


@dataclass(frozen=True)
class _Task:
    """Something that a site was asked for."""

    party: str
    sent: float


@dataclass
class _Job:
    """A job as the run sees it."""

    id: str
    link: Link
    spool: Path
    """Folder of the files in which large parcels are handed over."""
    sites: frozenset[str]
    prepared: dict[str, Failure | None] = field(default_factory=dict)
    """Sites that were told of the run, with why they refused, if they did."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Sites that gave no answer, with the reason; nothing more is asked of them in this job."""
    count: int = 0

    def send(self, tasks: dict[int, _Task], party: str, phase: str, payload: Sequence[bytes | memoryview]) -> None:
        self.count += 1
        self._pass({"kind": "task", "task": self.count, "party": party, "phase": phase}, payload)
        tasks[self.count] = _Task(party, time.monotonic())

    def share(self, payload: Sequence[bytes | memoryview]) -> None:
        self._pass({"kind": "shared"}, payload)

    def _pass(self, header: dict[str, Any], payload: Sequence[bytes | memoryview]) -> None:
        try:
            if total(payload) <= FEW:
                self.link.send(header, payload)
            else:
                self.link.send_file(header, Body.spooled(payload, self.spool))
        except Closed as error:
            raise Lost(str(error)) from error

    def collect(self, tasks: dict[int, _Task], timeout: float | None) -> Iterator[tuple[str, Content | Failure]]:
        """Answers as they arrive; who is late after `timeout` seconds has failed. Tasks may be added meanwhile."""
        while tasks:
            try:
                late = None if timeout is None else min(task.sent for task in tasks.values()) + timeout
                header, payload = self.link.receive(None if late is None else max(0.001, late - time.monotonic()))
            except TimeoutError:
                yield from self._too_late(tasks, timeout)
                continue
            except (Closed, ValueError, KeyError) as error:
                raise Lost(str(error)) from error
            task = tasks.pop(int(header.get("task", -1)), None)
            if task is None:
                continue
            if header["kind"] == "answer":
                yield task.party, payload
                del payload
                continue
            if header.get("gone"):
                self.stuck[task.party] = str(header["reason"])
            yield task.party, Failure(str(header["reason"]), kind=reported_kind(header.get("failure")))

    def _too_late(self, tasks: dict[int, _Task], timeout: float | None) -> Iterator[tuple[str, Failure]]:
        now = time.monotonic()
        for number in sorted(number for number, task in tasks.items() if task.sent + (timeout or 0.0) <= now):
            party = tasks.pop(number).party
            self.stuck[party] = f"no answer within {timeout:g} s"
            try:
                self.link.send({"kind": "cancel", "task": number})
            except Closed as error:
                raise Lost(str(error)) from error
            yield party, Failure(self.stuck[party])

    def close(self) -> None:
        with suppress(Closed):
            self.link.send({"kind": "end"})
        self.link.close()


class NVFlare:
    """Delivers parcels to the sites of a federation; see `Transport`. Several runs may use it one after the other."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._listener = Listener(station.folder)
        self._job: _Job | None = None
        self._away: set[str] = set()
        """Parties whose sites were not there when they were last looked for."""

    def begin(self, prepare: Callable[[str], bytes], timeout: float | None, note: Note) -> None:
        """A run begins: `prepare` gives the message that tells a party of it, `note` is told of lost jobs."""
        self._prepare, self._timeout, self._note = prepare, timeout, note
        if self._job is not None:
            self._job.prepared.clear()

    def exchange(
        self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]] = ()
    ) -> Iterator[tuple[str, Parcel | Failure]]:
        """See `Transport.exchange`."""
        asked = _Open(parcels, beside)
        waiting = asked.waiting
        if not waiting:
            return
        stamp = next(iter(waiting.values())).stamp
        self._renew(waiting, stamp)
        losses: list[str] = []
        while waiting or asked.more():
            job = None
            try:
                job = self._job or self._open(waiting)
                for party, answer in self._ask(job, asked):
                    del waiting[party]
                    yield party, answer
            except Lost as reason:
                culprit = self._lost(job, reason, stamp)
                losses.append(culprit)
                if culprit in waiting and losses.count(culprit) >= POISONED:
                    del waiting[culprit]
                    yield culprit, Failure(f"its process died {POISONED} times")
                elif len(losses) >= MOST_LOSSES:
                    raise FedVisageError(
                        f"round {stamp.round}, {stamp.phase}: {MOST_LOSSES} jobs were lost ({reason}); see the logs of "
                        "the server and its sites (fedvisage deploy logs), then go on with --resume"
                    ) from None

    def _ask(self, job: _Job, asked: _Open) -> Iterator[tuple[str, Parcel | Failure]]:
        """Whatever can be had of this job, once for each of those waiting."""
        self._make_ready(job, asked.parties)
        tasks: dict[int, _Task] = {}
        yield from self._send(job, tasks, asked.waiting)
        yield from self._send_more(job, tasks, asked)
        for party, answer in job.collect(tasks, self._timeout):
            if isinstance(answer, Failure):
                yield party, answer
            else:
                yield from _decoded(party, answer)
            del answer
            yield from self._send_more(job, tasks, asked)

    def _send_more(self, job: _Job, tasks: dict[int, _Task], asked: _Open) -> Iterator[tuple[str, Failure]]:
        while more := asked.more():
            yield from self._send(job, tasks, more)

    def _send(self, job: _Job, tasks: dict[int, _Task], waiting: Mapping[str, Parcel]) -> Iterator[tuple[str, Failure]]:
        """Failures of those who cannot be asked in this job; the others are sent what waits for them."""
        exchanges: dict[Stamp, dict[str, Parcel]] = {}
        for party, parcel in list(waiting.items()):
            if party not in job.sites:
                yield party, Failure(NOT_CONNECTED)
            elif party in job.stuck:
                yield party, Failure(job.stuck[party])
            elif refusal := job.prepared[party]:
                yield party, refusal
            else:
                exchanges.setdefault(parcel.stamp, {})[party] = parcel
        for parcels in exchanges.values():
            shared = shared_groups(parcels)
            job.share(pieces(Parcel(shared)) if shared else [])
            for party, parcel in parcels.items():
                job.send(tasks, party, parcel.stamp.phase, pieces(parcel, own_groups(parcel, shared)))

    def _make_ready(self, job: _Job, parties: Iterable[str]) -> None:
        """Tell those of the run who have not been told in this job."""
        new = [party for party in sorted(parties) if party in job.sites and party not in job.prepared | job.stuck]
        if not new:
            return
        job.share([])
        tasks: dict[int, _Task] = {}
        for party in new:
            job.send(tasks, party, PREPARE, [self._prepare(party)])
        for party, answer in job.collect(tasks, self._timeout):
            job.prepared[party] = answer if isinstance(answer, Failure) else None

    def _renew(self, asked: Mapping[str, Parcel], stamp: Stamp) -> None:
        """Give up a job that lacks a party which could take part in a new one."""
        if self._job is None:
            return
        lacking = {party for party in asked if party not in self._job.sites or party in self._job.stuck}
        if not lacking:
            return
        try:
            back = lacking & self._station.console.connected()
        except Unreachable:
            return
        if back:
            self._note(stamp, f"{', '.join(sorted(back))} can be asked again: a new job is submitted")
            self._end_job()

    def _open(self, asked: Mapping[str, Parcel]) -> _Job:
        """Submit a job to the sites that are there, and wait for its controller to call."""
        station, console = self._station, self._station.console
        what = "submitting the job"
        patiently(console.abort_ours, station.patience, what)
        sites = self._gather(asked)
        folder = station.folder / "job"
        try:
            job = write_job(folder, sorted(sites), station.silence, station.executor)
            number = patiently(lambda: console.submit(job), station.patience, what)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        link, present = self._hear(number)
        console.close()  # 50 MB that nobody needs while all goes well
        self._job = _Job(number, link, station.folder, frozenset(present))
        self._away = set(station.parties) - self._job.sites
        return self._job

    def _gather(self, asked: Mapping[str, Parcel]) -> set[str]:
        """The sites that are connected, after waiting a while for those that should be."""
        station = self._station
        give_up = time.monotonic() + station.gather
        members = set(station.parties)
        while True:
            there = patiently(station.console.connected, station.patience, "looking for the sites") & members
            if there >= set(asked) - self._away or time.monotonic() > give_up:
                break
            time.sleep(0.5)
        if not there:
            raise FedVisageError("no site is connected to the federation's server; start the parties, then --resume")
        return there

    def _hear(self, number: str) -> tuple[Link, set[str]]:
        give_up = time.monotonic() + 120
        while True:
            try:
                link = self._listener.accept(2.0)
                header, _ = link.receive(30.0)
            except (TimeoutError, Closed):
                self._still_there(number, give_up)
                continue
            if header.get("job") == number:
                return link, set(header["sites"])
            link.close()

    def _still_there(self, number: str, give_up: float) -> None:
        try:
            status = self._station.console.status(number)
        except Unreachable as error:
            raise Lost(f"the server does not answer: {error}") from error
        if status.startswith("FINISHED") or time.monotonic() > give_up:
            raise Lost(f"the job did not start: {status}")

    def _lost(self, job: _Job | None, reason: Lost, stamp: Stamp) -> str:
        """Let go of a lost job; the party that brought it down, as far as one can tell."""
        self._end_job()
        culprit = ""
        if job is not None:
            for _ in range(10):
                culprit = self._station.console.culprit(job.id)
                if culprit:
                    break
                time.sleep(0.3)
        why = f"the process of {culprit} ended" if culprit else str(reason)
        self._note(stamp, f"the job was lost ({why}); another is submitted")
        return culprit

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None

    def close(self) -> None:
        """End the job and listen no more."""
        self._end_job()
        self._listener.close()
        self._station.console.close()


def _decoded(party: str, answer: Content) -> Iterator[tuple[str, Parcel | Failure]]:
    """An answer for as long as it is looked at; its memory is let go of afterwards."""
    rest = answer.rest if isinstance(answer, Body) else None
    try:
        decoded: Parcel | Failure = replace(decode(look(answer)), rest=rest)
    except ValueError as error:
        decoded = Failure(f"its answer is {error}")
    yield party, decoded
    if rest:
        rest()
