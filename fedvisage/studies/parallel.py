"""Many cells at once: as many processes as the machine allows, each with one cell at a time, and word of how far it is.

A process that runs a cell ends itself when the process that started it is gone. What it had done by then is on disk;
the next try goes on from there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedvisage.core.errors import FedVisageError
from fedvisage.federation import Event
from fedvisage.studies.cells import Cell
from fedvisage.studies.running import is_finished, run_cell

DONE, FAILED, STEP = "done", "failed", "step"


@dataclass(frozen=True)
class Place:
    """Where cells work, where their results go, and where real face sets are looked for."""

    work: Path
    results: Path
    data: Path | None = None


@dataclass(frozen=True)
class News:
    """What a cell has to say: it `started`, is a `step` further, is `done`, or has `failed`."""

    kind: str
    cell: Cell
    share: float = 0.0
    """How much of its rounds are done."""
    phase: str = ""
    reason: str = ""


Tell = Callable[[News], None]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(cells: Sequence[Cell]) -> int:
    """One process per core, but one in all at paper scale, where a cell fills its GPU by itself."""
    if not cells or any(cell.scale == "paper" for cell in cells):
        return 1
    return max(1, min(len(cells), cores()))


def run_cells(cells: Sequence[Cell], place: Place, jobs: int = 0, tell: Tell = lambda news: None) -> list[Path]:
    """Run what is not finished, `jobs` at a time (0: as many as the machine allows); the results' files.

    Cells of the same recipe are trained once; those that are measured by other columns, or of another of the run's
    models, are measured after that. A cell that fails does not stop the others; its reason is raised at the end.
    """
    different = list({cell.key: cell for cell in reversed(cells)}.values())[::-1]
    again = list({(cell.key, cell.study, cell.row): cell for cell in cells if cell not in different}.values())
    finished = [cell for cell in different if is_finished(cell, place.work, place.results, place.data)]
    to_run = [cell for cell in different if cell not in finished]
    jobs = min(jobs or default_jobs(to_run), len(to_run))
    failures: list[str] = []

    def note(news: News) -> None:
        if news.kind == FAILED:
            failures.append(f"{news.cell.row}, seed {news.cell.seed}: {news.reason}")
        tell(news)

    _run_here(finished, place, note)
    if jobs > 1:
        _run_in_processes(deque(to_run), place, jobs, note)
    else:
        _run_here(to_run, place, note)
    _run_here(again, place, note)
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise FedVisageError(f"{len(failures)} of {len(different) + len(again)} cells failed: {failures[0]}{more}")
    return [place.results / f"{cell.key}.json" for cell in different]


def _run_here(cells: Sequence[Cell], place: Place, tell: Tell) -> None:
    for cell in cells:
        tell(News("started", cell))
        try:
            run_cell(cell, place.work, place.results, place.data, _steps(cell, tell))
        except FedVisageError as error:
            tell(News(FAILED, cell, reason=str(error)))
        else:
            tell(News(DONE, cell, 1.0))


def _steps(cell: Cell, tell: Tell) -> Callable[[Event], None]:
    def watch(event: Event) -> None:
        if event.kind == "absorbed" and event.rounds:
            tell(News(STEP, cell, event.round / event.rounds, event.phase))

    return watch


def _run_in_processes(waiting: deque[Cell], place: Place, jobs: int, tell: Tell) -> None:
    workers = max(1, cores() // jobs)
    with _ended() as running:
        while waiting or running:
            while waiting and len(running) < jobs:
                worker = _Worker(waiting.popleft(), place, workers)
                running[worker.pipe] = worker
                tell(News("started", worker.cell))
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                worker = running[pipe]
                news = worker.receive()
                tell(news)
                if news.kind in (DONE, FAILED):
                    worker.stop()
                    del running[pipe]


@contextmanager
def _ended() -> Iterator[dict[Connection, _Worker]]:
    """Processes that are ended with the block, however it ends."""
    running: dict[Connection, _Worker] = {}
    try:
        yield running
    finally:
        for worker in running.values():
            worker.stop()


class _Worker:
    """A process with a cell."""

    def __init__(self, cell: Cell, place: Place, workers: int) -> None:
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload(["fedvisage", "fedvisage.studies"])
        self.cell = cell
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, cell, place, workers))
        self.process.start()
        theirs.close()

    def receive(self) -> News:
        """The next thing it says; that it has failed where it died without a word."""
        try:
            said = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            return News(FAILED, self.cell, reason=f"its process {how}")
        return News(said["kind"], self.cell, said["share"], said["phase"], said["reason"])

    def stop(self) -> None:
        """Wait for its end, which is near if it is done, and otherwise end it."""
        self.pipe.close()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _serve(pipe: Connection, cell: Cell, place: Place, workers: int) -> None:
    """The process of one cell."""
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()

    def tell(news: News) -> None:
        said = {"kind": news.kind, "share": news.share, "phase": news.phase, "reason": news.reason}
        pipe.send_bytes(json.dumps(said).encode())

    try:
        run_cell(cell, place.work, place.results, place.data, _steps(cell, tell), workers)
        tell(News(DONE, cell, 1.0))
    except KeyboardInterrupt:
        os._exit(130)
    except FedVisageError as error:
        tell(News(FAILED, cell, reason=str(error)))
    except Exception as error:
        tell(News(FAILED, cell, reason=f"{type(error).__name__}: {error}"))


def _end_with_parent(pipe: Connection) -> None:
    """Nothing is ever sent to a cell's process: when its pipe can be read, nobody is at the other end."""
    while not pipe.closed:
        try:
            pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)
