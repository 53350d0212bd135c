"""Bodies over NVFlare: the receiver fetches them block by block, so that neither side holds a second copy.

NVFlare's own way of sending large objects, for one more type: `Body`. What arrives is written where `register` says, at
the server into a file, at a party into memory.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.streaming.download_service import Consumer, Downloadable, ProduceRC, download_object
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.decomposers.via_downloader import ViaDownloaderDecomposer

from fedvisage.federation.nvflare.body import Body

BLOCK = 2 << 20
TIDY = 4 * BLOCK
"""Bytes after which the server looks for blocks that are done with: NVFlare leaves each in a reference cycle."""
DOT = 200
"""NVFlare's number for how a body travels; its own are below ten, and the largest possible is 255."""

Place = dict[str, Any]
"""Which block: the body's name, its size, the block's start and length."""


class Bodies(Downloadable):
    """The bodies of one message, at their sender."""

    def __init__(self, bodies: dict[str, Body], tidy: bool = False) -> None:
        """`tidy`: let go of blocks that have left; see `TIDY`."""
        super().__init__(bodies)
        self._tidy = tidy
        self._bodies = dict(bodies)
        self._names = list(bodies)

    def produce(self, state: Place | None, requester: str) -> tuple[str, bytes | None, Place]:
        """The block after the one that `state` describes."""
        name, start = self._after(state)
        if name is None:
            return ProduceRC.EOF, None, {}
        if self._tidy and start % TIDY == 0:
            gc.collect()
        body = self._bodies[name]
        data = body.read(start, BLOCK)
        return ProduceRC.OK, data, {"name": name, "size": body.size, "start": start, "count": len(data)}

    def _after(self, state: Place | None) -> tuple[str | None, int]:
        if not state:
            return self._names[0], 0
        name, end = str(state["name"]), int(state["start"]) + int(state["count"])
        if end < self._bodies[name].size:
            return name, end
        following = self._names.index(name) + 1
        return (self._names[following], 0) if following < len(self._names) else (None, 0)

    def release(self) -> None:
        """Everybody has them."""
        self.base_obj = None
        self._bodies = {}


class Intake(Consumer):
    """The bodies of one message, at their receiver."""

    supports_pipelining = True

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        self._ends: dict[str, int] = {}
        self.bodies: dict[str, Body] = {}
        self.error: str | None = None

    def consume(self, ref_id: str, state: Place, data: bytes) -> Place:
        """Put a block in its place; blocks come in order."""
        name, size, start = str(state["name"]), int(state["size"]), int(state["start"])
        if name not in self.bodies:
            self.bodies[name] = Body.room(size, self._folder)
        body, end = self.bodies[name], self._ends.get(name, 0)
        if size != body.size or start != end or start + len(data) > size or not data:
            raise ValueError(f"block {start:,} of {size:,} bytes where {end:,} was due")
        body.write(start, data)
        self._ends[name] = end + len(data)
        if self._folder is not None and start % TIDY == 0:
            gc.collect()
        return state

    def download_completed(self, ref_id: str) -> None:
        """See that nothing is missing."""
        if any(body.size != self._ends[name] for name, body in self.bodies.items()):
            raise ValueError("a body ended early")

    def download_failed(self, ref_id: str, reason: str) -> None:
        """Keep the reason."""
        self.error, self.bodies = reason, {}


class BodyDecomposer(ViaDownloaderDecomposer):
    """What NVFlare asks for a type that is fetched."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(BLOCK, "fedvisage_")
        self._folder = folder

    def supported_type(self) -> type[Body]:
        """The type."""
        return Body

    def get_download_dot(self) -> int:
        """The number of the way."""
        return DOT

    def to_downloadable(self, items: dict[str, Body], max_chunk_size: int, fobs_ctx: dict[str, Any]) -> Bodies:
        """What the receiver fetches from."""
        return Bodies(items, tidy=self._folder is not None)

    def download(self, from_fqcn: str, ref_id: str, **how: Any) -> tuple[str | None, dict[str, Body]]:
        """Fetch the bodies of a message."""
        intake = Intake(self._folder)
        download_object(from_fqcn=from_fqcn, ref_id=ref_id, consumer=intake, **how)
        return intake.error, intake.bodies

    def native_decompose(self, target: Body, manager: Any = None) -> bytes:
        """All bytes within the message, where there is nobody to fetch from."""
        return target.read(0, target.size)

    def native_recompose(self, data: bytes, manager: Any = None) -> Body:
        """The same, read."""
        body = Body.room(len(data), self._folder)
        body.write(0, data)
        return body


def register(folder: Path | None) -> None:
    """Let bodies travel in this process; those that arrive are kept in files of `folder`, or in memory."""
    fobs.register(BodyDecomposer(folder))
