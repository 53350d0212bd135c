"""Federated validation against searches written out by hand, and what must hold of any search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small import Ran, close, faceset, federate, mean, network, put, random_head, work_locally

import fedvisage as fv
from fedvisage.build import resolve
from fedvisage.config import Recipe, Training
from fedvisage.core.codec import load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import WEIGHTINGS, Context, Joined, Party
from fedvisage.core.parcel import BACKBONE, BUFFERS
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import kfold_accuracy, make_pairs
from fedvisage.faces.shares import Partition, Share, party_faces
from fedvisage.federation import Event
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fv import FV, FederatedValidation, choose, grid, move, moving
from fedvisage.methods.pfm import PFM
from fedvisage.planning import make_plan
from fedvisage.privacy import declared_groups, read_ledger

WORK = Training(batch_size=4, learning_rate=0.05, weight_decay=1e-3)
PEOPLE = faceset(14, 4)
TRAINERS = {"ann": (0, 8), "bob": (8, 20), "cat": (20, 24)}
"""Images of two, three and one person."""
CLASSES = {"ann": 2, "bob": 3, "cat": 1}
SHARES = {name: Share("trainer", tuple(range(*span))) for name, span in TRAINERS.items()}
VALIDATORS = {
    "vera": Share("validator", tuple(range(24, 40))),
    "vic": Share("validator", tuple(range(40, 56))),
}
PARTITION = Partition((), (), SHARES | VALIDATORS)
SEARCH = FederatedValidation(pairs=24, folds=2, smoothing=0.5, candidates=4)


def search(folder: Path, method: Any, weighting: FederatedValidation = SEARCH, **options: Any) -> Ran:
    return federate(folder, method, partition=PARTITION, faces=PEOPLE, weighting=weighting, **options)


def rows_of(ran: Ran, phase: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == phase]


def slow_score(model: Any, name: str) -> float:
    """The pairs drawn again from the validator's joining stream, each side embedded for each pair."""
    faces = party_faces(PEOPLE, PARTITION, name)[1].train
    assert faces.labels is not None
    left, right, same = make_pairs(faces.labels, 24, Streams(1, "parties", 0, name).numpy("validation pairs"), 2)
    one, other = (model.embed(faces.read(side), flip=False) for side in (left, right))
    return 100 * kfold_accuracy(one, other, same, 2).mean


def by_hand(answers: list[Any], weights: list[float], round: int) -> tuple[list[float], int, list[float]]:
    """A search of four candidates: their mean scores, the one chosen, and the weights half-way towards it."""
    drawn = Streams(1, "server").numpy("candidate weightings", round, 0).dirichlet([1, 1, 1], 3).tolist()
    tried, model, scores = [weights, *drawn], network(), np.zeros((4, 2))
    for t, candidate in enumerate(tried):
        put(model, mean(answers, candidate))
        scores[t] = [slow_score(model, name) for name in VALIDATORS]
    normalised = scores / np.sqrt(np.square(scores - scores.mean(axis=0)).mean(axis=0) + 0.001)
    best = int(np.argmax(normalised.sum(axis=1)))
    moved = [0.5 * old + 0.5 * new for old, new in zip(weights, tried[best], strict=True)]
    return scores.mean(axis=1).tolist(), best, moved


@pytest.mark.parametrize("overlap", [False, True])
def test_rounds_of_training_and_searching_equal_a_search_by_hand(tmp_path: Path, overlap: bool) -> None:
    """A round is averaged with what the search among the last round's answers found; beside training, the one before.

    So the weights that round r counts with are of search r - 1, or r - 2, and in the beginning the first ones.
    """
    trained: list[Any] = []

    def watch(event: Event) -> None:
        if event.kind == "saved" and event.phase == "train":
            trained.append(load_state(tmp_path / "checkpoints" / "last.safetensors")["server"])

    weighting, rounds = SEARCH.model_copy(update={"overlap": overlap}), 4 if overlap else 2
    ran = search(tmp_path, FedPE(training=WORK, rounds=rounds), weighting, rounds=rounds, watch=watch)
    found = [[1 / 3] * 3]
    for round, server in enumerate(trained, 1):
        answers = [{**server[FV]["backbones"][name], **server[FV]["buffers"][name]} for name in TRAINERS]
        averaged = mean(answers, found[max(0, round - 1 - overlap)])
        assert close({**server[BACKBONE], **server[BUFFERS]}, averaged), "absorbed with the weights of before"
        assert list(server[FV]["weights"].values()) == pytest.approx(found[-1])
        scores, best, weights = by_hand(answers, found[-1], round)
        row = rows_of(ran, "validate")[4 * round - 1]
        assert [row[f"candidate_{t}"] for t in (1, 2, 3, 4)] == pytest.approx(scores)
        assert (row["round"], row["chosen"]) == (round, best)
        assert [row[f"weight/{name}"] for name in TRAINERS] == pytest.approx(weights)
        found.append(weights)
    assert len(found) == rounds + 1
    assert list(ran.server[FV]["weights"].values()) == pytest.approx(found[-1])
    assert found[1] != found[0], "a search that never moves would prove nothing"
    assert ran.server[FV]["backbones"] == {}


