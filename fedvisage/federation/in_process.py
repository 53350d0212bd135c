"""The in-process transport: every party in this process, or spread over worker processes of this machine.

Workers are given chunks of parties as they become free; chunks depend on the cohort's size only, so results do not
depend on the number of workers. What all parties receive alike is sent to a worker once per exchange. Two exchanges
beside each other share the workers evenly. Parcels cross as safetensors bytes through pipes; nothing is pickled after a
worker has started.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from time import monotonic

import torch

from fedvisage.core.errors import FedVisageError, kind_of, reported_kind
from fedvisage.core.parcel import Parcel, decode, encode, shared_groups
from fedvisage.federation.aggregation import chunk_size
from fedvisage.federation.host import Host
from fedvisage.federation.transport import Failure

MakeHost = Callable[[int], Host]
"""Builds the host of worker number n in that worker's own process; must be picklable."""

SCRIPT = (
    ": workers run your script again to find the parts of the run that it defines; put what starts the run under "
    "`if __name__ == '__main__':`, or move the parts into a module and name it in the recipe (plugins)"
)
START, SHARED, PARTY, ANSWER, FAILED = b"s", b"g", b"p", b"a", b"f"


class InProcess:
    """All parties one after the other in this process."""

    def __init__(self, make_host: MakeHost, threads: int = 1) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        self.host = make_host(0)

    def exchange(
        self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]] = ()
    ) -> Iterator[tuple[str, Parcel | Failure]]:
        """See `Transport.exchange`; what is beside comes first, before sums of answers take up memory."""
        yield from chain.from_iterable(map(self._answers, chain(beside, (parcels,))))

    def _answers(self, parcels: Mapping[str, Parcel]) -> Iterator[tuple[str, Parcel | Failure]]:
        first = next(iter(parcels.values()), None)
        if first is not None and self.host.computes_together(first.stamp.phase):
            yield from self._together(parcels)
            return
        for party, parcel in parcels.items():
            try:
                answer: Parcel | Failure = self.host.handle(party, parcel)
            except Exception as error:
                answer = _failure(error)
            yield party, answer

    def _together(self, parcels: Mapping[str, Parcel]) -> Iterator[tuple[str, Parcel | Failure]]:
        """Groups of parties in the order of the cohort; what stops a whole group fails everybody in it."""
        names, size = list(parcels), self.host.together
        for start in range(0, len(names), size):
            group, answered = names[start : start + size], 0
            try:
                for party, answer in self.host.handle_together({name: parcels[name] for name in group}):
                    answered += 1
                    yield party, answer if isinstance(answer, Parcel) else _failure(answer)
            except Exception as error:
                yield from ((party, _failure(error)) for party in group[answered:])

    def close(self) -> None:
        """Give the threads back and let go of the party states."""
        self.host.close()
        torch.set_num_threads(self._threads_before)


class Workers:
    """Parties spread over worker processes, each with its own model."""

    def __init__(self, make_host: MakeHost, count: int, threads: int = 1, timeout: float | None = None) -> None:
        self._make_host, self._threads, self._timeout = make_host, threads, timeout
        self._workers: list[_Worker] = []
        self._window = 2 * count
        try:
            for number in range(count):
                self._workers.append(_Worker(number, make_host, threads))
            for worker in self._workers:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def exchange(
        self, parcels: Mapping[str, Parcel], beside: Iterable[Mapping[str, Parcel]] = ()
    ) -> Iterator[tuple[str, Parcel | Failure]]:
        """See `Transport.exchange`. Never runs more than a few chunks ahead of the slowest."""
        others = filter(None, beside)
        lines = [_Line(next(others, {})), _Line(parcels)]
        while True:
            if not lines[0].chunks and not self._serving(lines[0]):
                lines[0] = _Line(next(others, {}))
            for worker in self._workers:
                open_lines = [line for line in lines if self._may_go_on(line)]
                if not worker.busy and open_lines:
                    self._give(worker, min(open_lines, key=lambda line: len(self._serving(line))))
            if not any(worker.busy for worker in self._workers):
                return
            yield from self._collect()

    def _serving(self, line: _Line) -> list[int]:
        """Numbers of the chunks of a line that are being worked on."""
        return [worker.chunk[0] for worker in self._workers if worker.chunk and worker.line is line]

    def _may_go_on(self, line: _Line) -> bool:
        following = line.chunks[0][0] if line.chunks else None
        return following is not None and following < min([*self._serving(line), following]) + self._window

    def _give(self, worker: _Worker, line: _Line) -> None:
        if worker.line is not line and not worker.turn_to(line):
            self._replace(worker)
        worker.take(line.chunks.popleft())

    def _collect(self) -> Iterator[tuple[str, Parcel | Failure]]:
        busy = [worker for worker in self._workers if worker.busy]
        ready = wait([worker.pipe for worker in busy], timeout=self._patience(busy))
        for worker in busy:
            if worker.pipe in ready:
                party, answer = worker.receive()
                if answer is None:
                    answer = Failure(f"its worker process {worker.death()}")
                    self._replace(worker)
            elif self._timeout is not None and monotonic() - worker.since > self._timeout:
                party, answer = worker.party, Failure(f"no answer within {self._timeout:g} s")
                self._replace(worker)
            else:
                continue
            worker.next_party()
            yield party, answer

    def _patience(self, busy: list[_Worker]) -> float | None:
        if self._timeout is None:
            return None
        return max(0.0, min(worker.since for worker in busy) + self._timeout - monotonic())

    def _replace(self, worker: _Worker) -> None:
        worker.stop()
        worker.start()
        worker.wait_until_ready()
        worker.send_shared()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.stop()


