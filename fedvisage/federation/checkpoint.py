"""The run's memory: everything needed to go on after a kill, in one file that is replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.core.codec import State, load_state, save_state, write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Joined
from fedvisage.federation.bounds import History


@dataclass
class Book:
    """What the federation remembers besides the method's server state."""

    step: int = 0
    """Exchanges finished."""
    generations: dict[str, str] = field(default_factory=dict)
    """The party state last accepted, by party."""
    joined: dict[str, Joined] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Parties that could not join, with the reason."""
    norms: list[float] = field(default_factory=list)
    """Median norms of the accepted backbone updates, round by round."""
    history: dict[str, History] = field(default_factory=dict)
    """Norms of the last of them by phase, which the next are compared with."""
    counted: dict[str, list[int]] = field(default_factory=dict)
    """By party: in how many exchanges of training its answer counted, and in how many it was asked for."""
    metrics_bytes: int = 0
    ended: str = ""
    """Why the run ends before its last round; empty where it does not."""
    ended_at: int = 0
    """Exchanges that were finished then."""
    ended_round: int = 0


class Checkpoints:
    """Reads and writes `last.safetensors` in a folder, and counts the attempts at the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "last.safetensors"
        folder.mkdir(parents=True, exist_ok=True)

    def attempt(self) -> int:
        """The number of this attempt, one higher than any before."""
        marker = self.folder / "attempt"
        try:
            number = int(marker.read_text()) + 1 if marker.exists() else 1
        except ValueError:
            raise FedVisageError(f"{marker} is damaged: it should hold a number") from None
        write_atomically(marker, [f"{number}\n".encode()])
        return number

    def save(self, server: State, book: Book) -> None:
        """Replace the checkpoint."""
        joined = {party: [entry.role, entry.samples, entry.classes] for party, entry in book.joined.items()}
        history = {phase: vars(norms) for phase, norms in book.history.items()}
        save_state(self.path, {"server": server, "book": {**vars(book), "joined": joined, "history": history}})

    def load(self) -> tuple[State, Book] | None:
        """The last checkpoint, if there is one."""
        if not self.path.exists():
            return None
        state = load_state(self.path)
        try:
            book: Mapping[str, Any] = state["book"]
            joined = {party: Joined(*values) for party, values in book["joined"].items()}
            history = {phase: History(**norms) for phase, norms in book.get("history", {}).items()}
            return state["server"], Book(**{**book, "joined": joined, "history": history})
        except (KeyError, TypeError) as error:
            raise FedVisageError(f"{self.path} is not a checkpoint of this version: {error}") from None