def test_a_search_beside_training_has_the_same_bits_with_workers_and_after_kills(tmp_path: Path) -> None:
    """Killed when a candidate is under way beside training, when trainers have answered, and in the map."""
    weighting = SEARCH.model_copy(update={"overlap": True, "candidates": 2, "map_every": 2, "map_steps": 1})
    method = PFM(training=WORK, rounds=3)
    whole = search(tmp_path / "whole", method, weighting, rounds=3)
    for kind, phase, round in (("answer", "validate", 1), ("answer", "train", 2), ("saved", "survey", 2)):

        def die(event: Event, at: tuple[str, str, int] = (kind, phase, round)) -> None:
            if (event.kind, event.phase, event.round) == at:
                raise Stop

        with pytest.raises(Stop):
            search(tmp_path / "killed", method, weighting, rounds=3, watch=die)
    for name, workers in (("killed", 0), ("two", 2)):
        again = search(tmp_path / name, method, weighting, rounds=3, workers=workers)
        assert again.server[FV] == whole.server[FV]
        assert all(torch.equal(again.server[BACKBONE][n], value) for n, value in whole.server[BACKBONE].items())
        assert (tmp_path / name / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert [row["round"] for row in rows_of(whole, "survey")] == [2] * 3 + [3] * 3
    assert whole.server[FV]["backbones"] == {}


def test_scores_are_all_that_leaves_a_validator_and_pairs_stay_with_it(tmp_path: Path) -> None:
    ran = search(tmp_path, PFM(training=WORK, rounds=1), rounds=1)
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row.get("party") in VALIDATORS]
    assert {row["group"] for row in rows if row["direction"] == "up"} == {"statistics"}
    assert {row["phase"] for row in rows} == {"enrol", "validate"}
    for name in VALIDATORS:
        assert set(ran.party(name)["pairs"]) == {"left", "right", "same"}
        assert ran.book.joined[name].role == "validator"


def test_without_smoothing_the_weights_stay_to_the_bit(tmp_path: Path) -> None:
    still = SEARCH.model_copy(update={"smoothing": 0.0, "start_weights": "samples"})
    ran = search(tmp_path / "still", FedPE(training=WORK, rounds=2), still, rounds=2)
    assert ran.server[FV]["weights"] == {"ann": 8 / 24, "bob": 12 / 24, "cat": 4 / 24}
    plain = federate(
        tmp_path / "plain",
        FedPE(training=WORK, rounds=2),
        partition=Partition((), (), SHARES),
        faces=PEOPLE,
        weighting="samples",
    )
    assert close(ran.server[BACKBONE], plain.server[BACKBONE], 1e-5)


def test_backbones_are_kept_once_and_only_while_they_are_searched(tmp_path: Path) -> None:
    """Planning twice hands out new candidates and leaves the kept backbones as they are, where they are."""
    kept: list[Any] = []

    def watch(event: Event) -> None:
        if event.kind == "saved" and event.phase in ("train", "validate"):
            saved = load_state(tmp_path / "checkpoints" / "last.safetensors")
            kept.append((event.phase, saved["server"][FV]))

    search(tmp_path, FedPE(training=WORK, rounds=1), rounds=1, watch=watch)
    assert [len(state["backbones"]) for _, state in kept] == [3, 3, 3, 3, 0]
    state = {FV: kept[0][1]}
    before = {name: tensors["conv1.weight"].clone() for name, tensors in state[FV]["backbones"].items()}
    where = [tensors["conv1.weight"].data_ptr() for tensors in state[FV]["backbones"].values()]
    context = Context(Streams(1, "server"), 1, 1, {}, {}, 128)
    first = SEARCH.plan_validate(state, ["vera", "vic"], context)
    assert first["vera"][BACKBONE] is first["vic"][BACKBONE], "one candidate for all validators"
    one = first["vera"][BACKBONE]["conv1.weight"].clone()
    context.repeat = 1
    second = SEARCH.plan_validate(state, ["vera", "vic"], context)
    assert not torch.equal(one, second["vera"][BACKBONE]["conv1.weight"])
    assert [tensors["conv1.weight"].data_ptr() for tensors in state[FV]["backbones"].values()] == where
    assert all(torch.equal(t["conv1.weight"], before[n]) for n, t in state[FV]["backbones"].items())


