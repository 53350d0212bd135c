"""FedGC and the server regularisers: equal to a loop by hand with dense autograd, and to each owner only its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small import FACES, PARTITION, WORK, Ran, faces_of, federate, get, mean, network, put, random_head, work_locally
from torch import Tensor

import fedvisage as fv
from fedvisage.build import build_parts
from fedvisage.config import Training
from fedvisage.core.assembly import Assembly
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Context, Joined, Result
from fedvisage.core.parcel import BACKBONE, BUFFERS, IDENTITY_TOKENS, PRIVATE_EMBEDDINGS
from fedvisage.core.randomness import Streams
from fedvisage.faces.partition import Partition, Share
from fedvisage.losses import cosine_regulariser, gradient_correction, spreadout
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fedgc import FedGC
from fedvisage.methods.fedprox import FedProx
from fedvisage.methods.separation import Cosine, GradientCorrection, Separation, Spreadout, identity_token
from fedvisage.planning import make_plan
from fedvisage.privacy import read_ledger

CLASSES = {"ann": 2, "bob": 3}
OWNER = torch.tensor([0, 0, 1, 1, 1])
STEP = 2.0


def crossings(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_ledger(folder / "ledger.jsonl") if "party" in row]


Regulariser = Callable[[Tensor], Tensor]


def step_by_autograd(regulariser: Regulariser, embeddings: Tensor, rate: float) -> Tensor:
    live = embeddings.double().requires_grad_()
    regulariser(live).backward()
    assert live.grad is not None
    return (live.detach() - rate * live.grad).float()


def by_hand(ran: Ran, rounds: int, step: Callable[[Tensor], Tensor], anchor: float = 0.0) -> tuple[Any, Tensor]:
    """Local work, averaging, and the server's step on all class embeddings."""
    model, state = network(), {**ran.start[BACKBONE], **ran.start[BUFFERS]}
    heads = {name: random_head(name, CLASSES[name]) for name in CLASSES}
    for round in range(1, rounds + 1):
        answers = []
        for name in CLASSES:
            put(model, state)
            heads[name] = work_locally(model, heads[name], faces_of(name), name, round, anchor=anchor)
            answers.append(get(model, list(state)))
        state = mean(answers, [5, 12])
        moved = step(torch.cat(list(heads.values())))
        heads = dict(zip(CLASSES, moved.split([2, 3]), strict=True))
    return {name: state[name] for name in ran.start[BACKBONE]}, torch.cat(list(heads.values()))


@pytest.mark.parametrize(
    ("part", "dense"),
    [
        (GradientCorrection(strength=STEP, form="softmax"), lambda w: gradient_correction(w, OWNER)),
        (GradientCorrection(strength=STEP), lambda w: gradient_correction(w, OWNER, form="cosface")),
        (Cosine(strength=STEP), lambda w: cosine_regulariser(w, OWNER) / len(OWNER)),
        (Cosine(strength=STEP, reduction="sum"), lambda w: cosine_regulariser(w, OWNER)),
    ],
    ids=["softmax", "the loss's own form", "cosine", "cosine, summed"],
)
def test_two_rounds_equal_a_loop_by_hand(part: Separation, dense: Regulariser, tmp_path: Path) -> None:
    part = part.model_copy(update={"training": WORK, "rounds": 2})
    ran = federate(tmp_path, FedPE(training=WORK, rounds=2), others=(part,))
    rate = STEP * WORK.learning_rate
    backbone, embeddings = by_hand(ran, 2, lambda w: step_by_autograd(dense, w, rate))
    assert all(torch.allclose(ran.server[BACKBONE][name], value, atol=1e-5) for name, value in backbone.items())
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["rows"], embeddings, atol=1e-5)


def test_spreadout_returns_unit_vectors(tmp_path: Path) -> None:
    part = Spreadout(strength=STEP, training=WORK)
    ran = federate(tmp_path, FedPE(training=WORK, rounds=1), rounds=1, others=(part,))

    def step(w: Tensor) -> Tensor:
        moved = step_by_autograd(spreadout, w, STEP * WORK.learning_rate)
        return moved / moved.norm(dim=1, keepdim=True)

    _, embeddings = by_hand(ran, 1, step)
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["rows"], embeddings, atol=1e-5)


