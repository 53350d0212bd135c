"""What runs a method: guard, aggregation, party state, checkpoints, the round loop and the transports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedvisage.core.lazy import lazily

if TYPE_CHECKING:
    from fedvisage.federation.host import LOCAL_MODEL, Host
    from fedvisage.federation.in_process import InProcess, MakeHost, Workers
    from fedvisage.federation.rounds import Event, Federation, Observe
    from fedvisage.federation.store import StateStore
    from fedvisage.federation.trackers import extra_trackers
    from fedvisage.federation.transport import Failure, Transport
else:
    __getattr__ = lazily(
        __name__,
        {
            **dict.fromkeys(("LOCAL_MODEL", "Host"), "fedvisage.federation.host"),
            **dict.fromkeys(("InProcess", "MakeHost", "Workers"), "fedvisage.federation.in_process"),
            **dict.fromkeys(("Event", "Federation", "Observe"), "fedvisage.federation.rounds"),
            "StateStore": "fedvisage.federation.store",
            "extra_trackers": "fedvisage.federation.trackers",
            **dict.fromkeys(("Failure", "Transport"), "fedvisage.federation.transport"),
        },
    )

__all__ = [
    "LOCAL_MODEL",
    "Event",
    "Failure",
    "Federation",
    "Host",
    "InProcess",
    "MakeHost",
    "Observe",
    "StateStore",
    "Transport",
    "Workers",
    "extra_trackers",
]
