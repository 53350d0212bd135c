"""What runs inside NVFlare for the benchmark: parties that do nothing, on our wire and on NVFlare's own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers import numpy_decomposers

from fedvisage.core.parcel import Parcel
from fedvisage.deploy.party import open_party_folder
from fedvisage.federation.nvflare.executor import Desk, PartyExecutor
from fedvisage.federation.nvflare.link import Closed, call
from fedvisage.privacy import Ledger

TENSORS = 60


class EchoDesk:
    """Answers with the tensors it got, after policy and ledger have seen them as in a real run."""

    def __init__(self, site: Path, name: str) -> None:
        self.name, self.folder = name, open_party_folder(site.parent)
        self.folder.log.mkdir(exist_ok=True)
        self.ledger = Ledger(self.folder.log / "benchmark.jsonl")

    def handle(self, parcel: Parcel) -> Parcel:
        self.ledger.record(self.name, "down", parcel)
        for tensors in parcel.tensors.values():
            for tensor in tensors.values():
                tensor += 1
        self.folder.policy.check(parcel)
        self.ledger.record(self.name, "up", parcel)
        self.ledger.flush()
        return parcel

    def close(self) -> None:
        self.ledger.close()


class EchoParty(PartyExecutor):
    """Our wire without training."""

    def open_desk(self, site: Path, name: str, message: bytes) -> Desk:
        return EchoDesk(site, name)


class BareParty(Executor):  # type: ignore[misc]
    """NVFlare's own wire: arrays in, arrays out."""

    def __init__(self) -> None:
        super().__init__()
        numpy_decomposers.register()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        answer = Shareable()
        answer["weights"] = {name: array + 1 for name, array in shareable["weights"].items()}
        return answer


class BareController(Controller):  # type: ignore[misc]
    """Exchanges arrays whenever the benchmark asks for it, and says how long that took."""

    def __init__(self) -> None:
        super().__init__(task_check_period=0.05)
        numpy_decomposers.register()

    def start_controller(self, fl_ctx: Any) -> None:
        self.link = call(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        names = [client.name for client in fl_ctx.get_engine().get_clients()]
        self.link.send({"kind": "hello", "sites": names})
        try:
            while (order := self.link.receive()[0])["kind"] == "go":
                each = order["parameters"] // TENSORS
                weights = {f"w{n}": np.full(each, float(n), np.float32) for n in range(TENSORS)}
                begin = time.perf_counter()
                total = self.exchange(weights, names, abort_signal, fl_ctx)
                self.link.send({"seconds": time.perf_counter() - begin, "sum": total})
        except Closed:
            pass

    def exchange(self, weights: dict[str, Any], names: list[str], abort_signal: Any, fl_ctx: Any) -> float:
        sums: list[float] = []

        def received(client_task: Any, fl_ctx: Any) -> None:
            sums.append(float(client_task.result["weights"]["w1"][0]))
            client_task.result = None

        data = Shareable()
        data["weights"] = weights
        task = Task(name="train", data=data, result_received_cb=received)
        self.broadcast_and_wait(task, fl_ctx, names, len(names), abort_signal=abort_signal)
        return sum(sums)

    def stop_controller(self, fl_ctx: Any) -> None:
        self.link.close()

    def process_result_of_unknown_task(self, *_: Any) -> None:
        pass