def test_the_correction_composes_with_another_method(tmp_path: Path) -> None:
    part = GradientCorrection(strength=STEP, form="softmax", training=WORK)
    ran = federate(tmp_path, FedProx(training=WORK, rounds=1, mu=3.0), rounds=1, others=(part,))
    rate = STEP * WORK.learning_rate
    backbone, embeddings = by_hand(
        ran, 1, lambda w: step_by_autograd(lambda v: gradient_correction(v, OWNER), w, rate), anchor=3.0
    )
    assert all(torch.allclose(ran.server[BACKBONE][name], value, atol=1e-5) for name, value in backbone.items())
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["rows"], embeddings, atol=1e-5)


def test_without_strength_it_is_fedpe(tmp_path: Path) -> None:
    part = GradientCorrection(strength=0.0, training=WORK)
    corrected = federate(tmp_path / "a", FedGC(training=WORK, rounds=2), others=(part,))
    plain = federate(tmp_path / "b", FedPE(training=WORK, rounds=2))
    assert all(torch.equal(corrected.server[BACKBONE][n], t) for n, t in plain.server[BACKBONE].items())


def test_embeddings_go_up_party_by_party_and_down_to_their_owner_only(tmp_path: Path) -> None:
    federate(tmp_path, FedGC(training=WORK, rounds=2), others=(GradientCorrection(training=WORK),))
    rows = [row for row in crossings(tmp_path) if row["group"] == PRIVATE_EMBEDDINGS]
    width = 128 * 4
    assert {(r["round"], r["party"], r["direction"], r["bytes"]) for r in rows} == {
        (1, "ann", "up", 2 * width),
        (1, "bob", "up", 3 * width),
        (2, "ann", "down", 2 * width),
        (2, "bob", "down", 3 * width),
        (2, "ann", "up", 2 * width),
        (2, "bob", "up", 3 * width),
    }


def test_what_the_step_did_is_in_the_metrics(tmp_path: Path) -> None:
    part = GradientCorrection(strength=STEP, form="softmax", training=WORK)
    ran = federate(tmp_path, FedGC(training=WORK, rounds=1), rounds=1, others=(part,))
    row = next(
        row for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()) if row["phase"] == "train"
    )
    rows = ran.server[PRIVATE_EMBEDDINGS]["rows"]
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    across = cosines[OWNER[:, None] != OWNER].mean()
    within = (cosines[OWNER[:, None] == OWNER].sum() - 5) / (2 + 6)
    assert row["across_cosine"] == pytest.approx(float(across), abs=1e-6)
    assert row["within_cosine"] == pytest.approx(float(within), abs=1e-6)
    assert 0 < row["relative_step"] < 1
    assert row["regulariser"] > 0


TWO_HOLDERS = Partition(
    (), (), {"ann": Share("trainer", (*range(3, 8), 8, 9), ()), "bob": Share("trainer", tuple(range(10, 20)), ())}
)
"""Person c is at both: two images at ann, two at bob."""


def test_a_person_at_several_parties_gets_the_mean_everywhere_and_is_nobodys_negative_there(tmp_path: Path) -> None:
    part = GradientCorrection(strength=STEP, form="softmax", shared_identities=True, key="k", training=WORK)
    ran = federate(tmp_path, FedGC(training=WORK, rounds=1), rounds=1, others=(part,), partition=TWO_HOLDERS)
    rows, tokens = ran.server[PRIVATE_EMBEDDINGS]["rows"], ran.server[IDENTITY_TOKENS]
    assert tokens.tolist() == [identity_token("k", name) for name in "abccde"]
    model, heads = network(), []
    for name in ("ann", "bob"):
        put(model, {**ran.start[BACKBONE], **ran.start[BUFFERS]})
        heads.append(work_locally(model, random_head(name, 3), faces_of(name, TWO_HOLDERS), name, 1))
    before = torch.cat(heads)
    before[2:4] = before[2:4].mean(dim=0)
    owner, identity = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 2, 3, 4])
    wanted = step_by_autograd(lambda w: gradient_correction(w, owner, identity), before, STEP * WORK.learning_rate)
    wanted[2:4] = wanted[2:4].mean(dim=0)
    assert torch.allclose(rows, wanted, atol=1e-5)
    assert torch.equal(rows[2], rows[3])


