"""Honest federations are never refused, however unequal their parties; an update 26 times as large always is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SIZE, Ran, federate
from torch import Tensor, nn

from fedvisage.config import Training
from fedvisage.core.method import REGULARISERS, Component, Method, Party
from fedvisage.core.parcel import BACKBONE, Parcel
from fedvisage.faces.faceset import ArrayImages, FaceSet
from fedvisage.faces.partition import Partition, Share
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fedface import FedFace
from fedvisage.methods.feduda import FedUDA
from fedvisage.methods.pfm import PFM
from fedvisage.models.backbone import Backbone, BackboneMetadata, Stage

ROUNDS = 5


class Speck(Backbone):
    """One convolution, BatchNorm and a linear layer: a few milliseconds a step."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = BackboneMetadata("speck", "for tests", "", "", SIZE, 128, 0, 0)
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 8, 8), nn.BatchNorm2d(8), nn.Linear(128, 128)

    def all_stages(self) -> tuple[Stage, ...]:
        return (Stage("all", (self.conv, self.norm, self.linear), self._run),)

    def _run(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.conv(x)).relu().flatten(1))  # type: ignore[no-any-return]

    def initialise_weight(self, layer: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
        nn.init.kaiming_normal_(layer.weight, generator=generator)


@dataclass
class Honest:
    """A federation of real methods on faces of one pattern a person."""

    method: Method
    people: Sequence[tuple[str, Sequence[int]]]
    """By party: its role, and the images of each of its people."""
    others: Sequence[Component] = ()
    weighting: str = "equal"

    def run(self, folder: Path, seed: int) -> Ran:
        rng = np.random.default_rng(seed)
        counts = [count for _, own in self.people for count in own]
        patterns = rng.integers(0, 256, (len(counts), 8, 8, 3)).repeat(4, 1).repeat(4, 2)
        labels = np.repeat(np.arange(len(counts)), counts)
        pixels = 0.6 * patterns[labels] + rng.normal(60, 40, (len(labels), SIZE, SIZE, 3))
        faces = FaceSet(
            ArrayImages(pixels.clip(0, 255).astype(np.uint8)), labels, tuple(f"n{n:04d}" for n in range(len(counts)))
        )
        parties, start = {}, 0
        for number, (role, own) in enumerate(self.people):
            stop = start + sum(own)
            parties[f"p{number:03d}"] = Share(role, tuple(range(start, stop)), ())
            start = stop
        network = Speck()
        network.initialise(torch.Generator().manual_seed(seed))
        partition = Partition((), (), parties)
        return federate(
            folder,
            self.method,
            rounds=ROUNDS,
            others=self.others,
            weighting=self.weighting,
            partition=partition,
            faces=faces,
            model=network,
        )


def source_and_targets(seed: int) -> Honest:
    """Domain adaptation with a source of 100 steps and four targets of one."""
    work = Training(batch_size=4)
    people = [("source", [20] * 20), *[("target", [2, 2])] * 4]
    return Honest(FedUDA(training=work, pretrain_rounds=1), people)


def one_role_of_200_to_2(seed: int) -> Honest:
    """The same imbalance among trainers, whom no role tells apart."""
    work = Training(batch_size=4)
    return Honest(FedPE(training=work), [("trainer", [20] * 40), *[("trainer", [4, 4])] * 4])


def log_normal_sizes(seed: int) -> Honest:
    """100 parties, a third of them with a single person and so without any loss."""
    sizes = np.exp(np.random.default_rng(seed).normal(0.6, 1.1, 100)).astype(int).clip(1)
    people = [("trainer", [4] * int(size)) for size in sizes]
    return Honest(FedPE(training=Training(batch_size=8)), people, weighting="samples")


def one_person_each(seed: int) -> Honest:
    """FedFace from mean embeddings: the first updates are next to nothing."""
    work = Training(batch_size=6, steps=1)
    method = FedFace(training=work)
    return Honest(method, [("trainer", [6])] * 20, [REGULARISERS["spreadout"](training=work)])  # type: ignore[call-arg]


def many_steps_with_global_momentum(seed: int) -> Honest:
    """PFM at 32 local steps."""
    return Honest(PFM(training=Training(batch_size=8, steps=32)), [("trainer", [16] * 4)] * 3)


FEDERATIONS = (
    source_and_targets,
    one_role_of_200_to_2,
    log_normal_sizes,
    one_person_each,
    many_steps_with_global_momentum,
)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("federation", FEDERATIONS)
def test_nobody_honest_is_refused(federation: Callable[[int], Honest], seed: int, tmp_path: Path) -> None:
    federation(seed).run(tmp_path, seed)
    assert not (tmp_path / "failures.log").exists(), (tmp_path / "failures.log").read_text()


class Swollen(FedPE):
    """Averaging in which two parties send 26 times their update in the last round."""

    def fit(self, party: Party, parcel: Parcel, *more: Any) -> Any:
        done = super().fit(party, parcel, *more)
        if party.round == ROUNDS and party.name in ("p000", "p002"):
            for name, end in party.weights.backbone.items():
                end.copy_(torch.lerp(parcel[BACKBONE][name], end, 26.0))
        return done


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_update_26_times_as_large_is_refused_of_the_heaviest_and_a_light_party(seed: int, tmp_path: Path) -> None:
    """Parties of 100 and of 10 steps, at a rate at which nobody learns its images by heart and stops moving."""
    method = Swollen(training=Training(batch_size=4, learning_rate=0.002))
    Honest(method, [("trainer", [20] * 20), *[("trainer", [10] * 4)] * 4]).run(tmp_path, seed)
    refused = (tmp_path / "failures.log").read_text().splitlines()
    assert [line.split(": ")[0].split()[-1] for line in refused] == ["p000", "p002"]
    assert all("beyond the bound" in line for line in refused)
