"""A party's private state on its own disk, in generations.

Each answer that changes the state writes a new generation, named by its stamp. The server says with the next parcel
which generation it accepted last; the party starts from that one and forgets the others, so an answer that was
refused, late or lost in a crash is rolled back, and a resumed run continues exactly.

Small states of all parties share one SQLite file (ten thousand parties do not make ten thousand files); a large one,
such as a model of the party's own, is a safetensors file under the party's name. A killed process leaves both whole.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from sys import intern
from time import monotonic, sleep

from fedvisage.core.codec import State, load_state, read_state, save_new_state, state_bytes, state_size
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import Stamp

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION = re.compile(r"\d{6,}\.[a-z_]+\.\d+\.\d+")
PATIENCE = 60.0
"""Seconds to wait for another worker to finish with the database."""
CACHE_KB = 256
"""Pages of the database that are held: parties come in the order of their names, so the next is seldom far."""
LARGE = 1 << 20
"""States from this many bytes on are files of their own."""


class StateStore:
    """Generations of the parties' states below one folder."""

    def __init__(self, folder: Path, durable: bool = False) -> None:
        self.folder, self.durable = folder, durable

    def load(self, party: str, generation: str) -> State:
        """The state of a generation; empty before the first."""
        if not generation:
            return {}
        with self._errors():
            row = self._database.execute(_FIND, (party, generation)).fetchone()
        if row is None:
            raise FedVisageError(f"{self._path}: no state '{generation}' of {party}; was the folder changed?")
        return (
            load_state(self._file(party, generation)) if row[0] is None else read_state(bytearray(row[0]), self._path)
        )

    def save(self, party: str, stamp: Stamp, state: State, base: str) -> str:
        """Write a new generation beside `base`, the one it grew from; any other is forgotten."""
        generation = intern(str(stamp))  # all parties of an exchange have the same, and the server keeps them all
        if not _SAFE.fullmatch(party):
            raise FedVisageError(f"'{party}' cannot name a party: letters, digits, dots, dashes and underscores only")
        small = state_bytes(state) if state_size(state) < LARGE else None
        if small is None:
            path = self._file(party, generation)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_new_state(path, state, self.durable)
        with self._errors(), self._database as database:
            database.execute("BEGIN IMMEDIATE")
            forgotten = database.execute(_OTHERS, (party, generation, base)).fetchall()
            database.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (party, generation, small))
            if forgotten:
                database.execute("DELETE" + _OTHERS[len(_SELECT) :], (party, generation, base))
        if small is None or any(is_file for _, is_file in forgotten):
            self._remove_files(party, {generation, base})
        return generation

    def _remove_files(self, party: str, kept: set[str]) -> None:
        """Remove the files of all other generations, those that a killed process left behind among them."""
        for path in (self.folder / party).glob("*.safetensors"):
            if path.stem not in kept and _GENERATION.fullmatch(path.stem):
                path.unlink(missing_ok=True)

    def generations(self, party: str) -> list[str]:
        """The generations that are kept of a party, oldest first."""
        with self._errors():
            rows = self._database.execute("SELECT generation FROM state WHERE party = ? ORDER BY 1", (party,))
            return [row[0] for row in rows]

    def close(self) -> None:
        """Let go of the database."""
        if "_database" in self.__dict__:
            self._database.close()
            del self.__dict__["_database"]

    @cached_property
    def _path(self) -> Path:
        return self.folder / "states.sqlite"

    def _file(self, party: str, generation: str) -> Path:
        return self.folder / party / f"{generation}.safetensors"

    @cached_property
    def _database(self) -> sqlite3.Connection:
        self.folder.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, isolation_level=None, timeout=PATIENCE)
        _use_wal(database)
        database.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'NORMAL'}")
        database.execute(f"PRAGMA cache_size = -{CACHE_KB}")
        database.execute(_TABLE)
        return database

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise FedVisageError(f"cannot use the party states in {self._path}: {error}") from error


def _use_wal(database: sqlite3.Connection) -> None:
    """Let readers and a writer work at once. Workers open the file together, and this step alone does not queue."""
    give_up = monotonic() + PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > give_up:
                raise
            sleep(0.005)


_TABLE = """CREATE TABLE IF NOT EXISTS state (
    party TEXT, generation TEXT, data BLOB, PRIMARY KEY (party, generation)
) WITHOUT ROWID"""
_FIND = "SELECT data FROM state WHERE party = ? AND generation = ?"
_SELECT = "SELECT generation, data IS NULL"
_OTHERS = f"{_SELECT} FROM state WHERE party = ? AND generation NOT IN (?, ?)"
