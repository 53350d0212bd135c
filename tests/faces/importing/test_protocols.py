"""IJB-A, IJB-B/C, MegaFace with FaceScrub, and manifests: images, people and lists as their files say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from dataset_files import bring_in, image, put, shows
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode
from fedvisage.faces.importing.manifest import read_manifest
from fedvisage.faces.lists import ImageList, SubjectList, TemplateList, TemplatePairs, list_names, open_list
from fedvisage.faces.template import ARCFACE_POINTS


def rows(folder: Path, name: str) -> list[list[int]]:
    listing = open_list(folder, name)
    return [list(map(int, row)) for row in zip(*vars(listing).values(), strict=True)]


def points(scale: float = 1.0, shift: float = 0.0) -> str:
    return " ".join(f"{value:.4f}" for value in (ARCFACE_POINTS * scale + shift).ravel())


@pytest.fixture
def ijbc(tmp_path: Path) -> Path:
    files: dict[str, bytes | str] = {f"loose_crop/{n}.jpg": image(n, 120) for n in (1, 2, 3, 4)}
    files["meta/ijbc_face_tid_mid.txt"] = "1.jpg 11 100\n2.jpg 11 101\n3.jpg 12 102\n4.jpg 13 103\n1.jpg 13 103\n"
    files["meta/ijbc_template_pair_label.txt"] = "11 12 1\n11 13 0\n"
    files["meta/ijbc_name_5pts_score.txt"] = "".join(f"{n}.jpg {points()} 0.{n}\n" for n in (1, 2, 3, 4))
    files["meta/ijbc_1N_gallery_G1.csv"] = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n11,7,a\n11,7,b\n"
    files["meta/ijbc_1N_gallery_G2.csv"] = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n13,8,a\n"
    files["meta/ijbc_1N_probe_mixed.csv"] = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n12,7,a\n"
    return put(tmp_path / "IJBC", files)


def test_ijbc_has_templates_pairs_galleries_probes_and_detector_scores(ijbc: Path, tmp_path: Path) -> None:
    faces, report = bring_in(ijbc, tmp_path / "out")
    assert report.format == "ijb"
    assert list_names(tmp_path / "out") == {
        "templates": "templates",
        "verification": "template-pairs",
        "gallery-1": "subjects",
        "gallery-2": "subjects",
        "probes": "subjects",
    }
    assert rows(tmp_path / "out", "templates") == [[0, 11, 100], [1, 11, 101], [2, 12, 102], [3, 13, 103], [0, 13, 103]]
    assert rows(tmp_path / "out", "verification") == [[11, 12, 1], [11, 13, 0]]
    assert rows(tmp_path / "out", "gallery-1") == [[11, 7]]
    assert rows(tmp_path / "out", "probes") == [[12, 7]]
    assert faces.score is not None
    assert np.allclose(faces.score, [0.1, 0.2, 0.3, 0.4])
    assert faces.images.read(np.array([0])).shape == (1, 112, 112, 3), "aligned"
    assert shows(faces, 2, 3)


def test_equal_images_stay_apart_where_templates_speak_of_each(ijbc: Path, tmp_path: Path) -> None:
    put(ijbc, {"loose_crop/2.jpg": image(1, 120)})
    faces, report = bring_in(ijbc, tmp_path / "out")
    assert (len(faces), report.duplicates) == (4, [])


def test_landmarks_align_the_loose_crops(ijbc: Path, tmp_path: Path) -> None:
    """A white square at the nose of a photo twice as large, shifted by 10, lands on the template's nose."""
    photo = np.zeros((260, 260, 3), np.uint8)
    x, y = (ARCFACE_POINTS[2] * 2 + 10).round().astype(int)
    photo[y - 3 : y + 4, x - 3 : x + 4] = 255
    put(ijbc, {"loose_crop/1.jpg": encode(photo)})
    text = "".join(f"{n}.jpg {points(2, 10) if n == 1 else points()} 1\n" for n in (1, 2, 3, 4))
    put(ijbc, {"meta/ijbc_name_5pts_score.txt": text})
    faces, _ = bring_in(ijbc, tmp_path / "out")
    bright = np.argwhere(faces.images.read(np.array([0]))[0, :, :, 0] > 128)
    assert np.abs(bright.mean(axis=0) - ARCFACE_POINTS[2][::-1]).max() < 0.6


