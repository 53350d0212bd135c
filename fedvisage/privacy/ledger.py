"""The record of every parcel that crossed: round, attempt, party, direction, group, tensor names, bytes.

One JSON object per line. Tensor names and shapes of a group are written once, as a `layout` line, and referred to by
number afterwards, so that a ledger of ten thousand parties stays readable. The ledger is only ever appended to: what
was sent before an interruption was sent, and stays recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import Tensor

from fedvisage.core.errors import LONGEST_NAME, FedVisageError, shortened
from fedvisage.core.flat import layout
from fedvisage.core.parcel import STATISTICS, Parcel, Tensors, group_bytes

MOST_NAMES = 10_000
"""Names of a refused parcel that are written down."""


class Ledger:
    """Appends a line per parcel and group to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._layouts: dict[tuple[Any, ...], int] = {}
        if path.exists():
            _drop_torn_line(path)
            for row in read_ledger(path):
                if "layout" in row:
                    names = tuple((name, tuple(shape), kind) for name, shape, kind in row["tensors"])
                    self._layouts[(row["group"], names)] = row["layout"]
        self._file = path.open("a", encoding="utf-8")
        self._seen: dict[int, tuple[Tensors, int, int]] = {}

    def record(self, party: str, direction: Literal["down", "up"], parcel: Parcel, verdict: str = "") -> None:
        """Write down one parcel; `verdict` says why an answer was not counted."""
        if verdict:
            parcel = _recordable(parcel)
        stamp = parcel.stamp
        head = f'{{"round":{stamp.round},"phase":{_json(stamp.phase)},"attempt":{stamp.attempt},'
        head += f'"repeat":{stamp.repeat},' if stamp.repeat else ""
        head += f'"party":{json.dumps(party)},"direction":"{direction}",'
        tail = f',"refused":{json.dumps(verdict)}}}\n' if verdict else "}\n"
        for group, tensors in parcel.tensors.items():
            number, size = self._layout(group, tensors, often=parcel.rest is None)
            self._file.write(f'{head}"group":{_json(group)},"tensors":{number},"bytes":{size}{tail}')
        if parcel.statistics or not parcel.tensors:
            names = _json(tuple(sorted(parcel.statistics)))
            size = 8 * len(parcel.statistics)
            self._file.write(f'{head}"group":"{STATISTICS}","names":{names},"bytes":{size}{tail}')

    def _layout(self, group: str, tensors: Tensors, often: bool) -> tuple[int, int]:
        """Number and bytes of a layout; tensors that are recorded `often` are held until `flush`, and known again."""
        known = self._seen.get(id(tensors))
        if known and known[0] is tensors:
            return known[1], known[2]
        names = tuple(
            (name, shape, str(kind).removeprefix("torch.")) for name, (shape, kind) in layout(tensors).items()
        )
        number = self._layouts.get((group, names))
        if number is None:
            number = self._layouts[(group, names)] = len(self._layouts)
            self._file.write(json.dumps({"layout": number, "group": group, "tensors": names}) + "\n")
        size = group_bytes(tensors)
        if len(self._seen) > 64:
            self._seen.clear()
        if often:
            self._seen[id(tensors)] = (tensors, number, size)
        return number, size

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()
        self._seen.clear()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _recordable(parcel: Parcel) -> Parcel:
    """A refused parcel without what would swell the ledger, or cannot be written into it at all."""
    groups = {shortened(group): _recorded(tensors) for group, tensors in islice(parcel.tensors.items(), MOST_NAMES)}
    numbers = {shortened(name): value for name, value in islice(parcel.statistics.items(), MOST_NAMES)}
    return replace(parcel, tensors=groups, statistics=numbers)


def _recorded(tensors: Tensors) -> Tensors:
    plain = all(len(name) <= LONGEST_NAME and isinstance(tensor, Tensor) for name, tensor in tensors.items())
    if plain and len(tensors) <= MOST_NAMES:
        return tensors
    some = islice(tensors.items(), MOST_NAMES)
    return {shortened(name): tensor for name, tensor in some if isinstance(tensor, Tensor)}


@lru_cache(maxsize=256)
def _json(words: str | tuple[str, ...]) -> str:
    """The few phases, groups and numbers of a run, which every line names again."""
    return json.dumps(words)


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """The ledger's lines as dicts."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                raise FedVisageError(f"{path}, line {number}: not a ledger line") from None


def _drop_torn_line(path: Path) -> None:
    """Cut a last line that a killed process left half-written."""
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.truncate(position)
