"""Momentum in its five homes (PFM, FedAvgM, SlowMo, MimeLite, SCAFFOLD) against loops that spell every step out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import PARTITION, Ran, faces_of, federate, get, network, put, random_head
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import weighted
from fedvisage.core.method import METHODS, Method, Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, OPTIMISER, Parcel, Tensors
from fedvisage.core.randomness import Streams
from fedvisage.faces.partition import Partition
from fedvisage.losses import cosface
from fedvisage.methods.fedavgm import FedAvgM
from fedvisage.methods.mimelite import MimeLite
from fedvisage.methods.pfm import PFM, momentum_between
from fedvisage.methods.scaffold import Scaffold
from fedvisage.methods.slowmo import SlowMo
from fedvisage.privacy import read_ledger
from fedvisage.training import Correct, add_constant, batches, count_steps

BETA = 0.9
WORK = Training(batch_size=4, learning_rate=0.01, weight_decay=1e-3, momentum=BETA)
SAMPLES = {"ann": 5, "bob": 12}
STEPS = {"ann": 1, "bob": 3}
"""Of one epoch in batches of four: ann's fifth image joins the four others."""
CLASSES = {"ann": 2, "bob": 3}
ONE = Partition((), (), {"bob": PARTITION.parties["bob"]})


def local_steps(
    model: Any,
    head: Tensor,
    name: str,
    round: int,
    add: Callable[[str], Tensor | float],
    *,
    head_momentum: Tensor | None = None,
    backbone_momentum: bool = False,
    work: Training = WORK,
    rate: float = WORK.learning_rate,
) -> tuple[Tensor, Tensor]:
    """Local work written out: no optimiser, one line per equation. The head and its momentum afterwards."""
    head, momentum = head.clone().requires_grad_(), head_momentum
    own = {n: p for n, p in model.named_parameters() if p.requires_grad}
    buffers: dict[str, Tensor] = {}
    model.train()
    for batch in batches(faces_of(name), work, Streams(1, "parties", round, name, "train"), torch.device("cpu")):
        model.zero_grad()
        head.grad = None
        cosface(model(model.preprocess(batch.images)).float(), head, batch.labels).backward()
        with torch.no_grad():
            assert head.grad is not None
            for n, p in own.items():
                assert p.grad is not None
                step = p.grad + work.weight_decay * p + add(n)
                if backbone_momentum:
                    step = buffers[n] = BETA * buffers[n] + step if n in buffers else step
                p -= rate * step
            h = head.grad + work.weight_decay * head
            momentum = h if momentum is None else BETA * momentum + h
            head -= rate * momentum
    assert momentum is not None
    return head.detach(), momentum.detach()


def double() -> Any:
    """The network in double precision, where two orders of the same arithmetic stay together over 30 steps."""
    model: Any = network().double()
    single = model.preprocess
    model.preprocess = lambda images: single(images).double()
    return model


def begin(ran: Ran) -> tuple[Any, Tensors, Tensors, dict[str, Tensor]]:
    heads = {name: random_head(name, CLASSES[name]) for name in SAMPLES}
    return double(), dict(ran.start[BACKBONE]), dict(ran.start[BUFFERS]), heads


def load(model: Any, backbone: Tensors, buffers: Tensors) -> None:
    put(model, backbone)
    put(model, buffers)


def mean(answers: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    shares = [weight / sum(weights) for weight in weights]
    return {n: sum(s * a[n] for s, a in zip(shares, answers, strict=True)) for n in answers[0]}  # type: ignore[misc]


def close(one: Tensors, other: Tensors, tolerance: float = 1e-6) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], atol=tolerance, rtol=tolerance) for name in one)


def zeros(like: Tensors) -> Tensors:
    return {name: torch.zeros_like(value) for name, value in like.items()}