class Stop(Exception):
    """The process dies."""


def test_a_run_killed_in_its_searches_ends_at_the_same_bits(tmp_path: Path) -> None:
    """Three times: with backbones and no scores yet, half-way through a search, and in the map."""
    weighting = SEARCH.model_copy(update={"norm": "moving", "map_every": 2, "map_steps": 2, "searches": 2})
    method = FedPE(training=WORK, rounds=2)
    whole = search(tmp_path / "whole", method, weighting, rounds=2)
    for phase, after in (("train", 1), ("validate", 6), ("survey", 3)):
        seen: list[str] = []

        def die(event: Event, phase: str = phase, after: int = after, seen: list[str] = seen) -> None:
            seen += [event.phase] if event.kind == "saved" else []
            if seen.count(phase) == after:
                raise Stop

        with pytest.raises(Stop):
            search(tmp_path / "killed", method, weighting, rounds=2, watch=die)
    again = search(tmp_path / "killed", method, weighting, rounds=2)
    assert again.server[FV] == whole.server[FV]
    assert all(torch.equal(again.server[BACKBONE][name], value) for name, value in whole.server[BACKBONE].items())
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_searches_come_every_few_rounds_and_after_the_last(tmp_path: Path) -> None:
    few = SEARCH.model_copy(update={"every": 2, "candidates": 2, "searches": 2})
    ran = search(tmp_path, FedPE(training=WORK, rounds=3), few, rounds=3)
    assert [row["round"] for row in rows_of(ran, "validate")] == [2] * 4 + [3] * 4
    assert ["chosen" in row for row in rows_of(ran, "validate")] == [False, True] * 4
    assert ran.server[FV]["backbones"] == {}


def test_the_map_has_every_weighting_and_its_corners_are_the_parties_own_models(tmp_path: Path) -> None:
    mapped = SEARCH.model_copy(update={"map_every": 1, "map_steps": 2})
    ran = search(tmp_path, FedPE(training=WORK, rounds=1), mapped, rounds=1)
    rows = rows_of(ran, "survey")
    found = {tuple(row[f"weight/{name}"] for name in TRAINERS): row["score"] for row in rows}
    assert set(found) == {(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5)}
    model = network()
    put(model, {**ran.start[BACKBONE], **ran.start[BUFFERS]})
    faces = party_faces(PEOPLE, PARTITION, "bob")[1].train
    work_locally(model, random_head("bob", 3), faces, "bob", 1, work=WORK)
    assert found[0, 1, 0] == pytest.approx(np.mean([slow_score(model, name) for name in VALIDATORS]))
    assert ran.server[FV]["backbones"] == {}


def test_absent_trainers_keep_their_weight_and_the_others_share_theirs(tmp_path: Path) -> None:
    ran = search(tmp_path, PFM(training=WORK, rounds=4), rounds=4, participation=0.6)
    before = dict.fromkeys(TRAINERS, 1 / 3)
    trained = [set(row["parties"]) for row in rows_of(ran, "train")]
    after = [row for row in rows_of(ran, "validate") if "chosen" in row]
    assert {len(parties) for parties in trained} == {2}
    for parties, row in zip(trained, after, strict=True):
        now = {name: row[f"weight/{name}"] for name in TRAINERS}
        assert all(now[name] == before[name] for name in TRAINERS if name not in parties)
        assert sum(now.values()) == pytest.approx(1, abs=1e-12)
        before = now
    assert before != dict.fromkeys(TRAINERS, 1 / 3)


def test_candidates_are_the_present_weighting_and_then_uniform_on_the_simplex() -> None:
    """A part of a uniform weighting of three has mean 1/3 and variance 1/18."""
    many = SEARCH.model_copy(update={"candidates": 4001})
    weights = {"ann": 0.2, "bob": 0.3, "cat": 0.5}
    state = {FV: {"weights": weights, "backbones": {name: {} for name in weights}}}
    context = Context(Streams(7), 3, 9, {}, {}, 128)
    tried = many.tried(state, context)
    assert tried[0] == pytest.approx(weights)
    drawn = np.array([list(candidate.values()) for candidate in tried[1:]])
    assert drawn.sum(axis=1) == pytest.approx(np.ones(4000))
    assert drawn.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert drawn.var(axis=0) == pytest.approx([1 / 18] * 3, abs=0.004)
    assert many.tried(state, context) == tried
    context.round = 4
    assert many.tried(state, context) != tried