def test_a_missing_crop_leaves_its_template_without_it(ijbc: Path, tmp_path: Path) -> None:
    (ijbc / "loose_crop/2.jpg").unlink()
    with pytest.raises(
        FedVisageError, match=r"4 of 5 images of templates .* '2.jpg' of template 11: .*--allow-missing 1"
    ):
        bring_in(ijbc, tmp_path / "out")
    _, report = bring_in(ijbc, tmp_path / "out", allow_missing=1)
    assert report.unreadable == [{"image": "2.jpg", "why": "there is no such file"}]
    assert rows(tmp_path / "out", "templates") == [[0, 11, 100], [1, 12, 102], [2, 13, 103], [0, 13, 103]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("meta/ijbc_face_tid_mid.txt", "1.jpg 11\n", "has 2 words, not 3"),
        ("meta/ijbc_face_tid_mid.txt", "../1.jpg 11 1\n", "leads out of the folder"),
        ("meta/ijbc_face_tid_mid.txt", "1.jpg x 1\n", "'x' is no whole number"),
        ("meta/ijbc_template_pair_label.txt", "1 2\n", "two templates and an answer per line"),
        ("meta/ijbc_template_pair_label.txt", "1 2 x\n", "cannot read"),
        ("meta/ijbc_name_5pts_score.txt", "1.jpg 1 2\n", "has 3 words, not 12"),
        ("meta/ijbc_name_5pts_score.txt", "1.jpg " + "x " * 11 + "\n", "could not convert"),
        ("meta/ijbc_1N_gallery_G1.csv", "A,B\n1,2\n", "has no column TEMPLATE_ID"),
        ("meta/ijbc_1N_gallery_G1.csv", "TEMPLATE_ID,SUBJECT_ID\n1\n", "line 2 has too few columns"),
        ("meta/ijbc_1N_gallery_G1.csv", "TEMPLATE_ID,SUBJECT_ID\n1,x\n", "'x' is no whole number"),
        ("meta/other_face_tid_mid.txt", "1.jpg 1 1\n", "import one folder at a time"),
    ],
)
def test_meta_files_that_are_wrong_are_one_clear_line(
    ijbc: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    put(ijbc, {name: text})
    with pytest.raises(FedVisageError, match=message):
        bring_in(ijbc, tmp_path / "out")


def test_ijba_has_ten_splits_and_faces_are_cut_out_by_their_boxes(tmp_path: Path) -> None:
    head = "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"
    photo = np.zeros((60, 90, 3), np.uint8)
    photo[20:40, 50:70] = 200
    files: dict[str, bytes | str] = {"img/1.jpg": encode(photo), "img/2.jpg": image(2, 60), "frame/3.jpg": image(3, 60)}
    meta = "1,70,img/1.jpg,5,1,,50,20,20,20\n1,70,img/2.jpg,6,2,,0,0,30,30\n2,71,frame/3.jpg,7,3,,0,0,30,30\n"
    files["IJB-A_11_sets/split1/verify_metadata_1.csv"] = head + meta
    files["IJB-A_11_sets/split1/verify_comparisons_1.csv"] = "1,2\n1,1\n"
    files["IJB-A_1N_sets/split1/search_gallery_1.csv"] = head + "1,70,img/1.jpg,5,1,,50,20,20,20\n"
    files["IJB-A_1N_sets/split1/search_probe_1.csv"] = head + "4,71,frame/3.jpg,7,3,,0,0,30,30\n"
    put(tmp_path / "IJB-A", files)
    faces, report = bring_in(tmp_path / "IJB-A", tmp_path / "out", size=32)
    assert (report.format, faces.names, len(faces)) == ("ijba", ("subject-00070", "subject-00071"), 3)
    out = tmp_path / "out"
    assert rows(out, "split-01.verification") == [[1, 2, 0], [1, 1, 1]]
    assert rows(out, "split-01.templates") == [[0, 1, 5], [1, 1, 6], [2, 2, 7], [0, 4, 5], [2, 7, 7]]
    assert rows(out, "split-01.gallery") == [[4, 70]], "search's templates are numbered after the others"
    assert rows(out, "split-01.probes") == [[7, 71]]
    kinds = [type(open_list(out, f"split-01.{name}")) for name in ("templates", "verification", "gallery")]
    assert kinds == [TemplateList, TemplatePairs, SubjectList]
    assert faces.images.read(np.array([0])).min() > 150, "only the face's box"
    put(tmp_path / "IJB-A", {"IJB-A_11_sets/split1/verify_comparisons_1.csv": "1,99\n"})
    with pytest.raises(FedVisageError, match=r"line 1 names template 99 that .*verify_metadata_1.csv does not have"):
        bring_in(tmp_path / "IJB-A", tmp_path / "out2", size=32)


def test_megaface_has_probes_distractors_and_noise(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "facescrub_images/Ann_A/Ann_A_1.png": image(1),
        "facescrub_images/Ann_A/Ann_A_2.png": image(2),
        "facescrub_images/Bob/Bob_7.png": image(3),
        "megaface_images/10/1@N/a.jpg_0.jpg": image(4),
        "megaface_images/10/1@N/b.jpg_0.jpg": image(4),
        "facescrub_lst": "Ann_A/Ann_A_1.png\nAnn_A/Ann_A_2.png\nBob/Bob_7.png\n",
        "megaface_lst": "10/1@N/a.jpg_0.jpg\n10/1@N/b.jpg_0.jpg\n",
        "facescrub_noises.txt": "# found by hand\nAnn A_2\nGone_3\n",
        "megaface_noises.txt": "10/1@N/b.jpg_0.jpg\n",
    }
    put(tmp_path / "mega", files)
    faces, report = bring_in(tmp_path / "mega", tmp_path / "out")
    assert (report.format, len(faces), faces.names) == ("megaface", 5, ("Ann_A", "Bob", "unlabelled"))
    assert rows(tmp_path / "out", "probes") == [[0, 0], [1, 0], [2, 1]]
    assert rows(tmp_path / "out", "distractors") == [[3, 2], [4, 2]]
    assert rows(tmp_path / "out", "noise") == [[1, 0], [4, 2]]
    assert report.notes == [
        "facescrub_noises.txt names 2 images, and the published list 605",
        "megaface_noises.txt names 1 images, and the published list 707",
        "1 of 3 noisy images are not in the lists",
    ]


MANIFEST = "path,identity,domain,split\na/1.jpg,Zoe,north,query\na/2.jpg,Zoe,north,gallery\nb/1.jpg,Ann,south,gallery\n"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    files: dict[str, bytes | str] = {f"{name}.jpg": image(n) for n, name in enumerate(["a/1", "a/2", "b/1"])}
    return put(tmp_path / "set", files | {"all.csv": MANIFEST}) / "all.csv"


def test_a_manifest_gives_people_domains_and_lists(listed: Path, tmp_path: Path) -> None:
    faces, _ = bring_in(listed, tmp_path / "out")
    assert (faces.names, faces.labels.tolist(), faces.domains) == (("Ann", "Zoe"), [1, 1, 0], ("north", "south"))
    assert faces.domain is not None
    assert faces.domain.tolist() == [0, 0, 1]
    assert rows(tmp_path / "out", "query") == [[0, 1]]
    assert rows(tmp_path / "out", "gallery") == [[1, 1], [2, 0]]
    assert isinstance(open_list(tmp_path / "out", "query"), ImageList)


def test_the_numbers_of_people_in_lists_are_the_sets_own(listed: Path, tmp_path: Path) -> None:
    """Ann's only image is unreadable, so Zoe is person 0."""
    put(listed.parent, {"b/1.jpg": b"junk"})
    faces, _ = bring_in(listed, tmp_path / "out", allow_missing=1)
    assert faces.names == ("Zoe",)
    assert rows(tmp_path / "out", "gallery") == [[1, 0]]


def test_a_parquet_manifest_is_the_same(listed: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is in the extra 'parquet'")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = [line.split(",") for line in MANIFEST.splitlines()]
    columns = {name: [row[place] for row in lines[1:]] for place, name in enumerate(lines[0])}
    parquet.write_table(pyarrow.table(columns), listed.with_suffix(".parquet"))
    faces, _ = bring_in(listed.with_suffix(".parquet"), tmp_path / "out")
    assert faces.labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'path'"),
        ("file,identity\na,b\n", "has no column 'path'"),
        ("path,path\na,b\n", "two columns of one name"),
        ("path,identity\na.jpg\n", "line 2 has another number of columns"),
        ("path,identity\na.jpg,b,c\n", "line 2 has another number of columns"),
        ("path\n../../etc/passwd\n", "leads out of the folder"),
        ("path\n/etc/passwd\n", "leads out of the folder"),
        ("path\na.jpg\na.jpg\n", "names 'a.jpg' twice"),
        ("path,split\na.jpg,../x\n", "cannot name a split"),
        ('path\n"a\n', "cannot read"),
    ],
)
def test_a_manifest_that_is_wrong_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    put(tmp_path, {"m.csv": text})
    with pytest.raises(FedVisageError, match=message):
        read_manifest(tmp_path / "m.csv")


@given(st.binary(max_size=80))
def test_random_bytes_as_a_manifest_end_in_our_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("m") / "m.csv"
    path.write_bytes(data)
    with pytest.raises(FedVisageError) as caught:
        read_manifest(path)
    assert re.search(r"m\.csv", str(caught.value))