def test_one_party_and_one_step_is_torch_sgd_with_momentum(tmp_path: Path) -> None:
    """30 rounds of one step, weight decay inside the gradient, the learning rate falling to a tenth after 15."""
    work = WORK.model_copy(
        update={"steps": 1, "weight_decay": 5e-4, "schedule": "steps", "milestones": (15,), "learning_rate": 0.01}
    )
    ran = federate(tmp_path, PFM(training=work, rounds=30), rounds=30, partition=ONE, weighting="equal", model=double())
    model, head = double(), random_head("bob", 3).requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD([*parameters, head], lr=0.01, momentum=BETA, weight_decay=5e-4)
    model.train()
    for round in range(1, 31):
        optimiser.param_groups[0]["lr"] = 0.01 if round <= 15 else 0.001
        (batch,) = batches(faces_of("bob"), work, Streams(1, "parties", round, "bob", "train"), torch.device("cpu"))
        optimiser.zero_grad()
        cosface(model(model.preprocess(batch.images)).float(), head, batch.labels).backward()
        optimiser.step()
    wanted = get(model, list(ran.server[BACKBONE]))
    apart = max(float((ran.server[BACKBONE][name] - value).abs().max()) for name, value in wanted.items())
    moved = max(float((ran.start[BACKBONE][name] - value).abs().max()) for name, value in wanted.items())
    assert apart <= 1e-6, "6e-14 when this was written"
    assert moved > 0.1
    assert torch.allclose(ran.party("bob")["class_embeddings"], head.detach(), atol=1e-6)


def pfm_by_hand(ran: Ran, rounds: int, weights: Mapping[str, float] = SAMPLES) -> dict[str, Any]:
    model, backbone, buffers, heads = begin(ran)
    momentum, head_momentum = zeros(backbone), dict[str, Tensor]()
    for round in range(1, rounds + 1):
        answers = []
        for name in SAMPLES:
            load(model, backbone, buffers)
            share = {n: BETA * m / STEPS[name] for n, m in momentum.items()}
            heads[name], head_momentum[name] = local_steps(
                model, heads[name], name, round, share.__getitem__, head_momentum=head_momentum.get(name)
            )
            answers.append(get(model, [*backbone, *buffers]))
        averaged = mean(answers, list(weights.values()))
        after = {n: averaged[n] for n in backbone}
        momentum = {n: (backbone[n] - after[n]) / WORK.learning_rate for n in backbone}
        backbone, buffers = after, {n: averaged[n] for n in buffers}
    return {BACKBONE: backbone, BUFFERS: buffers, OPTIMISER: momentum, "heads": heads, "head_momentum": head_momentum}


def test_pfm_with_unequal_numbers_of_steps_equals_a_loop_by_hand(tmp_path: Path) -> None:
    """Ann does one step and bob three: each spreads M over its own number."""
    ran = federate(tmp_path, PFM(training=WORK, rounds=2), rounds=2, model=double())
    wanted = pfm_by_hand(ran, 2)
    for group in (BACKBONE, BUFFERS):
        assert close(ran.server[group], wanted[group])
    assert close(ran.server[OPTIMISER], wanted[OPTIMISER], 1e-4)
    for name in SAMPLES:
        assert torch.allclose(ran.party(name)["class_embeddings"], wanted["heads"][name], atol=1e-5)
        kept = ran.party(name)["optimiser"]
        assert set(kept) == {"class_embeddings"}, "the backbone has no momentum of its own"
        assert torch.allclose(kept["class_embeddings"], wanted["head_momentum"][name], atol=1e-3)
    assert set(ran.server[OPTIMISER]) == set(ran.server[BACKBONE]), "BatchNorm statistics have no momentum"


def test_every_trainer_does_the_steps_of_the_recipe_cycling_its_images() -> None:
    fixed = WORK.model_copy(update={"steps": 7})
    for name, count in SAMPLES.items():
        streams = Streams(1)
        assert count_steps(count, WORK) == STEPS[name]
        assert len(list(batches(faces_of(name), WORK, streams, torch.device("cpu")))) == STEPS[name]
        assert len(list(batches(faces_of(name), fixed, streams, torch.device("cpu")))) == 7 == count_steps(count, fixed)


