"""Lists of pairs in every way they come, and the sets that have them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from dataset_files import bring_in, image, put, shows
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode
from fedvisage.faces.importing.finding import identities_of
from fedvisage.faces.importing.pairs import parse_pairs
from fedvisage.faces.lists import PairList, list_names, open_list
from fedvisage.faces.template import ARCFACE_POINTS


def pairs_of(folder: Path, name: str = "pairs") -> list[tuple[int, int, int, int]]:
    pairs = open_list(folder, name)
    assert isinstance(pairs, PairList)
    return list(zip(*(c.tolist() for c in (pairs.left, pairs.right, pairs.same, pairs.fold)), strict=True))


def people(*names: str, each: int = 2) -> dict[str, bytes | str]:
    """`images/<name>/<name>_0001.jpg` and so on; image k of person n is number 10 n + k."""
    return {f"images/{n}/{n}_{k:04d}.jpg": image(10 * p + k) for p, n in enumerate(names) for k in range(1, each + 1)}


LFW = "2\t1\nAnn\t1\t2\nAnn\t2\tBob_B\t1\nBob_B\t1\t2\nBob_B\t2\tCy\t1\n"


def test_lfw_names_images_by_person_and_number_and_says_its_folds(tmp_path: Path) -> None:
    put(tmp_path / "lfw", people("Ann", "Bob_B", "Cy") | {"pairs.txt": LFW})
    faces, report = bring_in(tmp_path / "lfw", tmp_path / "out")
    assert (report.format, report.lists, faces.names) == ("pairs", {"pairs": 4}, ("Ann", "Bob_B", "Cy"))
    assert pairs_of(tmp_path / "out") == [(0, 1, 1, 1), (1, 2, 0, 1), (2, 3, 1, 2), (3, 4, 0, 2)]


def test_a_list_may_be_apart_from_the_images(tmp_path: Path) -> None:
    put(tmp_path / "lfw", people("Ann", "Bob_B", "Cy"))
    put(tmp_path, {"mine.txt": "Cy 1 2\nAnn 1 Bob_B 2\n"})
    bring_in(tmp_path / "lfw", tmp_path / "out", pairs=tmp_path / "mine.txt")
    assert pairs_of(tmp_path / "out") == [(4, 5, 1, 0), (0, 3, 0, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "Ann/Ann_0001.jpg\nAnn/Ann_0002.jpg\nAnn/Ann_0002.jpg\nBob/Bob_0001.jpg\n",
        "Ann_0001.jpg 1\nAnn_0002.jpg 1\nAnn_0002.jpg 0\nBob_0001.jpg 0\n",
        "Ann_0001.jpg 7\nAnn_0002.jpg 7\nAnn_0002.jpg 0\nBob_0001.jpg 0\n",
        "1 images/Ann/Ann_0001.jpg Ann/Ann_0002.jpg\n0 Ann_0002.jpg Bob/Bob_0001.jpg\n",
        "Ann/Ann_0001.jpg Ann/Ann_0002.jpg 1\nAnn/Ann_0002.jpg Bob/Bob_0001.jpg 0\n",
        "Ann\t1\t2\nAnn\t2\tBob\t1\r\n",
    ],
    ids=["sllfw", "calfw", "calfw folds", "answer first", "answer last", "rfw"],
)
def test_every_way_to_list_two_pairs_is_understood(text: str, tmp_path: Path) -> None:
    put(tmp_path / "set", people("Ann", "Bob") | {"pair_SLLFW.txt": text})
    bring_in(tmp_path / "set", tmp_path / "out")
    assert pairs_of(tmp_path / "out") == [(0, 1, 1, 0), (1, 2, 0, 0)]


def test_images_in_one_folder_are_told_apart_by_their_names(tmp_path: Path) -> None:
    files = {f"aligned images/{n}": image(k) for k, n in enumerate(["Ann_0001.jpg", "Ann_0002.jpg", "Bob_0001.jpg"])}
    put(
        tmp_path / "calfw",
        files | {"pairs_CALFW.txt": "Ann_0001.jpg 1\nAnn_0002.jpg 1\nAnn_0001.jpg 0\nBob_0001.jpg 0\n"},
    )
    faces, _ = bring_in(tmp_path / "calfw", tmp_path / "out")
    assert (faces.names, faces.labels.tolist()) == (("Ann", "Bob"), [0, 0, 1])
    assert pairs_of(tmp_path / "out") == [(0, 1, 1, 0), (0, 2, 0, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no pairs"),
        ("10 300\nAnn 1 2\n", "line 1 announces 10 x 300 x 2 pairs and the list holds 1"),
        ("2\nAnn 1 2\nAnn 1 Bob 1\n", "line 1 announces 2 same and 2 different pairs; the list holds 1 and 1"),
        ("Ann 1 x\n", "pairs.txt, line 1: 'Ann 1 x' is no pair"),
        ("Ann 1 2\nAnn 1 x\n", "line 2: 'Ann 1 x' is no pair, the lines before are like 'Ann 1 2'"),
        ("Ann 1 99999999999999999999999\n", "is too large"),
        ("a b c d e\n", "line 1: 'a b c d e' is no pair: it has 5 words"),
        ("a.jpg\nb.jpg\nc.jpg\n", "line 3: 'c.jpg' has no second image on a line after it"),
        ("1 a.jpg b.jpg\nx y z\n", "line 2: 'x y z' is no pair"),
        ("a.jpg 1\nb.jpg 1\nc.jpg 1\nd.jpg 0\n", "line 4: 'd.jpg 0' ends otherwise than line 3"),
        ("a 1\nb 1\nc 2\nd 2\ne 0\nf 0\n", "1 different pairs cannot be shared out to them equally"),
    ],
)
def test_a_list_that_is_wrong_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        parse_pairs(text, "pairs.txt")


@given(st.text(alphabet="a1 \t\n/._-0é\\:", max_size=60))
def test_any_text_is_pairs_or_our_error(text: str) -> None:
    try:
        pairs = parse_pairs(text, "pairs.txt")
    except FedVisageError:
        return
    assert len(pairs.left) == len(pairs.right) == len(pairs.same) > 0


def test_pairs_without_their_images_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "lfw", people("Ann", "Bob_B") | {"pairs.txt": LFW})
    missing = r"pairs.txt: 3 of 4 pairs are in .* image 1 of 'Cy' \(line 5\): .*--allow-missing 1"
    with pytest.raises(FedVisageError, match=missing):
        bring_in(tmp_path / "lfw", tmp_path / "out")
    with pytest.raises(FedVisageError, match="fold 2 holds 1 same pairs and no different one: too many of its images"):
        bring_in(tmp_path / "lfw", tmp_path / "out", allow_missing=1)
    assert not (tmp_path / "out").exists()
    put(tmp_path / "lfw", {"pairs.txt": LFW.partition("\n")[2]})
    _, report = bring_in(tmp_path / "lfw", tmp_path / "out", allow_missing=1)
    assert report.lists == {"pairs": 3}
    assert report.notes == [
        "pairs.txt holds 4 pairs; LFW is published with 6,000",
        "1 of 4 pairs are left out: their images are not there",
    ]


def test_several_lists_must_be_chosen_from(tmp_path: Path) -> None:
    put(tmp_path / "lfw", people("Ann") | {"pairs.txt": "Ann 1 2", "pair_SLLFW.txt": "a\nb"})
    with pytest.raises(
        FedVisageError, match=r"holds 2 lists of pairs \(pair_SLLFW.txt, pairs.txt\): name one with --pairs"
    ):
        bring_in(tmp_path / "lfw", tmp_path / "out")


def test_a_name_that_could_be_two_images_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "set", {"a/x/1.jpg": image(1), "b/x/1.jpg": image(2), "pairs.txt": "x/1.jpg 1\na/x/1.jpg 1\n"})
    with pytest.raises(FedVisageError, match=r"the images of pairs.txt are in 'a/x/' and in 'b/x/': name more of"):
        bring_in(tmp_path / "set", tmp_path / "out")


def test_rfw_has_pairs_per_race_and_each_race_is_a_domain(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for base, race in ((0, "African"), (50, "Asian")):
        for p, person in enumerate(("m.1", f"m.{race}")):
            for k in (1, 2):
                files[f"test/data/{race}/{person}/{person}_{k:04d}.jpg"] = image(base + 10 * p + k)
        files[f"test/txts/{race}/{race}_pairs.txt"] = f"m.1\t1\t2\nm.1\t2\tm.{race}\t1\n"
        files[f"test/txts/{race}/{race}_people.txt"] = f"m.1\t2\nm.{race}\t{2 if race == 'Asian' else 3}\n"
    put(tmp_path / "rfw", files)
    faces, report = bring_in(tmp_path / "rfw", tmp_path / "out")
    assert report.format == "rfw"
    assert faces.domains == ("African", "Asian")
    assert faces.domain is not None
    assert faces.domain.tolist() == [0] * 4 + [1] * 4
    assert list_names(tmp_path / "out") == {"pairs.african": "pairs", "pairs.asian": "pairs"}
    assert pairs_of(tmp_path / "out", "pairs.african") == [(0, 1, 1, 0), (1, 2, 0, 0)]
    assert pairs_of(tmp_path / "out", "pairs.asian") == [(4, 5, 1, 0), (5, 6, 0, 0)], "m.1 of Asian, not of African"
    assert report.notes == [
        "1 people are in two races (m.1): each is one person here, with every image in the domain of its own race",
        "African: 1 people have another number of images than test/txts/African/African_people.txt says",
        "there are no landmarks: images are taken as they are",
    ]


def rfw(scale: float, size: int) -> dict[str, bytes | str]:
    """Two people of one race with landmarks for images `scale` times as large as aligned ones; `train/` beside them."""
    files: dict[str, bytes | str] = {"test/txts/Asian/Asian_pairs.txt": "m.1\t1\t2\nm.1\t2\tm.2\t1\n"}
    x, y = (ARCFACE_POINTS[2] * scale).round().astype(int)
    photo = np.zeros((size, size, 3), np.uint8)
    photo[max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = 255
    lines = []
    for number, (person, k) in enumerate((p, k) for p in ("m.1", "m.2") for k in (1, 2)):
        photo[:8, :8] = 60 * number
        name = f"test/data/Asian/{person}/{person}_{k:04d}.jpg"
        files[name] = encode(photo)
        points = "\t".join(f"{value:.3f}" for value in (ARCFACE_POINTS * scale).ravel())
        lines.append(f"/{name}\t{person[-1]}\t{points}\n")
    files["train/data/Asian/m.9/m.9_0001.jpg"] = image(9)
    return files | {"test/txts/Asian/Asian_lmk.txt": "".join(lines)}


def test_rfws_loose_crops_are_aligned_by_their_landmarks(tmp_path: Path) -> None:
    """A white square at the nose of 400-pixel crops lands on the template's nose."""
    faces, report = bring_in(put(tmp_path / "rfw", rfw(3, 400)), tmp_path / "out")
    assert faces.names == ("m.1", "m.2"), "train/ is no part of it"
    assert any("train/data/Asian/m.9/m.9_0001.jpg" in text for text in report.remarks)
    pixels = faces.images.read(np.arange(len(faces)))
    assert pixels.shape == (4, 112, 112, 3)
    bright = np.argwhere(pixels[0, :, :, 0] > 128)
    assert np.abs(bright.mean(axis=0) - ARCFACE_POINTS[2][::-1]).max() < 0.6


