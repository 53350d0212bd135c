"""A party's private state on its own disk, in generations.

Each answer that changes the state writes a new generation, named by its stamp. The server says with the next parcel
which generation it accepted last; the party starts from that one and forgets the others, so an answer that was
refused, late or lost in a crash is rolled back, and a resumed run continues exactly.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from fedvisage.core.codec import State, load_state, save_new_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Stamp

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION = re.compile(r"\d{6,}\.[a-z_]+\.\d+\.\d+")


class StateStore:
    """Generations of the parties' states below one folder."""

    def __init__(self, folder: Path, durable: bool = False) -> None:
        self.folder, self.durable = folder, durable

    def load(self, party: str, generation: str) -> State:
        """The state of a generation; empty before the first."""
        return load_state(self._path(party, generation)) if generation else {}

    def save(self, party: str, stamp: Stamp, state: State, base: str) -> str:
        """Write a new generation beside `base`, the one it grew from; any other is forgotten."""
        generation = str(stamp)
        path = self._path(party, generation)
        kept = self._find(party)
        save_new_state(path, state, self.durable)
        for old in kept - {generation, base}:
            with suppress(FileNotFoundError):
                os.unlink(self._path(party, old))
        return generation

    def _find(self, party: str) -> set[str]:
        """Generations on disk; makes the party's folder where there is none."""
        folder = f"{self.folder}/{party}"
        try:
            found = os.listdir(folder)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            return set()
        names = (name.removesuffix(".safetensors") for name in found)
        return {name for name in names if _GENERATION.fullmatch(name)}

    def _path(self, party: str, generation: str) -> str:
        if not _SAFE.fullmatch(party) or not _GENERATION.fullmatch(generation):
            raise FedVisageError(f"'{party}' / '{generation}' is not the name of a party and a generation")
        return f"{self.folder}/{party}/{generation}.safetensors"
