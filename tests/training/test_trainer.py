"""The training loop equals a bare loop around torch's SGD, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.losses import cosface
from fedvisage.models import Backbone, create_backbone
from fedvisage.training import Batch, Trainer, batches, embed_images, loss_of, rates_of

SIZE = 32


def faces(count: int = 10) -> Faces:
    pixels = np.random.default_rng(1).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)
    return Faces(FaceSet(ArrayImages(pixels), np.arange(count) % 2, ("a", "b")), np.arange(count))


def network() -> Backbone:
    model = create_backbone("ir-tiny", image_size=SIZE, generator=torch.Generator().manual_seed(1))
    Weights(model)
    return model


def embeddings() -> Tensor:
    return torch.randn(2, network().metadata.embedding_size, generator=torch.Generator().manual_seed(2))


def trained(work: Training, stretches: int = 1, keep: bool = False) -> tuple[Backbone, Tensor, list[Any]]:
    """Our loop, in one or several stretches."""
    model, head, state, fits = network(), embeddings(), {}, []
    for stretch in range(stretches):
        trainer = Trainer(model, {"class_embeddings": head}, work, work.learning_rate)
        if keep:
            trainer.restore(state)
        criterion, live = loss_of(work), trainer.others["class_embeddings"]

        def loss(features: Tensor, batch: Batch, criterion: Any = criterion, live: Tensor = live) -> Tensor:
            return criterion(features, live, batch.labels)

        fits.append(trainer.fit(faces(), loss, Streams(5, stretch)))
        head = trainer.values()["class_embeddings"]
        state = {name: buffer.clone() for name, buffer in trainer.state().items()}
    return model, head, fits


def bare(work: Training, stretches: int = 1, keep: bool = False) -> tuple[Backbone, Tensor]:
    """The same written out with torch alone."""
    model, head = network(), embeddings().requires_grad_()
    parameters = [*model.parameters(), head]
    options = {"lr": work.learning_rate, "momentum": work.momentum, "weight_decay": work.weight_decay}
    optimiser = torch.optim.SGD(parameters, **options)
    model.train()
    for stretch in range(stretches):
        if not keep:
            optimiser = torch.optim.SGD(parameters, **options)
        for batch in batches(faces(), work, Streams(5, stretch), torch.device("cpu")):
            features = model(model.preprocess(batch.images))
            optimiser.zero_grad()
            cosface(features, head, batch.labels).backward()
            optimiser.step()
    return model, head.detach()


def equal(one: Backbone, other: Backbone) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("work", [Training(batch_size=4), Training(batch_size=4, steps=5, momentum=0.0)])
def test_it_equals_a_bare_loop_bit_for_bit(work: Training) -> None:
    (model, head, fits), (plain, plain_head) = trained(work), bare(work)
    assert equal(model, plain)
    assert torch.equal(head, plain_head)
    assert (fits[0].images, fits[0].steps) == ((10, 3) if work.steps is None else (18, 5))


def test_the_loss_it_reports_is_the_mean_over_images() -> None:
    work = Training(batch_size=4, learning_rate=1e-12, weight_decay=0, flip=False)
    model, head = network(), embeddings()
    losses = []
    model.train()
    for batch in batches(faces(), work, Streams(5, 0), torch.device("cpu")):
        value = cosface(model(model.preprocess(batch.images)), head, batch.labels)
        losses.append((value.item(), len(batch.labels)))
    wanted = sum(value * count for value, count in losses) / 10
    assert trained(work)[2][0].loss == pytest.approx(wanted, rel=1e-5)


def test_kept_momentum_goes_on_where_it_stopped() -> None:
    work = Training(batch_size=4, steps=2)
    kept, wanted = trained(work, stretches=3, keep=True), bare(work, stretches=3, keep=True)
    assert equal(kept[0], wanted[0])
    reset, wanted_reset = trained(work, stretches=3), bare(work, stretches=3)
    assert equal(reset[0], wanted_reset[0])
    assert not equal(kept[0], reset[0])


def test_without_momentum_there_is_no_state_to_keep() -> None:
    trainer = Trainer(network(), {"class_embeddings": embeddings()}, Training(momentum=0.0), 0.1)
    assert trainer.state() == {}


def test_a_correction_changes_the_gradients_before_the_step() -> None:
    """Gradients set to one: every backbone parameter moves by exactly the rate."""
    work = Training(batch_size=10, momentum=0.0, weight_decay=0.0, learning_rate=0.5)
    model = network()
    before = snapshot(dict(model.named_parameters()))
    trainer = Trainer(model, {"class_embeddings": embeddings()}, work, 0.5)

    def ones(parameters: Any) -> None:
        for parameter in parameters.values():
            parameter.grad.fill_(1.0)

    trainer.fit(faces(), lambda f, b: cosface(f, trainer.others["class_embeddings"], b.labels), Streams(1), ones)
    moved = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(torch.allclose(parameter, before[name] - 0.5, atol=1e-6) for name, parameter in moved.items())


def test_a_loss_that_is_no_number_is_an_error_that_says_what_to_do() -> None:
    trainer = Trainer(network(), {"c": embeddings()}, Training(), 0.1)
    with pytest.raises(FedVisageError, match=r"training diverged: the loss is nan; lower training\.learning_rate"):
        trainer.fit(faces(), lambda f, b: f.sum() * math.nan, Streams(1))


def test_a_rate_far_too_high_is_reported_as_such() -> None:
    work = Training(batch_size=4, epochs=3, learning_rate=1e30, loss="softmax")
    with pytest.raises(FedVisageError, match="training diverged"):
        trained(work)


@pytest.mark.parametrize(
    ("work", "rates"),
    [
        (Training(learning_rate=0.1), [0.1, 0.1, 0.1, 0.1]),
        (Training(learning_rate=0.1, schedule="steps", milestones=(1, 3)), [0.1, 0.01, 0.01, 0.001]),
        (Training(learning_rate=0.1, schedule="steps", milestones=(2,), decay=0.5), [0.1, 0.1, 0.05, 0.05]),
        (Training(learning_rate=0.1, schedule="cosine"), [0.1, 0.0853553, 0.05, 0.0146447]),
    ],
    ids=["constant", "steps", "half", "cosine"],
)
def test_schedules_by_hand(work: Training, rates: list[float]) -> None:
    """Four rounds; the cosine is 0.05 (1 + cos(0, 45, 90, 135 degrees))."""
    assert [rates_of(work, 4)(round) for round in (1, 2, 3, 4)] == pytest.approx(rates, rel=1e-5)


def test_the_loss_takes_scale_and_margin_where_they_are_given() -> None:
    features, head, labels = torch.randn(3, 4), torch.randn(2, 4), torch.tensor([0, 1, 1])
    ours = loss_of(Training(scale=8.0, margin=0.1))(features, head, labels)
    assert torch.equal(ours, cosface(features, head, labels, scale=8.0, margin=0.1))
    assert torch.equal(loss_of(Training())(features, head, labels), cosface(features, head, labels))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_embeddings_of_a_set_do_not_depend_on_its_blocks(size: int) -> None:
    model = network()
    whole = model.embed(faces().all(), flip=True)
    assert np.allclose(embed_images(model, faces(), batch_size=size), whole, atol=1e-5)
    unit = embed_images(model, faces(), normalise=True, batch_size=size)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)


def test_what_is_fixed_is_used_but_not_moved() -> None:
    work, head = Training(batch_size=4), embeddings()
    trainer = Trainer(network(), {"class_embeddings": head}, work, 0.05, fixed=("class_embeddings",))
    criterion, live = loss_of(work), trainer.others["class_embeddings"]
    before = {name: tensor.detach().clone() for name, tensor in trainer.parameters.items()}
    trainer.fit(faces(), lambda features, batch: criterion(features, live, batch.labels), Streams(5))
    assert torch.equal(trainer.values()["class_embeddings"], head)
    assert any(not torch.equal(trainer.parameters[name], value) for name, value in before.items())


def test_the_backbone_can_go_without_momentum_while_the_head_has_its_own_and_a_rate_of_its_own() -> None:
    """Against two SGD optimisers of torch, one for each part."""
    work, head = Training(batch_size=4, momentum=0.9, weight_decay=1e-3, heads_rate=4.0), embeddings()
    model = network()
    trainer = Trainer(model, {"class_embeddings": head}, work, 0.05, backbone_momentum=0.0)
    criterion, live = loss_of(work), trainer.others["class_embeddings"]
    trainer.fit(faces(), lambda features, batch: criterion(features, live, batch.labels), Streams(5))

    other, bare_head = network(), embeddings().requires_grad_()
    parts = [([p for p in other.parameters() if p.requires_grad], 0.05, 0.0), ([bare_head], 0.2, 0.9)]
    steps = [torch.optim.SGD(p, lr=rate, momentum=m, weight_decay=1e-3) for p, rate, m in parts]
    other.train()
    for batch in batches(faces(), work, Streams(5), torch.device("cpu")):
        for step in steps:
            step.zero_grad()
        criterion(other(other.preprocess(batch.images)), bare_head, batch.labels).backward()
        for step in steps:
            step.step()
    assert torch.equal(trainer.values()["class_embeddings"], bare_head.detach())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert set(trainer.state()) == {"class_embeddings"}


def test_fixed_statistics_stay_and_are_what_training_normalises_by() -> None:
    """One step equals torch's on a network whose BatchNorm is in evaluation mode and everything else is not."""
    work = Training(batch_size=10, epochs=1, learning_rate=0.05, batchnorm="fixed", flip=False)
    model, head, _ = trained(work)
    by_hand, own = network(), embeddings().requires_grad_()
    before = {name: buffer.clone() for name, buffer in by_hand.named_buffers()}
    by_hand.train()
    for module in by_hand.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.eval()
    optimiser = torch.optim.SGD([*by_hand.parameters(), own], lr=0.05, momentum=0.9, weight_decay=5e-4)
    (batch,) = batches(faces(), work, Streams(5, 0), torch.device("cpu"))
    cosface(by_hand(by_hand.preprocess(batch.images)), own, batch.labels).backward()
    optimiser.step()
    assert equal(model, by_hand)
    assert torch.equal(head, own.detach())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert not equal(model, trained(work.model_copy(update={"batchnorm": "batch"}))[0])
