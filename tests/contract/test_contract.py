"""What holds for every registered method: a newcomer is one file and one recipe, and is tested by being registered.

Each method runs through `fedvisage.run` at the smallest size that is still a federation: three parties, two rounds, a
network of 32 x 32 pixels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from pydantic import Field
from tiny_runs import COMBINED, DOMAINS, tiny_recipe

import fedvisage as fv
from fedvisage.build import build_parts, resolve
from fedvisage.config import Recipe
from fedvisage.core.codec import State, flatten, load_state
from fedvisage.core.method import METHODS, Context, Party, Result
from fedvisage.core.parcel import (
    BACKBONE,
    BUFFERS,
    GROUPS,
    OPTIMISER,
    PERSONAL,
    PRIVATE_EMBEDDINGS,
    STATISTICS,
    Parcel,
    Tensors,
)
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer
from fedvisage.federation import StateStore
from fedvisage.methods.fedavg import FedAvg
from fedvisage.privacy import declared_groups, read_ledger

NEWCOMER = "toy-server-momentum"


class ServerMomentum(FedAvg):
    """A sixth method: FedAvg whose server keeps a momentum, sends it down for all to see, and has a personal bias."""

    summary: ClassVar[str] = "for the contract's tests"

    classifier: str = "private"  # type: ignore[assignment]
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5

    def phases(self) -> tuple[Phase, ...]:
        join, train = super().phases()
        more = {"down": {**train.down, OPTIMISER: "all"}, "may_report": ("visits",)}
        return join, Phase(**{**vars(train), **more})

    def start(self, context: Context) -> State:
        server = super().start(context)
        return server | {OPTIMISER: {name: torch.zeros_like(t) for name, t in server[BACKBONE].items()}}

    def train(self, party: Party, parcel: Parcel) -> Answer:
        answer = super().train(party, parcel)
        party.state["visits"] = party.state.get("visits", 0) + 1
        return answer.more(visits=party.state["visits"])

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        old, new = server[BACKBONE], result.reduced[BACKBONE]
        momentum = {name: self.beta * server[OPTIMISER][name] + (new[name] - old[name]) for name in old}
        stepped = {name: old[name] + momentum[name] for name in old}
        return server | result.reduced | {BACKBONE: stepped, OPTIMISER: momentum}

    def personal(self, state: State) -> Tensors | None:
        return None


@pytest.fixture(scope="module", autouse=True)
def newcomer() -> Iterator[None]:
    """Registered for these tests only: other tests list the methods that come with the package."""
    METHODS.register(NEWCOMER)(ServerMomentum)
    yield
    METHODS._items.pop(NEWCOMER)


@dataclass(frozen=True)
class Ran:
    """A finished run of one method."""

    run_name: str
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        return self.run_name.partition(" + ")[0]

    def server(self) -> State:
        return load_state(self.folder / "checkpoints" / "last.safetensors")["server"]

    def generations(self) -> Mapping[str, str]:
        return load_state(self.folder / "checkpoints" / "last.safetensors")["book"]["generations"]

    def parties(self) -> dict[str, State]:
        store = StateStore(self.folder / "parties")
        return {party: store.load(party, generation) for party, generation in self.generations().items()}

    def ledger(self) -> list[dict[str, Any]]:
        return list(read_ledger(self.folder / "ledger.jsonl"))


def run(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Ran:
    recipe = tiny_recipe(name, folder.parent / f"{folder.name}.toml", changes)
    fv.run(recipe, out=folder)
    return Ran(name, resolve(recipe), folder)


@pytest.fixture(scope="module", params=[*METHODS, NEWCOMER, *COMBINED])
def ran(request: pytest.FixtureRequest, newcomer: None, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(request.param, tmp_path_factory.mktemp(request.param) / "run")


def components(ran: Ran) -> Sequence[Any]:
    return build_parts(ran.recipe).components


def bits(state: State) -> tuple[dict[str, bytes], Any]:
    tensors, rest = flatten(state)
    return {name: t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name, t in tensors.items()}, rest


def test_the_newcomer_is_among_the_methods() -> None:
    assert NEWCOMER in fv.list_methods()
    assert {"fedavg", "fedpe", "fedprox", "alone", "central"} <= set(fv.list_methods())


def test_every_method_says_in_one_line_what_it_is(ran: Ran) -> None:
    summary = METHODS[ran.name].summary
    assert 10 < len(summary) < 120
    assert "\n" not in summary


def test_what_crossed_is_what_was_declared(ran: Ran) -> None:
    """Per phase and direction: the ledger's groups are declared, and every declared group crossed."""
    crossed: dict[str, dict[str, set[str]]] = {}
    for row in ran.ledger():
        if "layout" not in row and (row["bytes"] or row["group"] != STATISTICS):
            crossed.setdefault(row["phase"], {"down": set(), "up": set()})[row["direction"]].add(row["group"])
    declared = {
        phase: {direction: set(groups) for direction, groups in directions.items()}
        for phase, directions in declared_groups(components(ran)).items()
    }
    assert crossed == declared