class _Line:
    """The parties of one exchange that wait to be served, in chunks."""

    def __init__(self, parcels: Mapping[str, Parcel]) -> None:
        parties, size = list(parcels), chunk_size(len(parcels))
        self.parcels, self.shared = parcels, shared_groups(parcels)
        self.chunks = deque(
            (start // size, deque(parties[start : start + size])) for start in range(0, len(parties), size)
        )


class _Worker:
    """One worker process as the main process sees it."""

    def __init__(self, number: int, make_host: MakeHost, threads: int) -> None:
        self.number, self._make_host, self._threads = number, make_host, threads
        self.line = _Line({})
        self.chunk: tuple[int, deque[str]] | None = None
        self.party = ""
        self.since = 0.0
        self.start()

    def start(self) -> None:
        context = _processes()
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self._make_host, self.number, self._threads)
        self.process = context.Process(target=_serve, args=arguments, daemon=True, name=f"fedvisage-{self.number}")
        with _main_hidden_unless_needed(self._make_host):
            self.process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        try:
            message = self.pipe.recv_bytes()
        except EOFError:
            hint = SCRIPT if _needs_main(self._make_host) else ""
            raise FedVisageError(f"worker {self.number} {self.death()} while starting{hint}") from None
        if message[:1] == FAILED:
            raise FedVisageError(f"worker {self.number} could not start: {_told(message[1:].decode()).reason}")

    @property
    def busy(self) -> bool:
        return self.chunk is not None

    def turn_to(self, line: _Line) -> bool:
        """Whether the worker could be told; it may have died since it was last asked."""
        self.line = line
        try:
            self.send_shared()
        except OSError:
            return False
        return self.process.is_alive()

    def send_shared(self) -> None:
        self.pipe.send_bytes(SHARED + encode(Parcel(self.line.shared)))

    def take(self, chunk: tuple[int, deque[str]]) -> None:
        self.chunk = chunk
        self.next_party()

    def next_party(self) -> None:
        assert self.chunk is not None
        if not self.chunk[1]:
            self.chunk = None
            return
        self.party = self.chunk[1].popleft()
        self.since = monotonic()
        parcel, shared = self.line.parcels[self.party], self.line.shared
        own = [group for group, tensors in parcel.tensors.items() if shared.get(group) is not tensors]
        name = self.party.encode()
        with suppress(OSError):  # a worker that died is noticed where its answer is received
            self.pipe.send_bytes(PARTY + len(name).to_bytes(4, "little") + name + encode(parcel, own))

    def receive(self) -> tuple[str, Parcel | Failure | None]:
        try:
            message = self.pipe.recv_bytes()
        except (EOFError, OSError):
            return self.party, None
        if message[:1] == FAILED:
            return self.party, _told(message[1:].decode())
        return self.party, decode(bytearray(memoryview(message)[1:]))

    def death(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _needs_main(make_host: MakeHost) -> bool:
    """Whether the user's script, notebook or shell defines something that a worker must find."""
    parts = (make_host, *getattr(make_host, "components", ()))
    defined = any("__main__" in (type(part).__module__, getattr(part, "__module__", "")) for part in parts)
    return defined or getattr(make_host, "needs_main", False)


@contextmanager
def _main_hidden_unless_needed(make_host: MakeHost) -> Iterator[None]:
    """Keep a worker from running the user's script again, as Python's worker processes do to find what it defines.

    A script then needs no `if __name__ == "__main__"`, unless it defines a method of its own.
    """
    main = sys.modules["__main__"]
    if _needs_main(make_host):
        yield
        return
    hidden = {name: main.__dict__.get(name) for name in ("__file__", "__spec__")}
    main.__dict__.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _processes() -> ForkServerContext | SpawnContext:
    """Where the platform has it, a server process that has imported everything and is forked for each worker."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedvisage"])
    return context


def _serve(pipe: Connection, make_host: MakeHost, number: int, threads: int) -> None:
    """The worker process: build the host once, then answer until the pipe closes."""
    torch.set_num_threads(threads)
    try:
        host = make_host(number)
    except Exception as error:
        pipe.send_bytes(FAILED + _describe(error).encode())
        return
    pipe.send_bytes(START)
    shared = Parcel()
    while True:
        try:
            message = bytearray(pipe.recv_bytes())
        except (EOFError, OSError, KeyboardInterrupt):
            os._exit(0)
        if message[:1] == SHARED:
            shared = decode(message[1:])
            continue
        size = int.from_bytes(message[1:5], "little")
        party, parcel = message[5 : 5 + size].decode(), decode(message[5 + size :])
        parcel.tensors |= {group: shared[group] for group in shared.tensors if group not in parcel.tensors}
        try:
            answer = ANSWER + encode(host.handle(party, parcel))
        except Exception as error:
            answer = FAILED + _describe(error).encode()
        pipe.send_bytes(answer)


def _describe(error: Exception) -> str:
    """Kind, reason and traceback of what went wrong at a party, as lines."""
    text = str(error) if isinstance(error, FedVisageError) else f"{type(error).__name__}: {error}"
    reason = text.splitlines()[0] if text else type(error).__name__
    return f"{kind_of(error)}\n{reason}\n{''.join(traceback.format_exception(error))}"


def _told(text: str) -> Failure:
    """The failure that `_describe` describes."""
    kind, reason, detail = text.split("\n", 2)
    return Failure(reason, detail, reported_kind(kind))


def _failure(error: Exception) -> Failure:
    return _told(_describe(error))
