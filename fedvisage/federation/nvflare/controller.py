"""The server side inside NVFlare: passes tasks from the run on to the sites and their results back.

Many bytes are files here, which the run and this process hand to each other: neither what all parties of an exchange
receive alike nor a result is ever in this process's memory. When the run goes away, the job ends. A party whose process
reports nothing for a while is given up: a killed site, a frozen process and a broken line look alike from here.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from fedvisage.federation.nvflare import courier
from fedvisage.federation.nvflare.body import Body
from fedvisage.federation.nvflare.link import Closed, Link, call
from fedvisage.federation.nvflare.wire import ANSWER, FAILED, KIND, OWN, SHARED, Content

INTERVAL = 0.05
"""Seconds between looks at what is to be done."""


class Relay(Controller):
    """Runs for as long as the run that submitted the job keeps its link."""

    def __init__(self, silence: float = 30.0) -> None:
        super().__init__(task_check_period=INTERVAL)
        self._silence = silence
        self._seen: dict[str, float] = {}
        self._link: Link | None = None
        self._incoming: queue.Queue[tuple[dict[str, Any], Content] | None] = queue.Queue()
        self._outgoing: queue.Queue[tuple[dict[str, Any], Content] | None] = queue.Queue()
        self._shared: Content = b""
        self._tasks: dict[int, Task] = {}
        """Tasks without an answer, by the run's number for them."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Call the run."""
        root = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        courier.register(root)
        gc.freeze()  # what is loaded now stays: whoever tidies up later has little to look at
        try:
            self._link = call(root)
        except Closed as error:
            self.system_panic(str(error), fl_ctx)
        told = self.communicator.client_is_active

        def active(client_name: str, reason: str, fl_ctx: FLContext) -> None:
            self._seen[client_name] = time.monotonic()
            told(client_name, reason, fl_ctx)

        self.communicator.client_is_active = active
        # in the end it would import PyTorch to ask for tensors on their way: none ever are, bodies are bytes
        self.communicator._cleanup_inflight_tensor_downloads = lambda fl_ctx: None

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Pass tasks on until the run says that it is done, or goes away."""
        link = self._link
        if link is None:
            return
        for work in (self._read, self._write):
            threading.Thread(target=work, args=(link,), daemon=True).start()
        names = sorted(client.name for client in fl_ctx.get_engine().get_clients())
        self._outgoing.put(({"kind": "hello", "job": fl_ctx.get_job_id(), "sites": names}, b""))
        while not abort_signal.triggered:
            self._give_up_silent(fl_ctx)
            try:
                message = self._incoming.get(timeout=0.2)
            except queue.Empty:
                continue
            if message is None or message[0]["kind"] == "end":
                break
            self._act(*message, fl_ctx)
            del message
        self.cancel_all_tasks(fl_ctx=fl_ctx)

    def _act(self, header: dict[str, Any], payload: Content, fl_ctx: FLContext) -> None:
        kind = header["kind"]
        if kind == "shared":
            self._shared = payload
        elif kind == "task":
            self._send(header["task"], header["party"], header["phase"], payload, fl_ctx)
        elif kind == "cancel" and header["task"] in self._tasks:
            self.cancel_task(self._tasks.pop(header["task"]), fl_ctx=fl_ctx)

    def _give_up_silent(self, fl_ctx: FLContext) -> None:
        long_ago = time.monotonic() - self._silence
        for number, task in list(self._tasks.items()):
            if self._seen.get(task.targets[0], 0) < long_ago and self._tasks.pop(number, None):
                self.cancel_task(task, fl_ctx=fl_ctx)
                self._fail(number, f"its process reported nothing for {self._silence:g} s", gone=True)

    def _send(self, number: int, party: str, phase: str, own: Content, fl_ctx: FLContext) -> None:
        data = Shareable()
        data[OWN], data[SHARED] = own, self._shared

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            self._pass_on(number, result)

        def done(task: Task, fl_ctx: FLContext) -> None:
            if self._tasks.pop(number, None) is not None and task.completion_status != TaskCompletionStatus.OK:
                self._fail(number, f"its task ended: {task.completion_status}", gone=True)

        task = Task(name=phase, data=data, result_received_cb=received, task_done_cb=done)
        self._tasks[number] = task
        self._seen[party] = time.monotonic()
        self.send(task=task, fl_ctx=fl_ctx, targets=[party])

    def _pass_on(self, number: int, result: Shareable) -> None:
        self._tasks.pop(number, None)
        content = result.pop(ANSWER, None)
        if isinstance(content, bytes | Body):
            self._outgoing.put(({"kind": "answer", "task": number}, content))
        else:
            reason = str(result.get(FAILED) or f"its site answered {result.get_return_code('nothing')}")
            self._fail(number, reason, failure=_kind_in(result))

    def _fail(self, number: int, reason: str, gone: bool = False, failure: str = "") -> None:
        header = {"kind": "failure", "task": number, "reason": reason, "gone": gone, "failure": failure}
        self._outgoing.put((header, b""))

    def _read(self, link: Link) -> None:
        try:
            while True:
                self._incoming.put(link.receive())
        except (Closed, ValueError, KeyError):
            self._incoming.put(None)

    def _write(self, link: Link) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                header, content = message
                if isinstance(content, Body):
                    link.send_file(header, content)
                else:
                    link.send(header, [content])
                del message, content
        except Closed:
            self._incoming.put(None)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A late answer counts for nothing."""
        self.log_info(fl_ctx, f"late answer of {client.name} to {task_name} dropped")

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Let go of the link."""
        self._outgoing.put(None)
        if self._link is not None:
            self._link.close()


def _kind_in(result: Shareable) -> str:
    """What a site says its failure is; whatever else it sends is for the run to judge."""
    headers = result.get(ReservedHeaderKey.HEADERS)
    return str(headers.get(KIND, "")) if isinstance(headers, dict) else ""