def test_a_shared_person_is_where_the_holders_who_took_part_left_it(tmp_path: Path) -> None:
    """One of the two trains in each round, and nothing moves on the server: what it sent of person c is both copies."""
    part = Cosine(strength=0.0, shared_identities=True, key="k", training=WORK)
    method = FedPE(training=WORK)
    ran = federate(tmp_path, method, rounds=5, others=(part,), partition=TWO_HOLDERS, participation=0.5)
    trained = [row["party"] for row in crossings(tmp_path) if (row["phase"], row["group"]) == ("train", BACKBONE)]
    assert set(trained) == {"ann", "bob"}
    last = trained[-1]
    wanted = ran.party(last)["class_embeddings"][{"ann": 2, "bob": 0}[last]]
    rows = ran.server[PRIVATE_EMBEDDINGS]["rows"]
    assert torch.allclose(rows[2], wanted, atol=1e-6)
    assert torch.equal(rows[2], rows[3])


@pytest.mark.parametrize(
    ("came", "shared", "cats"),
    [({"cat": [[1.0, 1.0]]}, [0.9, -0.15], [0.9, 0.9]), ({"ann": [[3.0, 0.0]]}, [2.9, -0.15], [0.7, 0.9])],
    ids=["without its holders", "without one of them"],
)
def test_the_step_over_a_shared_person_by_hand(came: dict[str, Any], shared: list[float], cats: list[float]) -> None:
    """Person a of ann and bob at (1, 0), b of bob at (0, 1), c of cat at (1, 1); each step is 0.1 times a sum.

    Cat's c moves by a + b. Ann's copy of a moves by b + c, bob's by c, and both end at the mean. Where ann sends a at
    (3, 0), bob's copy begins there, too.
    """
    part = Cosine(strength=1.0, reduction="sum", shared_identities=True, key="k")
    joined = {name: Joined("trainer", 4, classes) for name, classes in (("ann", 1), ("bob", 2), ("cat", 1))}
    known = {"rows": torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), "heard": torch.ones(4).bool()}
    server = {PRIVATE_EMBEDDINGS: known, IDENTITY_TOKENS: torch.tensor([5, 5, 6, 7])}
    answers = {PRIVATE_EMBEDDINGS: {party: {"own": torch.tensor(rows)} for party, rows in came.items()}}
    assembly = Assembly([FedPE(), part])
    result = Result({}, answers, {}, {}, {})
    after = assembly.absorb(
        assembly.phases["train"], server, result, Context(Streams(1), 2, 9, joined, {}, 2, rates=lambda round: 0.1)
    )
    rows = after[PRIVATE_EMBEDDINGS]["rows"]
    assert torch.allclose(rows, torch.tensor([shared, shared, rows[2].tolist(), cats]))


def test_tokens_depend_on_the_name_and_the_key() -> None:
    tokens = {identity_token(key, name) for key in ("", "k") for name in ("ann", "bob")}
    assert len(tokens) == 4
    assert all(0 <= token < 2**63 for token in tokens)


def test_a_party_that_sends_no_tokens_or_one_twice_shares_nobody() -> None:
    part = GradientCorrection(shared_identities=True, key="k")
    joined = {"ann": Joined("trainer", 4, 2), "bob": Joined("trainer", 4, 1)}
    context = Context(Streams(1), 0, 1, joined, {}, 4)
    twice = {"ann": {"own": torch.tensor([7, 7])}, "bob": {"own": torch.tensor([7])}}
    for answers in ({"bob": twice["bob"]}, twice):
        result: Any = type("R", (), {"individual": {IDENTITY_TOKENS: answers}})
        assert part.absorb_identify({}, result, context)[IDENTITY_TOKENS].tolist() == [-1, -2, 7]


def test_hashes_need_a_key() -> None:
    with pytest.raises(ValueError, match="shared_identities needs a key"):
        GradientCorrection(shared_identities=True)


RECIPE = {
    "federation.rounds": 4,
    "federation.participation": 0.5,
    "method.name": "fedgc",
    "training.loss": "softmax",
    "compare": [],
}


