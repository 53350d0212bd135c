"""A small network, and small face sets with the lists of each protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import protocol_sets
import pytest
import torch
from protocol_sets import SIZE, template_lists, write

from fedvisage.faces.lists import ImageList
from fedvisage.models import Centre, create_backbone, save_model


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    network = create_backbone("ir-tiny", image_size=SIZE, embedding_size=16, generator=torch.Generator().manual_seed(3))
    network.centres["all"] = Centre(torch.nn.functional.normalize(torch.ones(16), dim=0) / 2, 20)
    save_model(path, network)
    return path


@pytest.fixture(scope="session")
def lfw_set(tmp_path_factory) -> Path:
    return protocol_sets.lfw(tmp_path_factory.mktemp("lfw"))


@pytest.fixture(scope="session")
def rfw_set(tmp_path_factory) -> Path:
    return protocol_sets.rfw(tmp_path_factory.mktemp("rfw"))


@pytest.fixture(scope="session")
def ijb_set(tmp_path_factory) -> Path:
    return protocol_sets.ijb(tmp_path_factory.mktemp("ijb"))


@pytest.fixture(scope="session")
def ijba_set(tmp_path_factory) -> Path:
    labels = np.arange(144) // 6
    templates, pairs, gallery, probes = template_lists()
    lists: dict = {}
    for split, some in (("split-01", gallery[0]), ("split-02", gallery[1])):
        lists |= {f"{split}.templates": templates, f"{split}.verification": pairs}
        lists |= {f"{split}.gallery": some, f"{split}.probes": probes}
    return write(tmp_path_factory.mktemp("ijba"), labels, lists)


@pytest.fixture(scope="session")
def megaface_set(tmp_path_factory) -> Path:
    labels = np.concatenate([np.repeat(np.arange(8), 4), np.full(60, 8)])
    probes, others, noise = np.arange(32), np.arange(32, 92), np.array([1, 40, 41])
    lists = {name: ImageList(some, labels[some]) for name, some in
             (("probes", probes), ("distractors", others), ("noise", noise))}  # fmt: skip
    return write(tmp_path_factory.mktemp("megaface"), labels, lists)
