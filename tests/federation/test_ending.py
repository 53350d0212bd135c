"""A method may end a run before its last round: the rest is as if the recipe had asked for no more rounds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_overlap import EVERYBODY, Judging
from toy import Outcome, Toy, run_toy

from fedvisage.core.codec import State, flatten
from fedvisage.core.method import Component, Context, Result
from fedvisage.core.parcel import Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer


class Ending(Toy):
    """The toy, which has had enough after a round."""

    after: int = 2

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        if context.round == self.after:
            context.end("converged:\n  the loss\tno longer falls")
        return super().absorb_train(server, result, context)


class Farewell(Component):
    """A phase at the end, which the server's state shows."""

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("bye", "end", sampled=False, keeps_state=False),)

    def plan_bye(self, server: State, cohort: Any, context: Context) -> dict[str, Parcel]:
        return {party: Parcel() for party in cohort}

    def bye(self, party: Any, parcel: Parcel) -> Answer:
        return party.answer()

    def absorb_bye(self, server: State, result: Result, context: Context) -> State:
        return server | {"said goodbye": True}


def same(one: Outcome, other: Outcome) -> bool:
    (tensors, words), (others, other_words) = flatten(one.server), flatten(other.server)
    same_tensors = all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    return words == other_words and tensors.keys() == others.keys() and same_tensors


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_that_its_method_ends_is_one_of_so_many_rounds(
    tmp_path: Path, after: int, overlap: bool, every: int
) -> None:
    """Exchanges that would have run beside the next round run by themselves, and the phases of the end come."""
    more: dict[str, Any] = {"parties": EVERYBODY, "others": [Farewell()]}
    ended = run_toy(
        tmp_path / "a", method=Ending(after=after), weighting=Judging(overlap=overlap, every=every), rounds=6, **more
    )
    short = run_toy(tmp_path / "b", weighting=Judging(overlap=overlap, every=every), rounds=after, **more)
    assert same(ended, short)
    assert ended.server["said goodbye"]
    assert (ended.book.ended, ended.book.ended_round) == ("converged: the loss no longer falls", after)
    assert [event.verdict for event in ended.events if event.kind == "note"] == [
        "the run ends here: converged: the loss no longer falls"
    ]


class Killed(Exception):
    """What a test ends a run with."""


def test_an_ended_run_that_is_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    more: dict[str, Any] = {"parties": EVERYBODY, "others": [Farewell()], "rounds": 6}
    whole = run_toy(tmp_path / "whole", method=Ending(), weighting=Judging(), **more)
    saved = sum(event.kind == "saved" for event in whole.events)
    for stop in range(1, saved):
        seen = 0

        def kill(event: Any, stop: int = stop) -> None:
            nonlocal seen
            seen += event.kind == "saved"
            if seen == stop:
                raise Killed

        folder = tmp_path / "again"
        with pytest.raises(Killed):
            run_toy(folder, method=Ending(), weighting=Judging(), watch=kill, **more)
        assert same(run_toy(folder, method=Ending(), weighting=Judging(), **more), whole)
        shutil.rmtree(folder)