def test_every_group_is_one_of_the_seven_and_nothing_personal_leaves(ran: Ran) -> None:
    groups = {row["group"] for row in ran.ledger()}
    assert groups <= set(GROUPS) - {PERSONAL}


def test_no_answer_was_refused(ran: Ran) -> None:
    rows = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert all(row.get("absent", {}) == {} for row in rows)
    assert not (ran.folder / "failures.log").exists()


def test_state_is_plain_data_on_both_sides(ran: Ran) -> None:
    """It was written and read back already; here: reading it back and writing it again changes nothing."""
    for state in (ran.server(), *ran.parties().values()):
        tensors, rest = flatten(state)
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
        assert json.loads(json.dumps(rest)) == rest


def test_a_second_run_gives_the_same_bits(ran: Ran, tmp_path: Path) -> None:
    again = run(ran.run_name, tmp_path / "again")
    assert bits(again.server()) == bits(ran.server())
    assert {party: bits(state) for party, state in again.parties().items()} == {
        party: bits(state) for party, state in ran.parties().items()
    }
    for name in ("metrics.jsonl", "model.safetensors", "partition.json", "ledger.jsonl"):
        assert (again.folder / name).read_bytes() == (ran.folder / name).read_bytes(), name


def test_another_seed_gives_other_bits(ran: Ran, tmp_path: Path) -> None:
    other = run(ran.run_name, tmp_path / "other", {"seed": 4, "federation.rounds": 1, "pretrain.epochs": 0})
    assert bits(other.server()[BACKBONE]) != bits(ran.server()[BACKBONE])


def test_training_moves_the_model_that_the_method_is_about(ran: Ran) -> None:
    start = load_state(ran.folder / "start.safetensors")
    moved = bits(ran.server()[BACKBONE]) != bits(start[BACKBONE])
    if METHODS[ran.name].has_no_global_model:
        assert not moved
        method = build_parts(ran.recipe).method
        own = {party: bits(dict(method.personal(state) or {})) for party, state in ran.parties().items()}
        assert len({str(value) for value in own.values()}) == len(own) > 0
    else:
        assert moved


def test_private_class_embeddings_reach_the_server_only_where_the_method_says_so(ran: Ran) -> None:
    """No tensor of any party's private state, nor any group of private embeddings, crosses undeclared."""
    declared = declared_groups(components(ran))
    may_leave = any(PRIVATE_EMBEDDINGS in directions["up"] for directions in declared.values())
    crossed = {row["group"] for row in ran.ledger() if row.get("direction") == "up"}
    assert may_leave or PRIVATE_EMBEDDINGS not in crossed
    if may_leave:
        return
    shapes = {
        tuple(t.shape)
        for state in ran.parties().values()
        if "class_embeddings" in state
        for t in [state["class_embeddings"]]
    }
    travelled = {tuple(shape) for row in ran.ledger() if "layout" in row for _, shape, _ in row["tensors"]}
    assert not shapes & travelled