def test_percent_is_what_the_constant_of_the_local_norm_is_made_for() -> None:
    """With a spread of 0.0368 percent the divisor is 0.0485; as shares it would be 0.0316 whatever the spread is."""
    scores = np.array([[80.0 - 0.0368], [80.0 + 0.0368]])
    assert SEARCH.divisors(["vera"], scores, {})[0] == pytest.approx([0.0485], abs=5e-5)
    for spread in (1e-3, 1.0):
        shares = 0.8 + (scores - 80) * spread / 100
        assert SEARCH.divisors(["vera"], shares, {})[0] == pytest.approx([0.0316], abs=5e-5)


def test_the_moving_norm_starts_at_the_first_search_and_then_follows_equations_9_and_10() -> None:
    search = SEARCH.model_copy(update={"norm": "moving", "moving_rate": 0.25})
    one, two = np.array([[1.0], [3.0]]), np.array([[4.0], [8.0]])
    divisor, norms = search.divisors(["vera"], one, {})
    assert norms == {"vera": [2.0, 1.0]}
    assert divisor == pytest.approx([np.sqrt(1.001)])
    divisor, norms = search.divisors(["vera"], two, norms)
    mean_now = 0.75 * 2 + 0.25 * 6
    assert norms["vera"][0] == mean_now == 3.0
    assert norms["vera"][1] == 0.75 * 1 + 0.25 * ((4 - 3) ** 2 + (8 - 3) ** 2) / 2 == 4.0
    assert divisor == pytest.approx([np.sqrt(4.001)])
    assert moving([3.0, 4.0], np.array([3.0]), 1.0) == [3.0, 0.0]


@pytest.mark.parametrize("norm", ["local", "moving", "none"])
@given(scores=hnp.arrays(float, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.floats(40, 100)))
@settings(max_examples=40, deadline=None)
def test_the_chosen_candidate_never_scores_below_the_present_weighting(norm: Any, scores: Any) -> None:
    search = SEARCH.model_copy(update={"norm": norm})
    validators = [f"v{n}" for n in range(scores.shape[1])]
    divisors, _ = search.divisors(validators, scores, {})
    normalised = scores / divisors
    best = choose(normalised)
    assert normalised[best].sum() >= normalised[0].sum()
    if scores.shape[1] == 1:
        assert scores[best, 0] >= scores[0, 0], "with one validator in plain percent, too"


def test_a_tie_leaves_the_weighting_alone() -> None:
    assert choose(np.array([[80.0, 70.0], [70.0, 80.0], [75.0, 75.0]])) == 0