def test_absent_parties_keep_their_last_embeddings_and_receive_nothing(tmp_path: Path) -> None:
    fv.run(fv.load_recipe("smoke", RECIPE), out=tmp_path / "run")
    rows = crossings(tmp_path / "run")
    for round in range(1, 5):
        asked = {r["party"] for r in rows if (r["round"], r["phase"]) == (round, "train")}
        sent = {r["party"] for r in rows if r["round"] == round and r["group"] == PRIVATE_EMBEDDINGS}
        assert sent == asked
    earlier: set[str] = set()
    for round in range(1, 5):
        down = {
            r["party"] for r in rows if (r["round"], r["group"], r["direction"]) == (round, PRIVATE_EMBEDDINGS, "down")
        }
        asked = {r["party"] for r in rows if (r["round"], r["phase"]) == (round, "train")}
        assert down == asked & earlier
        earlier |= asked


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({"loss": "softmax"}, ("softmax", None, None)),
        ({"loss": "cosface"}, ("cosface", 30.0, 0.35)),
        ({"loss": "cosface", "scale": 10.0, "margin": 0.0}, ("cosface", 10.0, 0.0)),
        ({"loss": "arcface"}, ("arcface", 64.0, 0.5)),
        ({"loss": "normalised-softmax"}, ("cosface", 30.0, 0.0)),
    ],
)
def test_the_form_goes_with_the_loss(changes: dict[str, Any], form: tuple[Any, ...]) -> None:
    assert GradientCorrection(training=Training(**changes))._form() == form


@pytest.mark.parametrize(
    ("training", "what"),
    [
        ({"training.loss": "adaface"}, "'adaface'"),
        ({"training.loss_options": {"form": "hinge"}}, "'cosface', form = 'hinge'"),
    ],
)
def test_a_loss_without_a_form_of_the_correction_is_refused_with_those_there_are(
    training: dict[str, Any], what: str
) -> None:
    changes = {"method.name": "fedgc", "compare": [], **training}
    message = f"goes with the parties' loss {what}: set form to 'softmax', 'cosface', 'arcface'"
    with pytest.raises(FedVisageError, match=message):
        build_parts(fv.load_recipe("smoke", changes))
    build_parts(fv.load_recipe("smoke", changes | {"regulariser": {"name": "gradient-correction", "form": "cosface"}}))


@pytest.mark.parametrize(
    "method",
    [
        {"method.name": "alone"},
        {"method.name": "central"},
        {"method.name": "feduda"},
        {"method.name": "fedpe", "method.embeddings": "fixed"},
        {"method.name": "fedfr", "method.second_stage": "distil"},
    ],
)
def test_a_regulariser_needs_class_embeddings_that_parties_keep(method: dict[str, Any]) -> None:
    changes = {**method, "regulariser.name": "cosine", "compare": []}
    with pytest.raises(FedVisageError, match="acts on class embeddings that parties keep"):
        build_parts(fv.load_recipe("smoke", changes))


def test_comparisons_come_without_the_recipes_regulariser() -> None:
    recipe = fv.load_recipe("smoke", {"method.name": "fedgc", "regulariser.name": "cosine"})
    assert [type(part) for part in build_parts(recipe).others[:1]] == [Cosine]
    assert not any(isinstance(part, Separation) for part in build_parts(recipe, "fedpe").others)
    assert any(isinstance(part, GradientCorrection) for part in build_parts(recipe, "fedgc").others)


def test_the_small_federation_is_what_the_loops_by_hand_assume() -> None:
    assert {name: len(set(FACES.labels[list(s.train)])) for name, s in PARTITION.parties.items()} == CLASSES


def test_a_plan_says_what_the_servers_step_costs() -> None:
    changes = {"method.name": "fedgc", "compare": [], "faces.identities": 600, "partition.identities_per_party": 100}
    recipe = fv.load_recipe("smoke", changes)
    classes, size = 100 * recipe.partition.parties, 128
    step = make_plan(recipe)["server_step"]
    assert (step["classes"], step["operations"]) == (classes, 4 * classes**2 * size)
    assert step["memory"] < 1e9
    assert make_plan(fv.load_recipe("smoke", changes | {"method.name": "fedpe"}))["server_step"] == {}