def test_rfws_aligned_faces_stay_as_they_are(tmp_path: Path) -> None:
    """The landmarks of the loose crops lie outside faces of 112 pixels."""
    faces, report = bring_in(put(tmp_path / "rfw", rfw(3, 112)), tmp_path / "out")
    assert any("taken as they are: aligned before" in text for text in report.notes)
    assert faces.images.read(np.arange(1)).shape == (1, 112, 112, 3)


def test_cfp_pairs_frontal_with_profile_in_ten_folds(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for person in (1, 2):
        files |= {f"Data/Images/{person:03d}/frontal/{k:02d}.jpg": image(person * 10 + k) for k in (1, 2)}
        files[f"Data/Images/{person:03d}/profile/01.jpg"] = image(person * 10 + 5)
    frontal = [f"../Data/Images/{p:03d}/frontal/{k:02d}.jpg" for p in (1, 2) for k in (1, 2)]
    files["Protocol/Pair_list_F.txt"] = "".join(f"{n} {path}\n" for n, path in enumerate(frontal, 1))
    files["Protocol/Pair_list_P.txt"] = "1 ../Data/Images/001/profile/01.jpg\n2 ../Data/Images/002/profile/01.jpg\n"
    files |= {"Protocol/Split/FP/01/same.txt": "1,1\n2,1\n", "Protocol/Split/FP/01/diff.txt": "1,2\n"}
    files |= {"Protocol/Split/FP/02/same.txt": "4,2\n", "Protocol/Split/FP/02/diff.txt": "4,1\n"}
    files |= {"Protocol/Split/FF/01/same.txt": "1,2\n", "Protocol/Split/FF/01/diff.txt": "1,3\n"}
    put(tmp_path / "cfp", files)
    faces, report = bring_in(tmp_path / "cfp", tmp_path / "out")
    assert (report.format, faces.names) == ("cfp", ("001", "002"))
    found = [(*map(int, row[2:]), row) for row in pairs_of(tmp_path / "out")]
    assert [(same, fold) for same, fold, _ in found] == [(0, 1), (1, 1), (1, 1), (0, 2), (1, 2)]
    expected = [(11, 25), (11, 15), (12, 15), (22, 15), (22, 25)]
    for (*_, (left, right, *_)), (a, b) in zip(found, expected, strict=True):
        assert shows(faces, left, a)
        assert shows(faces, right, b)
    put(tmp_path / "cfp", {"Protocol/Split/FP/02/same.txt": "9,1\n"})
    with pytest.raises(FedVisageError, match=r"names image 9 that Pair_list_F\.txt does not have"):
        bring_in(tmp_path / "cfp", tmp_path / "out2")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["images/a/1.jpg", "images/b/1.jpg"], ["a", "b"]),
        (["a/1.jpg", "b/1.jpg"], ["a", "b"]),
        (["x/a/1.jpg", "y/a/1.jpg"], ["x/a", "y/a"]),
        (["a_b_1.jpg", "c_0002.jpg", "d.jpg"], ["a_b", "c", "d"]),
    ],
)
def test_who_is_in_an_image_is_said_by_its_folder(paths: list[str], expected: list[str]) -> None:
    assert identities_of(paths) == expected


DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[4] / "shared" / "data"))
real = pytest.mark.skipif(not (DATA / "lfw112-dev").is_dir(), reason=f"no real faces in {DATA}")


@real
def test_lfws_seven_folds_give_4200_pairs_with_every_image_found(tmp_path: Path) -> None:
    faces, report = bring_in(DATA / "lfw112-dev", tmp_path / "lfw")
    assert (report.images, report.identities, report.lists) == (7953, 2948, {"pairs": 4200})
    assert report.notes == report.unreadable == report.duplicates == []
    pairs = open_list(tmp_path / "lfw", "pairs")
    assert isinstance(pairs, PairList)
    same = faces.labels[pairs.left] == faces.labels[pairs.right]
    assert same.astype(int).tolist() == pairs.same.tolist()
    assert [(pairs.fold == fold).sum() for fold in range(1, 8)] == [600] * 7


@real
def test_the_other_real_sets_come_in(tmp_path: Path) -> None:
    _, report = bring_in(DATA / "bollywood112-dev", tmp_path / "actors")
    assert (report.found, report.identities, len(report.duplicates)) == (5066, 60, 6)
    faces, _ = bring_in(DATA / "orl", tmp_path / "orl", size=64)
    assert (len(faces), len(faces.names), faces.images.read(faces.labels[:1]).shape) == (400, 40, (1, 64, 64, 3))
    _, report = bring_in(DATA / "lfw-photos-dev", tmp_path / "photos")
    assert (report.images, report.lists) == (807, {"pairs": 600})
