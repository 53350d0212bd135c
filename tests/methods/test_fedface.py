"""FedFace: positive-only parties of one person against a loop by hand, its readings, and what its switches mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import FACES, Ran, federate, get, mean, network, put
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.parcel import BACKBONE, BUFFERS, PRIVATE_EMBEDDINGS
from fedvisage.core.randomness import Streams
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.losses import spreadout
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.fedface import FedFace
from fedvisage.methods.separation import Spreadout
from fedvisage.training import batches

WORK = Training(batch_size=4, steps=1, learning_rate=0.1, momentum=0.9, weight_decay=0.0)
PEOPLE = {"ann": (0, 1, 2, 3), "bob": (4, 5, 6), "cid": (8, 9, 10, 11)}
ONE_EACH = Partition((), (), {name: Share("trainer", images) for name, images in PEOPLE.items()})


def fedface(folder: Path, *, spread: bool = True, rounds: int = 1, **options: Any) -> Ran:
    part = Spreadout(strength=5.0, margin=1.2, training=WORK)
    method = FedFace(training=WORK, rounds=rounds, **options)
    return federate(folder, method, rounds=rounds, others=(part,) if spread else (), partition=ONE_EACH)


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def by_hand(ran: Ran, rounds: int) -> tuple[dict[str, Tensor], Tensor]:
    """Algorithm 1, one party after the other, with torch alone."""
    model, state = network(), {**ran.start[BACKBONE], **ran.start[BUFFERS]}
    put(model, state)
    faces = {name: party_faces(FACES, ONE_EACH, name)[1].train for name in PEOPLE}
    means = [model.embed(faces[name].all(), flip=False).astype(np.float64).mean(axis=0) for name in PEOPLE]
    heads = unit(torch.from_numpy(np.stack(means))).float()
    for round in range(1, rounds + 1):
        answers, moved = [], []
        for place, name in enumerate(PEOPLE):
            put(model, state)
            model.train()
            head = heads[place : place + 1].clone().requires_grad_()
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.SGD([*parameters, head], lr=0.1, momentum=0.9)
            for batch in batches(faces[name], WORK, Streams(1, "parties", round, name, "train"), torch.device("cpu")):
                cosines = unit(model(model.preprocess(batch.images))) @ unit(head[0])
                optimiser.zero_grad()
                (0.9 - cosines).clamp_min(0).square().mean().backward()
                optimiser.step()
            answers.append(get(model, list(state)))
            moved.append(unit(head.detach()))
        state = mean(answers, [4, 3, 4])
        live = torch.cat(moved).requires_grad_()
        spreadout(live, margin=1.2).backward()
        assert live.grad is not None
        heads = unit(live.detach() - 5.0 * 0.1 * live.grad)
    return state, heads


def test_two_rounds_equal_a_loop_by_hand(tmp_path: Path) -> None:
    ran = fedface(tmp_path, rounds=2)
    state, heads = by_hand(ran, 2)
    everything = {**ran.server[BACKBONE], **ran.server[BUFFERS]}
    assert all(torch.allclose(everything[name], value, atol=1e-5) for name, value in state.items())
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["rows"], heads, atol=1e-5)


def test_class_embeddings_stay_at_unit_length(tmp_path: Path) -> None:
    ran = fedface(tmp_path, rounds=2)
    assert torch.allclose(ran.server[PRIVATE_EMBEDDINGS]["rows"].norm(dim=1), torch.ones(3), atol=1e-6)
    assert all(abs(float(ran.party(name)["class_embeddings"].norm()) - 1) < 1e-6 for name in PEOPLE)


def test_without_spreadout_nothing_about_a_person_leaves(tmp_path: Path) -> None:
    ran = fedface(tmp_path, spread=False)
    assert PRIVATE_EMBEDDINGS not in ran.server
    assert PRIVATE_EMBEDDINGS not in (tmp_path / "ledger.jsonl").read_text()


def test_random_fixed_class_embeddings_stay_where_they_start(tmp_path: Path) -> None:
    ran = fedface(tmp_path, spread=False, embeddings_start="random", embeddings="fixed")
    for name in PEOPLE:
        drawn = torch.randn(1, 128, generator=Streams(1, "parties", 0, name).torch("class embeddings"))
        assert torch.allclose(ran.party(name)["class_embeddings"], unit(drawn), atol=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "cosface", "arcface"])
def test_a_margin_loss_over_one_person_teaches_exactly_nothing(loss: str, tmp_path: Path) -> None:
    """FedAvg with private class embeddings and one person per party: only BatchNorm statistics move."""
    work = WORK.model_copy(update={"loss": loss})
    ran = federate(tmp_path, FedAvg(training=work, rounds=1), rounds=1, partition=ONE_EACH)
    assert all(torch.allclose(ran.server[BACKBONE][n], t, atol=1e-7) for n, t in ran.start[BACKBONE].items())


def test_a_party_with_several_people_trains_on_the_margin_loss() -> None:
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    embeddings = unit(torch.randn(3, 8, generator=torch.Generator().manual_seed(2)))
    batch: Any = type("B", (), {"labels": torch.tensor([0, 1, 2, 0])})
    method, party = FedFace(training=Training(loss="cosface")), None
    several = method.objective(party, embeddings, 0)(features, batch)  # type: ignore[arg-type]
    plain = FedAvg(training=Training(loss="cosface")).objective(party, embeddings, 0)(features, batch)  # type: ignore[arg-type]
    assert torch.equal(several, plain)
    positive = FedFace(loss="positive").objective(party, embeddings, 0)(features, batch)  # type: ignore[arg-type]
    cosines = (unit(features) * embeddings[batch.labels]).sum(dim=1)
    assert torch.allclose(positive, (0.9 - cosines).clamp_min(0).square().mean())


def crowded(count: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return unit(torch.randn(count, 16, generator=generator) + 0.5)


def test_the_readings_of_the_step_differ_as_much_as_the_papers_codes_do() -> None:
    """How far the class embeddings turn: by far too much, sensibly, or hardly at all (spec N4 and N5)."""
    rows, owner = crowded(500), torch.arange(500)
    turned = {}
    for reading in ("without-rate", "summed", "released-code", "fedfr-code"):
        _, after = Spreadout(reading=reading).separate(rows, owner, None, 0.001)  # type: ignore[arg-type]
        turned[reading] = float((after - rows).norm(dim=1).mean())
    assert turned["without-rate"] > 1 > turned["summed"] > 0.1
    assert max(turned["released-code"], turned["fedfr-code"]) < turned["summed"] / 20


def test_ten_steps_with_momentum_are_torchs_sgd() -> None:
    rows = crowded()
    live = rows.clone().requires_grad_()
    optimiser = torch.optim.SGD([live], lr=0.01, momentum=0.9)
    for _ in range(10):
        optimiser.zero_grad()
        spreadout(live, reduction="mean").backward()
        optimiser.step()
    _, after = Spreadout(reading="released-code").separate(rows, torch.arange(50), None, 0.5)
    assert torch.allclose(after, unit(live.detach()), atol=1e-6)


def test_mining_pushes_from_the_closest_only_and_from_all_of_them_is_exact() -> None:
    rows, owner = crowded(), torch.arange(50)
    exact, few = Spreadout().regulariser(rows, owner, None), Spreadout(nearest=3).regulariser(rows, owner, None)
    everybody = Spreadout(nearest=49).regulariser(rows, owner, None)
    assert everybody.value == pytest.approx(exact.value)
    assert torch.allclose(everybody.gradient, exact.gradient, atol=1e-5)
    assert 0 < few.value < exact.value
    twice = torch.cat([rows, rows[:1]])
    same = Spreadout(nearest=49).regulariser(twice, torch.arange(51), torch.tensor([*range(50), 0]))
    assert torch.allclose(same.gradient[:50], exact.gradient, atol=1e-5)
    with pytest.raises(ValueError, match="nearest goes with readings that take a sum"):
        Spreadout(nearest=3, reading="released-code")


def test_copies_of_a_person_are_not_pushed_from_each_other() -> None:
    rows = crowded(3)
    rows[1] = rows[0]
    value, gradient = Spreadout().regulariser(rows, torch.arange(3), torch.tensor([5, 5, 9]))
    people = torch.stack([rows[0], rows[2]]).requires_grad_()
    dense = spreadout(people)
    dense.backward()
    assert people.grad is not None
    assert value == pytest.approx(dense.item())
    assert torch.allclose(gradient, people.grad[[0, 0, 1]], atol=1e-6)