@given(
    shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    total=st.sampled_from([1.0, 0.9, 1.3]),
    steps=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_the_momentum_is_that_of_the_summed_gradients_iff_the_weights_sum_to_one(
    shares: list[float], total: float, steps: list[int], seed: int
) -> None:
    """M_after == beta * M + sum_i w_i sum_k g_ik, whatever the gradients are, in double precision."""
    rng, rate = np.random.default_rng(seed), 0.05
    weights = [total * share / sum(shares) for share in shares]
    start, momentum = (torch.from_numpy(rng.standard_normal(6)) for _ in range(2))
    locals_, summed = [], torch.zeros(6, dtype=torch.float64)
    for weight, count in zip(weights, steps, strict=False):
        theta = start.clone().requires_grad_()
        correct = add_constant({"theta": momentum}, BETA / count)
        for gradient in torch.from_numpy(rng.standard_normal((count, 6))):
            theta.grad = gradient.clone()
            with torch.no_grad():
                correct({"theta": theta})
                theta -= rate * theta.grad
            summed += weight * gradient
        locals_.append((weight, {"theta": theta.detach()}))
    after = momentum_between({"theta": start}, weighted(*locals_), rate)["theta"]
    assert torch.allclose(after, BETA * momentum + summed, atol=1e-9) == (total == 1.0)


def test_the_first_rounds_of_pfm_move_the_backbone_less() -> None:
    """Under a constant gradient: PFM's momentum builds up over rounds, a local optimiser's over steps.

    After 25 rounds of 8 steps that is 8 * sum(1 - 0.9^r) = 133.2 against 200 - 9 = 191.0 times what each adds up to.
    """
    rounds, steps, rate, gradient = 25, 8, 0.01, torch.ones(1, dtype=torch.float64)
    kept = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([kept], rate, BETA)
    theta, momentum = torch.zeros(1, dtype=torch.float64, requires_grad=True), torch.zeros(1, dtype=torch.float64)
    for _ in range(rounds):
        before, correct = theta.detach().clone(), add_constant({"theta": momentum}, BETA / steps)
        for _ in range(steps):
            kept.grad, theta.grad = gradient.clone(), gradient.clone()
            optimiser.step()
            with torch.no_grad():
                correct({"theta": theta})
                theta -= rate * theta.grad
        momentum = momentum_between({"theta": before}, {"theta": theta.detach()}, rate)["theta"]
    amplified = -rate / (1 - BETA)
    assert float(theta.detach()) == pytest.approx(133.169 * amplified, rel=1e-5)
    assert float(kept.detach()) == pytest.approx(191.0 * amplified, rel=1e-5)


def test_parties_that_derive_the_momentum_end_at_the_same_bits(tmp_path: Path) -> None:
    work = WORK.model_copy(update={"schedule": "steps", "milestones": (1,), "decay": 0.5})
    sent = federate(tmp_path / "sent", PFM(training=work, rounds=3), rounds=3)
    derived = federate(tmp_path / "derived", PFM(training=work, rounds=3, momentum="derived"), rounds=3)
    for group in (BACKBONE, BUFFERS, OPTIMISER):
        assert all(torch.equal(sent.server[group][name], value) for name, value in derived.server[group].items())
    assert momentum_sent(sent) == {(r, name) for r in (1, 2, 3) for name in SAMPLES}
    assert momentum_sent(derived) == set()


def momentum_sent(ran: Ran) -> set[tuple[int, str]]:
    """In which rounds the momentum went to whom."""
    rows = read_ledger(ran.folder / "ledger.jsonl")
    down = [row for row in rows if row.get("group") == OPTIMISER and row.get("direction") == "down"]
    return {(row["round"], row["party"]) for row in down}


def test_the_momentum_is_sent_to_a_party_that_missed_the_last_global(tmp_path: Path) -> None:
    """One of the two takes part in a round; both ways again end at the same bits."""
    sent = federate(tmp_path / "sent", PFM(training=WORK, rounds=6), rounds=6, participation=0.5)
    derived = federate(
        tmp_path / "derived", PFM(training=WORK, rounds=6, momentum="derived"), rounds=6, participation=0.5
    )
    assert all(torch.equal(sent.server[BACKBONE][name], value) for name, value in derived.server[BACKBONE].items())
    present = [party for _, party in sorted(momentum_sent(sent))]
    changes = {(r, party) for r, party in enumerate(present, 1) if r > 1 and present[r - 2] != party}
    assert 0 < len(changes) < 5, "the draw should have both kinds of rounds"
    assert momentum_sent(derived) == changes


def test_a_party_without_the_last_global_refuses_to_guess() -> None:
    party = Party("ann", "trainer", 4, None, {"last_global": {"round": 2}}, None, Streams(1))  # type: ignore[arg-type]
    with pytest.raises(FedVisageError, match="'ann' missed round 3 and was not sent the momentum"):
        PFM(momentum="derived").global_momentum(party, Parcel())


def test_pfm_without_beta_and_with_one_epoch_is_fedavg_without_momentum_on_the_backbone(tmp_path: Path) -> None:
    ran = federate(tmp_path, PFM(training=WORK.model_copy(update={"momentum": 0.0})), rounds=1)
    plain = WORK.model_copy(update={"momentum": 0.0})
    fedavg = federate(tmp_path / "fedavg", METHODS["fedavg"](training=plain), rounds=1)  # type: ignore[call-arg]
    assert all(torch.equal(ran.server[BACKBONE][name], value) for name, value in fedavg.server[BACKBONE].items())


def averaged_round(
    ran: Ran, model: Any, backbone: Tensors, buffers: Tensors, heads: dict[str, Tensor], round: int, rate: float
) -> Tensors:
    """FedAvg's mean after one round of local momentum SGD, reset each round."""
    answers = []
    for name in SAMPLES:
        load(model, backbone, buffers)
        heads[name], _ = local_steps(
            model, heads[name], name, round, lambda n: 0.0, backbone_momentum=True, rate=rate, work=WORK
        )
        answers.append(get(model, [*backbone, *buffers]))
    return mean(answers, list(SAMPLES.values()))


def test_server_momentum_equals_a_loop_by_hand(tmp_path: Path) -> None:
    ran = federate(
        tmp_path, FedAvgM(training=WORK, rounds=3, server_momentum=0.6, server_rate=0.8), rounds=3, model=double()
    )
    model, backbone, buffers, heads = begin(ran)
    velocity = zeros(backbone)
    for round in (1, 2, 3):
        averaged = averaged_round(ran, model, backbone, buffers, heads, round, WORK.learning_rate)
        velocity = {n: 0.6 * velocity[n] + backbone[n] - averaged[n] for n in backbone}
        backbone = {n: backbone[n] - 0.8 * velocity[n] for n in backbone}
        buffers = {n: averaged[n] for n in buffers}
    assert close(ran.server[BACKBONE], backbone)
    assert close(ran.server[BUFFERS], buffers)


def test_slowmo_equals_a_loop_by_hand_and_scales_its_step_with_the_learning_rate(tmp_path: Path) -> None:
    work = WORK.model_copy(update={"schedule": "steps", "milestones": (1,), "decay": 0.2})
    ran = federate(
        tmp_path, SlowMo(training=work, rounds=3, slow_momentum=0.7, slow_rate=0.9), rounds=3, model=double()
    )
    model, backbone, buffers, heads = begin(ran)
    slow = zeros(backbone)
    for round, rate in ((1, 0.01), (2, 0.002), (3, 0.002)):
        averaged = averaged_round(ran, model, backbone, buffers, heads, round, rate)
        slow = {n: 0.7 * slow[n] + (backbone[n] - averaged[n]) / rate for n in backbone}
        backbone = {n: backbone[n] - 0.9 * rate * slow[n] for n in backbone}
        buffers = {n: averaged[n] for n in buffers}
    assert close(ran.server[BACKBONE], backbone)


@pytest.mark.parametrize(
    "method",
    [FedAvgM(training=WORK, server_momentum=0.0), SlowMo(training=WORK, slow_momentum=0.0)],
    ids=["avgm", "slow"],
)
def test_without_momentum_the_server_only_averages(method: Method, tmp_path: Path) -> None:
    one = federate(tmp_path / "one", method, rounds=1)
    other = federate(tmp_path / "other", METHODS["fedavg"](training=WORK), rounds=1)  # type: ignore[call-arg]
    assert close(one.server[BACKBONE], other.server[BACKBONE])


def full_gradient(model: Any, head: Tensor, name: str, round: int) -> Tensors:
    """By autograd of the mean loss over a party's images, in the batches of its stream, weight decay added."""
    own = {n: p for n, p in model.named_parameters() if p.requires_grad}
    still = WORK.model_copy(update={"flip": False})
    streams = Streams(1, "parties", round, name, "full gradient")
    model.train()
    model.zero_grad()
    for batch in batches(faces_of(name), still, streams, torch.device("cpu")):
        loss = cosface(model(model.preprocess(batch.images)).float(), head, batch.labels)
        (loss * len(batch.labels) / SAMPLES[name]).backward()
    return {n: p.grad + WORK.weight_decay * p.detach() for n, p in own.items() if p.grad is not None}


def test_mimelite_equals_a_loop_by_hand(tmp_path: Path) -> None:
    ran = federate(tmp_path, MimeLite(training=WORK, rounds=3), rounds=3, model=double())
    model, backbone, buffers, heads = begin(ran)
    momentum = zeros(backbone)
    for round in (1, 2, 3):
        answers, gradients = [], []
        for name in SAMPLES:
            load(model, backbone, buffers)
            gradients.append(full_gradient(model, heads[name], name, round))
            load(model, backbone, buffers)
            add = {n: BETA * m for n, m in momentum.items()}
            heads[name], _ = local_steps(model, heads[name], name, round, add.__getitem__)
            answers.append(get(model, [*backbone, *buffers]))
        averaged, gradient = (mean(each, list(SAMPLES.values())) for each in (answers, gradients))
        momentum = {n: BETA * momentum[n] + gradient[n] for n in backbone}
        backbone, buffers = {n: averaged[n] for n in backbone}, {n: averaged[n] for n in buffers}
    assert close(ran.server[BACKBONE], backbone)
    assert close(ran.server[BUFFERS], buffers)
    assert close(ran.server[OPTIMISER], momentum, 1e-4)


def test_scaffold_equals_a_loop_by_hand_with_partial_participation(tmp_path: Path) -> None:
    """One of two parties per round, so that c moves half-way and an absent party's c_i waits for it."""
    ran = federate(
        tmp_path, Scaffold(training=WORK, rounds=4, server_rate=0.9), rounds=4, participation=0.5, model=double()
    )
    rows = [row for row in read_ledger(tmp_path / "ledger.jsonl") if row.get("group") == BACKBONE]
    present = [row["party"] for row in rows if row.get("direction") == "down"]
    assert set(present) == set(SAMPLES)
    model, backbone, buffers, heads = begin(ran)
    control, own = zeros(backbone), {name: zeros(backbone) for name in SAMPLES}
    for round, name in enumerate(present, 1):
        load(model, backbone, buffers)
        add = {n: control[n] - own[name][n] for n in control}
        heads[name], _ = local_steps(model, heads[name], name, round, add.__getitem__)
        answer = get(model, [*backbone, *buffers])
        drift = {n: (backbone[n] - answer[n]) / (STEPS[name] * WORK.learning_rate) for n in backbone}
        before = own[name]
        own[name] = {n: before[n] - control[n] + drift[n] for n in control}
        control = {n: control[n] + 1 / 2 * (own[name][n] - before[n]) for n in control}
        backbone = {n: backbone[n] + 0.9 * (answer[n] - backbone[n]) for n in backbone}
        buffers = {n: answer[n] for n in buffers}
    assert close(ran.server[BACKBONE], backbone)
    assert close(ran.server[OPTIMISER], control, 1e-4)
    for name in SAMPLES:
        assert close(ran.party(name)["control"], own[name], 1e-4)


def test_scaffold_averages_control_variates_equally_and_backbones_by_weight(tmp_path: Path) -> None:
    ran = federate(tmp_path, Scaffold(training=WORK, rounds=1), rounds=1, weighting="samples", model=double())
    model, backbone, buffers, heads = begin(ran)
    answers = []
    for name in SAMPLES:
        load(model, backbone, buffers)
        local_steps(model, heads[name], name, 1, lambda n: 0.0)
        answers.append(get(model, list(backbone)))
    drifts = [
        {n: (backbone[n] - answer[n]) / (steps * WORK.learning_rate) for n in backbone}
        for answer, steps in zip(answers, STEPS.values(), strict=True)
    ]
    assert close(ran.server[BACKBONE], mean(answers, [5, 12]))
    assert close(ran.server[OPTIMISER], mean(drifts, [1, 1]), 1e-4)


def test_a_constant_correction_leaves_other_gradients_alone() -> None:
    parameters = {name: torch.ones(2).requires_grad_() for name in ("a", "head")}
    for parameter in parameters.values():
        parameter.grad = torch.ones(2)
    correct: Correct = add_constant({"a": torch.tensor([2.0, 4.0])}, 0.5)
    for expected in ([2.0, 3.0], [3.0, 5.0]):
        with torch.no_grad():
            correct(parameters)
        assert parameters["a"].grad is not None
        assert parameters["a"].grad.tolist() == expected
    assert parameters["head"].grad is not None
    assert parameters["head"].grad.tolist() == [1.0, 1.0]


def test_a_weighted_sum_of_groups_is_new_and_in_the_order_of_the_first() -> None:
    one, other = {"a": torch.ones(2), "b": torch.zeros(1)}, {"b": torch.ones(1), "a": torch.full((2,), 3.0)}
    total = weighted((2.0, one), (0.5, other))
    assert {name: value.tolist() for name, value in total.items()} == {"a": [3.5, 3.5], "b": [0.5]}
    assert list(total) == ["a", "b"]
    total["a"].zero_()
    assert one["a"].tolist() == [1.0, 1.0]


class Slower(PFM):
    """A method that would train its parties at another rate than the server reckons with."""

    def rate(self, round: int) -> float:
        return 0.1 * WORK.learning_rate


def test_a_method_cannot_have_a_learning_rate_of_its_own(tmp_path: Path) -> None:
    """The schedule is the core's: parties and server of PFM go on as before, to the same bits."""
    own = federate(tmp_path / "own", Slower(training=WORK, rounds=2))
    plain = federate(tmp_path / "plain", PFM(training=WORK, rounds=2))
    for group in (BACKBONE, OPTIMISER):
        assert all(torch.equal(own.server[group][name], value) for name, value in plain.server[group].items())


def test_parties_and_server_see_the_same_rate_in_every_round(tmp_path: Path) -> None:
    seen: dict[str, list[float]] = {"party": [], "server": []}

    class Looks(METHODS["fedavg"]):  # type: ignore[misc,valid-type]
        def train(self, party: Party, parcel: Parcel) -> Parcel:
            seen["party"].append(party.rate)
            return super().train(party, parcel)

        def absorb_train(self, server: Any, result: Any, context: Any) -> Any:
            seen["server"].append(context.rate)
            return super().absorb_train(server, result, context)

    work = WORK.model_copy(update={"schedule": "cosine", "learning_rate": 0.01})
    federate(tmp_path, Looks(training=work), rounds=2, partition=ONE)
    assert seen["party"] == seen["server"] == [0.01, 0.005]