def test_what_is_owned_goes_to_its_owner_only(ran: Ran) -> None:
    """A group declared for its owner differs between parties in the ledger, or at least is never declared for all."""
    for phase, directions in declared_groups(components(ran)).items():
        for group, audience in directions["down"].items():
            if audience == "owner":
                rows = [
                    r
                    for r in ran.ledger()
                    if (r.get("phase"), r.get("group"), r.get("direction")) == (phase, group, "down")
                ]
                assert len({r["party"] for r in rows}) > 0
    assert all(row["party"] in ran.parties() or not row["bytes"] for row in ran.ledger() if "party" in row)


def test_the_report_and_the_model_are_there_and_the_model_embeds(ran: Ran) -> None:
    model = fv.load_model(ran.folder / "model.safetensors")
    embedding = model.embed(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    assert embedding.shape == (1, model.metadata.embedding_size)
    assert (ran.folder / "report.html").stat().st_size > 1000


def test_two_workers_give_the_bits_of_none(tmp_path: Path) -> None:
    clipped = {"aggregation": {"name": "norm-clipping", "clip": 0.1}}
    inline = run(NEWCOMER, tmp_path / "inline", clipped)
    workers = run(
        NEWCOMER,
        tmp_path / "workers",
        {**clipped, "federation.workers": 2},
    )
    assert bits(inline.server()) == bits(workers.server())
    assert (inline.folder / "metrics.jsonl").read_bytes() == (workers.folder / "metrics.jsonl").read_bytes()
    assert (inline.folder / "model.safetensors").read_bytes() == (workers.folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_every_batchnorm_policy_runs_to_the_end(policy: str, tmp_path: Path) -> None:
    done = run("fedavg", tmp_path / "run", {"federation.batchnorm": policy})
    assert (BUFFERS in {row["group"] for row in done.ledger()}) == (policy != "local")
    assert ("recalibrate" in {row.get("phase") for row in done.ledger()}) == (policy == "recalibrate")


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_robust_rules_run_to_the_end(rule: str, tmp_path: Path) -> None:
    done = run("fedavg", tmp_path / "run", {"aggregation.name": rule, "federation.rounds": 1})
    assert bits(done.server()[BACKBONE]) != bits(load_state(done.folder / "start.safetensors")[BACKBONE])


def test_a_shared_classifier_is_in_the_ledger_under_its_true_name(tmp_path: Path) -> None:
    done = run("fedavg", tmp_path / "run", {"method.classifier": "shared", "federation.rounds": 1})
    ups = {row["group"] for row in done.ledger() if row.get("direction") == "up"}
    assert ups == {BACKBONE, BUFFERS, PRIVATE_EMBEDDINGS, STATISTICS}
    assert done.server()[PRIVATE_EMBEDDINGS]["all"].shape[0] == 9


def test_parties_that_a_method_would_leave_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fv.FedVisageError, match="the partition has a target, but method 'fedavg' is for"):
        run("fedavg", tmp_path / "fedavg", DOMAINS)
    with pytest.raises(fv.FedVisageError, match="the partition has a trainer, but method 'feduda' is for"):
        run("feduda", tmp_path / "feduda", {"partition.groups": {"party": {"parties": 2}}})


def test_statistics_are_recalibrated_only_where_there_are_some_and_a_global_model(tmp_path: Path) -> None:
    changes = {"federation.batchnorm": "recalibrate", "federation.rounds": 1}
    alone = run("alone", tmp_path / "alone", changes)
    assert "recalibrate" not in {row.get("phase") for row in alone.ledger()}
    without = run("fedavg", tmp_path / "sphere", {**changes, "backbone.name": "sphere-20", "pretrain.epochs": 0})
    assert BUFFERS not in {row["group"] for row in without.ledger()}
