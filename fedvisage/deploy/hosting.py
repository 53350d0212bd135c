"""A run whose parties are hosts of their own: who they are, what they are told, and the transport to them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fedvisage.build import FROZEN, START
from fedvisage.config import Federation, Recipe
from fedvisage.core.codec import State, load_state, write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS
from fedvisage.core.parcel import BACKBONE, BUFFERS, CENTRES, Parcel, Stamp, Tensors
from fedvisage.core.weights import snapshot
from fedvisage.deploy.desk import DELIVER, Invitation, digest
from fedvisage.deploy.extra import require_nvflare
from fedvisage.deploy.folder import Deployment, open_deployment
from fedvisage.faces.faceset import Faces
from fedvisage.federation import Event, Transport
from fedvisage.federation.checkpoint import Book
from fedvisage.federation.nvflare.transport import Note, NVFlare
from fedvisage.plugins import check_main
from fedvisage.privacy import Ledger

RUN_ID = "run-id"


class Hosting:
    """The federation that a run meets."""

    def __init__(self, deployment: Deployment, recipe: Recipe, run: Path) -> None:
        self.deployment, self.recipe, self.run = deployment, recipe, run
        self._id = _run_id(run / RUN_ID)
        self._stack = ExitStack()
        self._stack.enter_context(deployment.reserved())
        self._line: NVFlare | None = None

    def transport(self, label: str, public: Faces, settings: Federation, note: Note) -> Transport:
        """The way to the parties for one federation of the run: the recipe's method, or one it is compared with."""
        compared = "" if label == self.recipe.method["name"] else label
        known = digest(public) if len(public) else ""
        start = load_state(self.run / START)
        batchnorm, frozen = snapshot(start["batchnorm"]), snapshot(start.get(FROZEN, {}))
        del start
        run = f"{self._id}-{compared}" if compared else self._id

        def invite(party: str) -> bytes:
            role = self.deployment.roles[party]
            return Invitation(run, self.recipe, compared, role, known, batchnorm, frozen).pack()

        if self._line is None:
            self._line = NVFlare(self.deployment.station)
            self._stack.callback(self._line.close)
        self._line.begin(invite, settings.timeout, note)
        return _Turn(self._line)

    def close(self) -> None:
        """Let others use the federation."""
        self._stack.close()


class _Turn:
    """The line to the parties for one federation; it stays open for the next, and with it the parties' processes."""

    def __init__(self, line: NVFlare) -> None:
        self.exchange = line.exchange

    def close(self) -> None:
        """Nothing to let go of."""


def open_hosting(on: Path | None, recipe: Recipe, run: Path) -> Hosting | None:
    """The federation in the folder `on`, for one run of a recipe; none where its parties are in this process."""
    if (run / "partition.json").exists() and (run / RUN_ID).exists() != (on is not None):
        how = "without --on" if on else "with --on, as it was begun"
        raise FedVisageError(f"{run} was begun with its parties elsewhere: go on {how}")
    if on is None:
        return None
    if recipe.federation.together > 1:
        asked = f"federation.together = {recipe.federation.together}"
        raise FedVisageError(f"{asked} computes parties of one process at once, which hosts are not: set it to 1")
    require_nvflare()
    check_main(recipe, "the parties' hosts")
    deployment = open_deployment(on)
    for name in (str(recipe.method["name"]), *recipe.compare):
        if METHODS[name].pools:
            raise FedVisageError(f"{name} pools images, which real hosts never do; leave it out of the recipe")
    return Hosting(deployment, recipe, run)


def deliver(line: Transport, server: State, book: Book, rounds: int, folder: Path, note: Note) -> None:
    """Give every party the final model; each makes its own of it, from what it keeps to itself."""
    stamp = Stamp(rounds, DELIVER, 0)
    model: dict[str, Tensors] = {group: server[group] for group in (BACKBONE, BUFFERS)}
    model |= {CENTRES: server[CENTRES]} if server.get(CENTRES) else {}
    parcels = {
        party: Parcel(dict(model), stamp=stamp, generation=book.generations.get(party, "")) for party in book.joined
    }
    with Ledger(folder / "ledger.jsonl") as ledger:
        for party, parcel in parcels.items():
            ledger.record(party, "down", parcel)
        for party, answer in line.exchange(parcels):
            if isinstance(answer, Parcel):
                ledger.record(party, "up", answer)
            else:
                note(stamp, f"{party} did not get the model: {answer.reason}")


def noted(folder: Path, watch: Callable[[Event], None]) -> Note:
    """Writes down what befell the transport, where the report finds it, and shows it."""

    def note(stamp: Stamp, text: str) -> None:
        with (folder / "failures.log").open("a", encoding="utf-8") as file:
            file.write(f"round {stamp.round}, {stamp.phase}: {text}\n")
        watch(Event("note", stamp.round, stamp.round, stamp.phase, verdict=text))

    return note


def _run_id(path: Path) -> str:
    """The name under which parties keep their state of this run; a resumed run has the same."""
    if path.exists():
        found = path.read_text("utf-8").strip()
        if not re.fullmatch(r"[0-9a-f]{16}", found):
            raise FedVisageError(f"{path} is damaged: it should hold the run's id")
        return found
    made = secrets.token_hex(8)
    write_atomically(path, [made.encode()])
    return made
