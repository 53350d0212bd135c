"""What the benchmarks share: rows, timing side by side, and small federations without a run around them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

from fedvisage.build import CACHE, START, HostMaker, Parts, make_transport, open_faces
from fedvisage.config import Recipe
from fedvisage.core.codec import save_state
from fedvisage.core.memory import give_back
from fedvisage.core.parcel import BACKBONE, BUFFERS
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.partition import make_partition
from fedvisage.federation import Event, Federation
from fedvisage.models import Backbone, create_backbone
from fedvisage.training import rates_of

Scale = Literal["smoke", "normal", "full"]
"""A few steps to see that it runs, ten minutes for everything, or as large as it gets."""


@dataclass(frozen=True)
class Row:
    """One line of the results: ours against a reference, in the same run."""

    name: str
    ours: float
    reference: float
    ratio: float
    unit: str
    memory_mb: float
    load: float
    peer: str
    limit: str

    @staticmethod
    def of(
        name: str, ours: float, reference: float, unit: str, peer: str, limit: str, ratio: float | None = None
    ) -> Row:
        ratio = ours / reference if ratio is None else ratio
        return Row(name, ours, reference, ratio, unit, peak_mb(), os.getloadavg()[0], peer, limit)

    def table(self) -> dict[str, Any]:
        return asdict(self)


def peak_mb() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_above(work: Callable[[], object]) -> float:
    """MB by which the process grows, at most, while `work` runs; what was freed before is given back first."""
    give_back()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    work()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    return int(Path("/proc/self/status").read_text("utf-8").split(f"{field}:")[1].split()[0]) / 1024


def memory_row(name: str, mb: float) -> Row:
    """A row for what is held beside the inputs, against the 1 GB it may be."""
    return Row.of(f"memory, {name}", mb, 1000.0, "MB", "1 GB above the inputs", "< 1")


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def side_by_side(
    ours: Callable[[], float], reference: Callable[[], float], times: int, *, warm: bool = True
) -> tuple[float, float, float]:
    """Medians of both, and the median of the ratios of neighbouring measurements, after one that does not count."""
    if warm:
        ours(), reference()
    pairs = [(ours(), reference()) for _ in range(times)]
    return median(p[0] for p in pairs), median(p[1] for p in pairs), median(p[0] / p[1] for p in pairs)


def make_model(recipe: Recipe) -> Backbone:
    """The recipe's network."""
    name, size = recipe.backbone.name, recipe.backbone.embedding_size
    return create_backbone(name, embedding_size=size, image_size=recipe.faces.size, generator=Streams(1).torch("model"))


@contextmanager
def federation(recipe: Recipe, parts: Parts, watch: Callable[[Event], None]) -> Iterator[Federation]:
    """A federation of the recipe in a temporary folder, ready to run; its transport is warm."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        faces = open_faces(recipe, folder / CACHE)
        partition = make_partition(faces, recipe.partition, Streams(1))
        model = make_model(recipe)
        weights = Weights(model)
        initial = {BACKBONE: snapshot(weights.backbone), BUFFERS: snapshot(weights.buffers), "batchnorm": {}}
        save_state(folder / START, initial)
        maker = HostMaker(recipe, parts.components, partition, folder, folder)
        transport = make_transport(maker, recipe.federation, len(partition.parties))
        roles = {party: share.role for party, share in partition.parties.items()}
        try:
            yield Federation(
                parts.method,
                parts.weighting,
                parts.others,
                roles,
                transport,
                recipe.federation,
                folder,
                Streams(1),
                initial,
                model.metadata.embedding_size,
                watch=watch,
                rates=rates_of(recipe.training, recipe.federation.rounds),
            )
        finally:
            transport.close()


class Clock:
    """Times each exchange of the training phase, from the end of the one before to its absorption."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self._since = time.perf_counter()

    def __call__(self, event: Event) -> None:
        if event.kind == "absorbed" and event.phase == "train":
            self.rounds.append(time.perf_counter() - self._since)
        elif event.kind == "saved":
            self._since = time.perf_counter()