@given(
    masses=st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    present=st.integers(1, 6),
    smoothing=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_weights_stay_on_the_simplex(masses: list[float], present: int, smoothing: float, seed: int) -> None:
    weights = {f"p{n}": mass / sum(masses) for n, mass in enumerate(masses)}
    there = list(weights)[: min(present, len(weights))]
    drawn = np.random.default_rng(seed).dirichlet(np.ones(len(there)))
    moved = move(weights, dict(zip(there, drawn.tolist(), strict=True)), smoothing)
    assert sum(moved.values()) == pytest.approx(1)
    assert min(moved.values()) >= 0
    assert all(moved[name] == weights[name] for name in weights if name not in there)
    if smoothing == 0:
        assert moved == weights


def test_the_grid_counts_as_a_triangle_does() -> None:
    for steps in (1, 4, 10):
        points = grid(steps)
        assert len(points) == len(set(points)) == (steps + 1) * (steps + 2) // 2
        assert all(sum(point) == pytest.approx(1) for point in points)


def test_a_trainer_counts_by_its_weight_and_everybody_else_the_same() -> None:
    server = {FV: {"weights": {"ann": 0.25}}}
    assert SEARCH.weight(server, "ann", Joined("trainer", 9, 1), {"samples": 1e9}) == 0.25
    assert SEARCH.weight(server, "vera", Joined("validator", 9, 1), {"score": 100.0}) == 1.0


def test_a_map_of_other_than_three_trainers_is_refused(tmp_path: Path) -> None:
    two = Partition((), (), {"ann": SHARES["ann"], "bob": SHARES["bob"]} | VALIDATORS)
    mapped = SEARCH.model_copy(update={"map_every": 1})
    with pytest.raises(FedVisageError, match="a triangle of three trainers, but there are 2"):
        federate(tmp_path, FedPE(training=WORK), partition=two, faces=PEOPLE, weighting=mapped)


def test_a_validator_with_too_few_people_says_so(tmp_path: Path) -> None:
    few = Partition((), (), SHARES | {"vera": Share("validator", tuple(range(24, 36)))})
    with pytest.raises(FedVisageError, match="vera: 2 folds need at least 4 identities"):
        federate(tmp_path, FedPE(training=WORK), partition=few, faces=PEOPLE, weighting=SEARCH)


VALIDATED: dict[str, Any] = {"partition": {"validators": 1}, "weighting": {"name": "fv"}}
REFUSED: dict[str, dict[str, Any]] = {
    "needs validators: set partition.validators": {"partition": {}},
    "'alone' has no model to mix": {"method": {"name": "alone"}},
    "'central' has no model to mix": {"method": {"name": "central"}},
    r"federation.batchnorm = 'local'.*use 'average'": {"federation": {"batchnorm": "local"}},
    r"under aggregation 'median': use 'mean'": {"aggregation": {"name": "median"}},
    r"\[weighting\]: unknown key 'phi'": {"weighting": {"name": "fv", "phi": 1}},
    r"\[weighting\]: smoothing: Input should be less than or equal to 1": {"weighting": {"name": "fv", "smoothing": 2}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_combined_is_refused_before_anything_runs(words: str) -> None:
    with pytest.raises(FedVisageError, match=words):
        resolve(Recipe.model_validate(VALIDATED | REFUSED[words]))


def test_a_group_of_validators_is_enough_and_the_resolved_recipe_spells_everything_out() -> None:
    groups = {"judges": {"role": "validator", "count": 12}, "sites": {"parties": 3}}
    recipe = resolve(Recipe.model_validate({"partition": {"groups": groups}, "weighting": {"name": "fv"}}))
    assert recipe.weighting["candidates"] == 3
    assert recipe.weighting["smoothing"] == 0.01


def test_a_plan_counts_validators_apart_and_the_backbones_the_server_holds() -> None:
    recipe = fv.load_recipe("pfm-fv")
    plan, plain = make_plan(recipe), make_plan(recipe.model_copy(update={"weighting": {"name": "equal"}}))
    sizes = {
        row["group"]: row["bytes"] for row in plan["wire"] if row["phase"] == "train" and row["direction"] == "down"
    }
    model = sizes[BACKBONE] + sizes[BUFFERS]
    trained = 48 * 3 * (model + sizes["optimiser"] + model + 16) + 3 * 16
    candidates, maps, on_a_map = 48 * 3, 2, 15
    judged = 2 * (candidates + maps * on_a_map) * (model + 8) + 2 * 16
    assert plan["totals"]["run"] == trained + judged
    assert plan["totals"]["down"] == plain["totals"]["down"] == model + sizes["optimiser"]
    assert plan["memory"]["server"] - plain["memory"]["server"] == 3 * model
    beside = make_plan(recipe.model_copy(update={"weighting": recipe.weighting | {"overlap": True}}))
    assert beside["totals"] == plan["totals"]
    assert beside["memory"]["server"] - plain["memory"]["server"] == 6 * model, "those of the round before, too"


def test_the_table_of_what_leaves_says_that_the_server_sees_each_backbone() -> None:
    up = declared_groups([FedPE(), SEARCH])["train"]["up"]
    assert up[BACKBONE] == up[BUFFERS] == "weighted_sum, each seen"
    assert declared_groups([FedPE(), WEIGHTINGS["equal"]()])["train"]["up"][BACKBONE] == "weighted_sum"


def test_a_map_is_left_out_in_a_round_in_which_a_trainer_was_absent() -> None:
    part = FederatedValidation(map_every=1)
    two = {name: {"w": torch.zeros(1)} for name in ("ann", "bob")}
    server: Any = {FV: {"weights": {}, "scores": [], "norms": {}, "backbones": two, "buffers": {}}}
    context = Context(Streams(1), 1, 1, {}, {}, 4)
    (parcel,) = part.plan_survey(server, ["val"], context).values()
    assert not parcel.tensors
    party = Party("val", "validator", 1, Any, {}, Any, Streams(1))  # type: ignore[arg-type]
    assert not part.survey(party, parcel).statistics
    result: Any = type("R", (), {"statistics": {"val": {}}})
    part.absorb_survey(server, result, context)
    assert context.numbers == {}
