"""The party side inside NVFlare: hands tasks to a desk that stays warm between them, and answers for every error.

The desk is made from the first task of a job, `prepare`, by a subclass that knows how a party's folder is laid out. Its
process, network and open face files are kept for as long as the job lasts.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedvisage.core.errors import kind_of
from fedvisage.core.parcel import Parcel, encode, pieces
from fedvisage.federation.nvflare import courier
from fedvisage.federation.nvflare.parts import join_parts
from fedvisage.federation.nvflare.wire import (
    ANSWER,
    FAILED,
    KIND,
    OWN,
    PREPARE,
    SHARED,
    Content,
    as_content,
    look,
    reason_of,
)

INTERVAL = 0.5
"""Seconds between looks at whether the job is over."""
GRACE = 10.0
"""Seconds that work may go on after it."""


class Desk(Protocol):
    """What answers a party's parcels in one run."""

    def handle(self, parcel: Parcel) -> Parcel:
        """The answer, checked against the party's policy and written into its log."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class PartyExecutor(Executor):
    """Answers the tasks of one job at one site."""

    def __init__(self) -> None:
        super().__init__()
        courier.register(None)
        self._desk: Desk | None = None

    @abstractmethod
    def open_desk(self, site: Path, name: str, message: bytes) -> Desk:
        """The desk of the party whose start-up kit is in `site`, for the run that `message` describes; or refuse."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a task; an error becomes a result that says what happened."""
        answer = Shareable()
        try:
            with _ended_with_its_job(abort_signal):
                if task_name == PREPARE:
                    self._prepare(bytes(look(shareable[OWN])), fl_ctx)
                    answer[ANSWER] = encode(Parcel())
                else:
                    answer[ANSWER] = self._handle(task_name, join_parts(shareable[SHARED], shareable[OWN]))
        except Exception as error:
            self.log_exception(fl_ctx, f"task {task_name} failed")
            return failed(error)
        return answer

    def _prepare(self, message: bytes, fl_ctx: FLContext) -> None:
        self._close()
        site = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        self._desk = self.open_desk(site, fl_ctx.get_identity_name(), message)

    def _handle(self, phase: str, parcel: Parcel) -> Content:
        if self._desk is None or parcel.stamp.phase != phase:
            raise ValueError(f"task '{phase}' came before '{PREPARE}', or carries another phase's parcel")
        return as_content(pieces(self._desk.handle(parcel)))

    def finalize(self, fl_ctx: FLContext) -> None:
        """The job is over."""
        self._close()

    def _close(self) -> None:
        if self._desk is not None:
            self._desk.close()
            self._desk = None


@contextmanager
def _ended_with_its_job(abort_signal: Signal) -> Iterator[None]:
    """End this process where the job is over and the work within goes on regardless: nobody waits for its answer."""
    done = threading.Event()

    def watch() -> None:
        while not abort_signal.triggered:
            if done.wait(INTERVAL):
                return
        if not done.wait(GRACE):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def failed(error: Exception) -> Shareable:
    """A result that says why there is no answer; the traceback stays in the site's own log."""
    answer = Shareable()
    answer[FAILED] = reason_of(error)
    answer.set_header(KIND, str(kind_of(error)))
    return answer
