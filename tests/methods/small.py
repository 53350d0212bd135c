"""A federation small enough for hand-written loops: random images, ir-tiny at 32 x 32, the real hosts and loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.config import Federation as Settings
from fedvisage.config import Training
from fedvisage.core.codec import State
from fedvisage.core.method import WEIGHTINGS, Component, Method, Rates, Weighting
from fedvisage.core.parcel import BACKBONE, BUFFERS, PUBLIC_EMBEDDINGS, Tensors
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights, snapshot
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.faces.partition import Partition, Share, party_faces
from fedvisage.federation import Event, Federation, Host, InProcess, StateStore, Workers
from fedvisage.federation.checkpoint import Book
from fedvisage.losses import cosface
from fedvisage.models import Backbone, create_backbone
from fedvisage.training import batches, rates_of

SIZE = 32
WORK = Training(batch_size=4, learning_rate=0.05, weight_decay=1e-3)
EMBEDDING = 128


def faceset(people: int = 5, each: int = 4) -> FaceSet:
    pixels = np.random.default_rng(3).integers(0, 256, (people * each, SIZE, SIZE, 3), dtype=np.uint8)
    return FaceSet(
        ArrayImages(pixels), np.repeat(np.arange(people), each), tuple("abcdefghijklmnopqrstuvwxyz"[:people])
    )


FACES = faceset()
PARTITION = Partition(
    (), (), {"ann": Share("trainer", tuple(range(3, 8)), (0, 1, 2)), "bob": Share("trainer", tuple(range(8, 20)), ())}
)
"""Ann: persons a (one image) and b (four), three of a held out. Bob: persons c, d, e."""


def network() -> Backbone:
    return create_backbone("ir-tiny", image_size=SIZE, generator=torch.Generator().manual_seed(1))


@dataclass
class Ran:
    """What a federation left."""

    server: State
    book: Book
    folder: Path
    start: State

    def party(self, name: str) -> State:
        return StateStore(self.folder / "parties").load(name, self.book.generations[name])


@dataclass(frozen=True)
class MakeHost:
    """Builds the host of any process; all but the first make a network of their own."""

    folder: Path
    components: tuple[Component, ...]
    policy: str
    faces: FaceSet
    partition: Partition
    batchnorm: Tensors
    keep_local: bool
    together: int
    weights: Weights | None
    rounds: int

    def rates(self) -> Rates:
        return rates_of(getattr(self.components[0], "training", WORK), self.rounds)

    def __call__(self, worker: int) -> Host:
        weights = self.weights or Weights(network(), self.policy)  # type: ignore[arg-type]
        own: Callable[[str], Any] = lambda name: party_faces(self.faces, self.partition, name)  # noqa: E731
        store, streams = StateStore(self.folder / "parties"), Streams(1, "parties")
        return Host(
            self.components, weights, own, store, streams, self.batchnorm, self.keep_local, self.together, self.rates()
        )


def federate(
    folder: Path,
    method: Method,
    *,
    rounds: int = 2,
    policy: str = "average",
    others: Sequence[Component] = (),
    partition: Partition = PARTITION,
    weighting: str | Weighting = "samples",
    keep_local: bool = False,
    public: Tensors | None = None,
    model: Backbone | None = None,
    participation: float = 1.0,
    faces: FaceSet = FACES,
    watch: Callable[[Event], None] = lambda event: None,
    together: int = 1,
    workers: int = 0,
) -> Ran:
    """Run a method in this process, or in some workers of it."""
    weights = Weights(model or network(), policy)  # type: ignore[arg-type]
    start: State = {
        BACKBONE: snapshot(weights.backbone),
        BUFFERS: snapshot(weights.buffers),
        "batchnorm": snapshot(weights.local),
        PUBLIC_EMBEDDINGS: public or {},
    }
    weigh = WEIGHTINGS[weighting]() if isinstance(weighting, str) else weighting
    components, here = (method, weigh, *others), None if workers else weights
    make = MakeHost(
        folder, components, policy, faces, partition, start["batchnorm"], keep_local, together, here, rounds
    )
    transport = Workers(make, workers) if workers else InProcess(make)
    roles = {name: share.role for name, share in partition.parties.items()}
    settings = Settings(
        rounds=rounds,
        batchnorm=policy,  # type: ignore[arg-type]
        keep_local=keep_local,
        participation=participation,
    )
    federation = Federation(
        method,
        weigh,
        others,
        roles,
        transport,
        settings,
        folder,
        Streams(1, "server"),
        start,
        EMBEDDING,
        watch=watch,
        rates=make.rates(),
    )
    try:
        server, book = federation.run()
    finally:
        transport.close()
    return Ran(server, book, folder, start)


def faces_of(name: str, partition: Partition = PARTITION) -> Faces:
    return party_faces(FACES, partition, name)[1].train


def random_head(name: str, classes: int) -> Tensor:
    """The private class embeddings a party starts with: N(0, 0.01) from its joining stream."""
    generator = Streams(1, "parties", 0, name).torch("class embeddings")
    return torch.randn(classes, EMBEDDING, generator=generator) * 0.1


def put(model: torch.nn.Module, tensors: Tensors) -> None:
    with torch.no_grad():
        everything = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, value in tensors.items():
            everything[name].copy_(value)


def get(model: torch.nn.Module, names: Sequence[str]) -> Tensors:
    everything = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: everything[name].detach().clone() for name in names}


def work_locally(
    model: Backbone,
    head: Tensor,
    faces: Faces,
    name: str,
    round: int,
    offset: int = 0,
    anchor: float = 0.0,
    work: Training = WORK,
) -> Tensor:
    """One party's local work with torch alone; with `anchor` a proximal term by autograd. The head afterwards."""
    head = head.clone().requires_grad_()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    fixed = {n: p.detach().clone() for n, p in parameters.items()}
    optimiser = torch.optim.SGD(
        [*parameters.values(), head], lr=work.learning_rate, momentum=work.momentum, weight_decay=work.weight_decay
    )
    model.train()
    for batch in batches(faces, work, Streams(1, "parties", round, name, "train"), torch.device("cpu")):
        loss = cosface(model(model.preprocess(batch.images)), head, batch.labels + offset)
        if anchor:
            loss = loss + anchor / 2 * sum((p - fixed[n]).square().sum() for n, p in parameters.items())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.detach()


def mean(answers: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """The weighted mean, in double precision."""
    total = sum(weights)
    return {
        name: sum(w / total * a[name].double() for w, a in zip(weights, answers, strict=True)).float()
        for name in answers[0]
    }


def close(one: Tensors, other: Tensors, tolerance: float = 1e-6) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], atol=tolerance, rtol=1e-5) for name in one)
