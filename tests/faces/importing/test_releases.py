"""Releases as their archives unpack: each format is recognised, and what an import says is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import releases
from dataset_files import bring_in

TEN = "40 of 40 pairs, 10 folds of 2 + 2"


@pytest.mark.parametrize(
    ("release", "source", "kind", "people", "summary"),
    [
        (releases.calfw, "calfw", "pairs", 20, f"CALFW: {TEN}; published are 6,000 pairs in 10 folds of 300 + 300"),
        (releases.cplfw, "cplfw", "pairs", 20, "so fold k is the k-th 2 of these and of the different ones"),
        (releases.cfp, "cfp-dataset", "cfp", 20, f"CFP-FP: {TEN}"),
        (releases.agedb, "agedb_30.bin", "bin", 1, f"AgeDB-30: {TEN}"),
        (releases.rfw, "RFW", "rfw", 80, f"RFW, African: {TEN}"),
        (releases.ijbc, "IJBC", "ijb", 21, "IJB-C: 80 of 80 images of templates, 40 templates, 400 pairs"),
        (releases.ijba, "IJB-A", "ijba", 20, "IJB-A: 150 of 150 images of templates, 40 faces in 40 photos, 2 splits"),
        (releases.megaface, "megaface_testpack", "megaface", 6, "30 of 30 images"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_release_is_recognised_as_it_unpacks(
    release: Callable[[Path], None], source: str, kind: str, people: int, summary: str, tmp_path: Path
) -> None:
    release(tmp_path)
    _, report = bring_in(tmp_path / source, tmp_path / "out", size=32, threads=1)
    assert (report.format, report.identities) == (kind, people)
    assert any(summary in line for line in report.lines())
    assert report.unreadable == []


def test_one_folder_of_lfw_serves_several_lists(tmp_path: Path) -> None:
    releases.lfw(tmp_path)
    for name, told in (("pairs.txt", "LFW: "), ("pair_SLLFW.txt", "SLLFW: ")):
        options = {"pairs": tmp_path / name, "size": 32, "threads": 1}
        _, report = bring_in(tmp_path / "lfw", tmp_path / f"{name}-out", **options)
        assert (report.images, report.identities, report.lists) == (60, 20, {"pairs": 40})
        assert report.summary["pairs"].startswith(f"{told}{TEN}")


def test_the_aligned_faces_of_cplfw_are_taken_and_the_others_named(tmp_path: Path) -> None:
    releases.cplfw(tmp_path)
    _, report = bring_in(tmp_path / "cplfw", tmp_path / "out", size=32, threads=1)
    assert report.images == 60
    told = "61 images beside 'aligned images/', where the list's images are, left out: cover.jpg, images/Person_A_1.jpg"
    assert any(text.startswith(told) for text in report.remarks)
