"""Federated validation's memory: the trainers' backbones and one candidate, whatever carries it to the validators."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from small import faceset, federate

from fedvisage.config import Training
from fedvisage.core.flat import weighted
from fedvisage.core.parcel import BACKBONE, BUFFERS
from fedvisage.faces.shares import Partition, Share
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.fv import FV, FederatedValidation

WORK = Training(batch_size=4, learning_rate=0.05)
ROLES = {"ann": "trainer", "bob": "trainer", "cat": "trainer", "vera": "validator", "vic": "validator"}
SHARES = {name: Share(role, tuple(range(16 * n, 16 * n + 16))) for n, (name, role) in enumerate(ROLES.items())}


class Watched(FederatedValidation):
    """Notes where its candidates are, and compares each with a mixture made anew."""

    places: ClassVar[list[tuple[int, ...]]] = []

    def send(self, server: Any, weights: Any, cohort: Any) -> Any:
        parcels = super().send(server, weights, cohort)
        kept, sent = server[FV], next(iter(parcels.values()))
        for group, of in ((BACKBONE, kept["backbones"]), (BUFFERS, kept["buffers"])):
            fresh = weighted(*((weights[name], of[name]) for name in weights))
            assert sent[group].keys() == fresh.keys()
            assert all(torch.equal(sent[group][name], value) for name, value in fresh.items()), "the same bits"
        self.places.append(tuple(tensor.data_ptr() for group in (BACKBONE, BUFFERS) for tensor in sent[group].values()))
        assert not pickle.loads(pickle.dumps(self))._room.groups, "a worker process that starts now gets no room"
        return parcels


@pytest.mark.parametrize(("overlap", "workers"), [(False, 0), (True, 0), (True, 2)])
def test_every_candidate_lies_where_the_one_before_was(tmp_path: Path, overlap: bool, workers: int) -> None:
    """Three candidates and a map of three weightings a round; beside training the map comes first."""
    Watched.places.clear()
    weighting = Watched(pairs=24, folds=2, candidates=3, overlap=overlap, map_every=1, map_steps=1)
    options: dict[str, Any] = {"partition": Partition((), (), SHARES), "faces": faceset(20, 4), "workers": workers}
    federate(tmp_path, FedPE(training=WORK, rounds=2), weighting=weighting, rounds=2, **options)
    assert len(Watched.places) == 2 * (3 + 3)
    assert len(set(Watched.places[:6])) == len(set(Watched.places[6:])) == 1
    assert not weighting._room.groups


def test_a_network_of_other_shapes_gets_room_of_its_own() -> None:
    part, places = FederatedValidation(), []
    for shape in ((2, 3), (4,), (4,)):
        kept = {name: {"w": torch.rand(shape)} for name in ("ann", "bob")}
        server: Any = {FV: {"weights": {}, "backbones": kept, "buffers": {}}}
        (parcel,) = part.send(server, {"ann": 0.25, "bob": 0.75}, ["vera"]).values()
        assert torch.equal(parcel[BACKBONE]["w"], weighted((0.25, kept["ann"]), (0.75, kept["bob"]))["w"])
        places.append(parcel[BACKBONE]["w"])
    assert places[1].data_ptr() == places[2].data_ptr() != places[0].data_ptr()
    assert part == FederatedValidation(), "what it holds tells no two apart"
