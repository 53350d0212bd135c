"""Class embeddings of single parties: kept by the core, seen by the regulariser, and sent to owners by the core alone.

At the commit before, a component that sent one party's class embeddings to everybody ran to the end, and every method
and weighting found all of them in the server state and in the answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from methods.small import WORK, federate
from torch import Tensor

from fedvisage.core.assembly import Assembly
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Context, Joined, Party, Regulariser, Result, Weighting
from fedvisage.core.parcel import BACKBONE, EMBEDDINGS, PRIVATE_EMBEDDINGS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer
from fedvisage.methods.fedavg import FedPE


class Numbered(Regulariser):
    """Every person's row becomes its number among all, which tells whose it is."""

    def step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        return torch.arange(float(len(rows)))[:, None].expand_as(rows).clone()


def holds_rows(thing: Any) -> bool:
    """Whether class embeddings are anywhere in what a hook is given."""
    if isinstance(thing, Mapping):
        return PRIVATE_EMBEDDINGS in thing or any(map(holds_rows, thing.values()))
    if isinstance(thing, Parcel | Result):
        parts = vars(thing) if isinstance(thing, Result) else {"tensors": thing.tensors}
        return holds_rows({**parts})
    return False


class Looks(FedPE):
    """Looks for rows in every hook of the server half, and sends down what it finds."""

    found: ClassVar[list[str]] = []

    def look(self, where: str, *things: Any) -> None:
        Looks.found += [where for thing in things if holds_rows(thing)]

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        self.look("plan", server, context.initial)
        return super().plan_train(server, cohort, context)

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        self.look("absorb", server, result)
        return super().absorb_train(server, result, context)

    def expect(self, phase: Phase, server: State, party: str, parcel: Parcel, context: Context) -> Any:
        self.look("expect", server)
        return super().expect(phase, server, party, parcel, context)


class Watches(Weighting):
    """The same for a weighting."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        Looks.found += ["weight"] if holds_rows(server) else []
        return 1.0

    def keep(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        Looks.found += ["keep"] if holds_rows(server) or holds_rows(result) else []
        return server


def test_no_hook_of_the_server_sees_a_row_and_every_party_gets_its_own(tmp_path: Path) -> None:
    Looks.found.clear()
    ran = federate(tmp_path, Looks(training=WORK, embeddings="fixed"), others=[Numbered()], weighting=Watches())
    assert Looks.found == []
    assert ran.party("ann")[EMBEDDINGS][:, 0].tolist() == [0, 1]
    assert ran.party("bob")[EMBEDDINGS][:, 0].tolist() == [2, 3, 4]
    assert ran.server[PRIVATE_EMBEDDINGS]["rows"][:, 5].tolist() == [0, 1, 2, 3, 4]


class Broadcasts(FedPE):
    """One party's rows, kept at the party half, are planned for everybody."""

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        parcels = super().plan_train(server, cohort, context)
        for parcel in parcels.values():
            parcel.tensors[PRIVATE_EMBEDDINGS] = {"own": torch.zeros(2, 128)}
        return parcels


def test_a_method_that_names_recipients_of_rows_is_stopped_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="class embeddings to ann, which the core alone does; nothing was sent"):
        federate(tmp_path, Broadcasts(training=WORK), others=[Numbered()])
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert {row["phase"] for row in rows if "phase" in row} == {"join"}


class PutsBack(FedPE):
    """The server's state is returned with rows of the method's own making in the core's place."""

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        forged = {"rows": torch.full((5, 128), 9.0), "heard": torch.ones(5, dtype=torch.bool)}
        return super().absorb_train(server, result, context) | {PRIVATE_EMBEDDINGS: forged}


def test_rows_that_a_method_puts_into_its_state_are_not_the_cores(tmp_path: Path) -> None:
    ran = federate(tmp_path, PutsBack(training=WORK, embeddings="fixed"), others=[Numbered()])
    assert ran.server[PRIVATE_EMBEDDINGS]["rows"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert ran.party("bob")[EMBEDDINGS][:, 0].tolist() == [2, 3, 4]


class Declares(FedPE):
    """Rows are declared as the method's own, one by one and for owners of its choice."""

    up: bool

    def phases(self) -> tuple[Phase, ...]:
        join, _ = super().phases()
        if self.up:
            return join, Phase("train", up={PRIVATE_EMBEDDINGS: "individual"}, trains=True)
        return join, Phase("train", down={BACKBONE: "owner"}, trains=True)


@pytest.mark.parametrize("up", [True, False])
def test_only_the_core_has_rows_one_by_one_and_groups_for_owners(up: bool) -> None:
    with pytest.raises(FedVisageError, match="kept by the core and shown to a regulariser only"):
        Assembly([Declares(up=up)])


class Misshapes(Regulariser):
    """A step that forgets the last person."""

    def step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        return rows[:-1]


def test_a_step_returns_as_many_rows_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"regulariser Misshapes returned rows \(4, 128\)"):
        federate(tmp_path, FedPE(training=WORK), others=[Misshapes()])
    with pytest.raises(FedVisageError, match="one regulariser at most, not Misshapes and Numbered"):
        Assembly([FedPE(), Misshapes(), Numbered()])


class TrainsOn(FedPE):
    """The class embeddings are changed after the answer was made."""

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        party.state[EMBEDDINGS] += 5.0
        return answer


class Adds(Regulariser):
    def step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        return rows + owner[:, None]


def test_rows_are_sealed_with_the_answer(tmp_path: Path) -> None:
    rows = [
        federate(tmp_path / kind.__name__, kind(training=WORK), others=[Adds()], rounds=1).server[PRIVATE_EMBEDDINGS]
        for kind in (FedPE, TrainsOn)
    ]
    assert torch.equal(rows[0]["rows"], rows[1]["rows"])
