"""Stand-ins: lists over people that no run trains on, as the protocols they stand for want them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.faces.lists import ImageList, PairList, SubjectList, TemplateList, TemplatePairs, open_list, write_lists
from fedvisage.models import create_backbone, save_model
from fedvisage.protocols import Data, open_subject, run
from fedvisage.studies.sets import located_set
from fedvisage.studies.standins import add_lists


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three folds of eight people each: four with five images, one with three, one with two, two with one."""
    counts = np.tile([5, 5, 5, 5, 3, 2, 1, 1], 3)
    labels = np.repeat(np.arange(24), counts)
    pixels = np.random.default_rng(1).integers(0, 256, (len(labels), 32, 32, 3)).astype(np.uint8)
    write_faceset(tmp_path / "set", FaceSet(ArrayImages(pixels), labels, tuple(f"p{n:02d}" for n in range(24))))
    first = np.searchsorted(labels, np.arange(24))
    left, right = first, np.roll(first.reshape(3, 8), 1, axis=1).ravel()
    write_lists(tmp_path / "set", {"pairs": PairList(left, right, left == right, np.arange(24) // 8)})
    return tmp_path / "set"


def test_everybody_with_four_images_has_two_templates_and_is_looked_for_once(folder: Path) -> None:
    labels = np.load(folder / "labels.npy")
    add_lists(folder, "templates")
    templates, pairs = open_list(folder, "templates"), open_list(folder, "verification")
    gallery, probes = open_list(folder, "gallery-1"), open_list(folder, "probes")
    assert isinstance(templates, TemplateList)
    assert isinstance(pairs, TemplatePairs)
    assert isinstance(gallery, SubjectList)
    assert isinstance(probes, SubjectList)
    tested = [8, 9, 10, 11, 16, 17, 18, 19]
    assert gallery.subject.tolist() == probes.subject.tolist() == tested
    for entries in (gallery, probes):
        for template, person in zip(entries.template, entries.subject, strict=True):
            own = templates.image[templates.template == template]
            assert set(labels[own]) == {person}
            assert len(own) in (2, 3)
    assert len(np.unique(templates.image)) == 40, "no image is in two templates"
    assert (len(pairs), int(pairs.same.sum())) == (64, 8)


def test_people_with_several_images_are_looked_for_among_those_with_one(folder: Path) -> None:
    add_lists(folder, "distractors")
    probes, others = open_list(folder, "probes"), open_list(folder, "distractors")
    assert isinstance(probes, ImageList)
    assert isinstance(others, ImageList)
    assert set(probes.subject.tolist()) == {8, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21}
    assert others.subject.tolist() == [14, 15, 22, 23]


def test_people_with_few_images_are_of_all_folds(folder: Path) -> None:
    """Nobody who has four images is among them."""
    labels = np.load(folder / "labels.npy")
    add_lists(folder, "few-templates")
    templates, gallery = open_list(folder, "templates"), open_list(folder, "gallery-1")
    assert isinstance(templates, TemplateList)
    assert isinstance(gallery, SubjectList)
    assert gallery.subject.tolist() == [4, 12, 20]
    sizes = np.bincount(templates.template).tolist()
    assert sizes == [2, 1] * 3, "a template of two images and one of one"
    assert labels[templates.image].tolist() == [4] * 3 + [12] * 3 + [20] * 3
    add_lists(folder, "few-distractors")
    probes, others = open_list(folder, "probes"), open_list(folder, "distractors")
    assert isinstance(probes, ImageList)
    assert isinstance(others, ImageList)
    assert set(probes.subject.tolist()) == {4, 5, 12, 13, 20, 21}
    assert others.subject.tolist() == [6, 7, 14, 15, 22, 23]


def test_pairs_are_those_of_the_last_two_folds(folder: Path) -> None:
    whole = open_list(folder, "pairs")
    assert isinstance(whole, PairList)
    add_lists(folder, "pairs")
    kept = open_list(folder, "pairs")
    assert isinstance(kept, PairList)
    assert (kept.left.tolist(), kept.right.tolist()) == (whole.left[8:].tolist(), whole.right[8:].tolist())
    assert kept.fold.tolist() == [1] * 8 + [2] * 8


def test_in_a_set_without_pairs_everybody_is_tested(folder: Path) -> None:
    shutil.rmtree(folder / "lists")
    add_lists(folder, "templates")
    gallery = open_list(folder, "gallery-1")
    assert isinstance(gallery, SubjectList)
    assert gallery.subject.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]


def test_a_stand_in_is_made_once_and_anew_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of an import, or one without its lists (as an earlier version may have left), is not taken for a set."""
    source, imported = "@drawn-lfw112-dev+pairs", tmp_path / "imported"
    unfinished = imported / "drawn" / "32" / "pairs" / "lfw112-dev.part"
    unfinished.mkdir(parents=True)
    (unfinished / "faces.json").write_text("{}")
    found = Path(located_set(source, 32, imported, tmp_path))
    kept = open_list(found, "pairs")
    assert isinstance(kept, PairList)
    assert np.unique(kept.fold).tolist() == [6, 7]
    assert not unfinished.exists()
    shutil.rmtree(found / "lists")
    assert located_set(source, 32, imported, tmp_path) == str(found)
    assert open_list(found, "pairs").same.any()
    monkeypatch.setattr("fedvisage.studies.sets.add_lists", lambda *_: pytest.fail("made again"))
    assert located_set(source, 32, imported, tmp_path) == str(found)


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [("templates", "ijb"), ("few-templates", "ijb"), ("distractors", "megaface"), ("few-distractors", "megaface")],
)
def test_the_protocol_runs_on_its_stand_in(folder: Path, tmp_path: Path, kind: str, protocol: str) -> None:
    add_lists(folder, kind)
    network = create_backbone("ir-tiny", image_size=32, embedding_size=16, generator=torch.Generator().manual_seed(1))
    save_model(tmp_path / "model.safetensors", network)
    result = run(protocol, Data(folder), open_subject(str(tmp_path / "model.safetensors")))
    assert 0 <= result.metrics["rank-1"] <= 1


def test_where_nobody_has_images_enough_a_stand_in_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.studies.standins.SEVERAL", 6)
    with pytest.raises(FedVisageError, match=r"stand-in 'templates': nobody in .* has 6 images"):
        add_lists(folder, "templates")


def test_an_unknown_stand_in_is_refused(folder: Path) -> None:
    with pytest.raises(FedVisageError, match="no stand-in 'template': did you mean 'templates'"):
        add_lists(folder, "template")
