"""`megaface` on the devkit's real lists with drawn images, against a count in plain loops."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvisage.core.randomness import Streams
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.models import create_backbone, load_model, save_model
from fedvisage.protocols import Data, Options, open_subject, run

LISTS = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "lists" / "megaface"
pytestmark = pytest.mark.skipif(not LISTS.is_dir(), reason="no real lists: set FEDVISAGE_DATA")
NAMES = ("facescrub_features_list.json", "megaface_features_list.json_1000_1")
SIZE, FAR = 32, 1e-4


def picture(person: int, number: int) -> bytes:
    base = np.random.default_rng(person).integers(0, 256, (4, 4, 3)).repeat(8, 0).repeat(8, 1)
    noise = np.random.default_rng([person, number]).normal(0, 60, base.shape)
    return encode(np.clip(base + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The face set, a network and its embeddings, and the paths of probes and distractors in the lists' order."""
    root = tmp_path_factory.mktemp("megaface")
    for path in LISTS.iterdir():
        (root / "in" / "lists").mkdir(parents=True, exist_ok=True)
        (root / "in" / "lists" / path.name).write_bytes(path.read_bytes())
    probes, others = (json.loads((LISTS / name).read_text())["path"] for name in NAMES)
    people = sorted({path.split("/")[0] for path in probes})
    for number, path in enumerate([*probes, *others]):
        person = people.index(path.split("/")[0]) if number < len(probes) else 1000 + number % 90
        file = root / "in" / "images" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(person, number))
    kind, source = read_source(root / "in", None, None, {})
    write_source(source, root / "faces", Report("in", kind), Selection(size=SIZE))
    generator = torch.Generator().manual_seed(3)
    network = create_backbone("ir-tiny", image_size=SIZE, embedding_size=16, generator=generator)
    save_model(root / "model.safetensors", network)
    faces = open_faceset(root / "faces")
    vectors = load_model(root / "model.safetensors").embed(faces.images.read(np.arange(len(faces))), flip=False)
    return root, vectors, probes, others


def listed(name: str) -> set[str]:
    return {line.strip() for line in (LISTS / name).read_text().splitlines() if not line.startswith("#")}


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("noise", ["insightface", "megaface", "drop"])
def test_the_real_lists_score_as_a_slow_count_says(imported, noise: str) -> None:
    """Every probe looks for every other image of its person among all distractors. A noisy distractor is nobody; a
    noisy probe is the sum or mean of its person's others with noise that the same stream draws. TAR is at the largest
    score between a probe and a distractor that one in 10,000 of those pairs may pass."""
    root, vectors, paths, others = imported
    probe, other = unit(vectors[: len(paths)].astype(float)), unit(vectors[len(paths) :].astype(float))
    person = [path.split("/")[0] for path in paths]
    noisy_names, noisy_paths = listed("facescrub_noises.txt"), listed("megaface_noises.txt")
    bad = [number for number, path in enumerate(paths) if path.split("/")[1] in noisy_names]
    bad_other = [path in noisy_paths for path in others]
    assert (len(paths), len(others), len(bad), sum(bad_other)) == (3530, 1000, 24, 0)
    if noise in ("insightface", "megaface"):
        draws = Streams(1).numpy("noisy probes").uniform(-0.001, 0.001, (len(bad), 16))
        for number, draw in zip(bad, draws, strict=True):
            clean = [n for n, name in enumerate(person) if name == person[number] and n not in bad]
            total = np.sum([unit(vectors[n].astype(float)) for n in clean], axis=0)
            probe[number] = unit((total if noise == "insightface" else total / len(clean)) + draw)
    kept = [n for n in range(len(paths)) if noise != "drop" or n not in bad]

    right, trials, genuine, impostor = 0, 0, [], []
    for one in kept:
        against = other @ probe[one]
        impostor.append(against)
        for mate in kept:
            if mate != one and person[mate] == person[one]:
                score = probe[one] @ probe[mate]
                trials += 1
                right += not (against >= score).any()
                genuine += [score] * (mate > one)
    among = np.sort(np.concatenate(impostor))[::-1]
    threshold = among[int(FAR * len(among))]

    options = Options(fars=(FAR,), noise=noise, flip=False)  # type: ignore[arg-type]
    result = run("megaface", Data(root / "faces"), open_subject(str(root / "model.safetensors")), options)
    assert result.counts["trials"] == trials
    assert result.counts["genuine"] == len(genuine)
    assert result.counts["impostor"] == len(kept) * 1000
    assert result.metrics["rank-1"] == right / trials
    assert result.metrics[f"TAR@{FAR:g}"] == np.mean(np.array(genuine) > threshold)
    assert 0.01 < result.metrics["rank-1"] < 0.99
