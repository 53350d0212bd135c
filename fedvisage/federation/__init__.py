"""What runs a method: guard, aggregation, party state, checkpoints, the round loop and the transports."""

from fedvisage.federation.host import LOCAL_MODEL, Host
from fedvisage.federation.in_process import InProcess, MakeHost, Workers
from fedvisage.federation.rounds import Event, Federation, Observe
from fedvisage.federation.store import StateStore
from fedvisage.federation.trackers import extra_trackers
from fedvisage.federation.transport import Failure, Transport

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
