"""Lists of protocols cut off, overwritten and mixed up: a face set, or one line that says what is wrong."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from dataset_files import bring_in, image, put
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing import read_source
from fedvisage.faces.template import ARCFACE_POINTS

POINTS = " ".join(f"{value:.4f}" for value in ARCFACE_POINTS.ravel())
FACES = "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"
SEARCH = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n"
GOOD: dict[str, dict[str, str]] = {
    "ijb": {
        "meta/ijbc_face_tid_mid.txt": "1.jpg 11 100\n2.jpg 11 101\n3.jpg 12 102\n4.jpg 13 103\n1.jpg 13 103\n",
        "meta/ijbc_template_pair_label.txt": "11 12 1\n11 13 0\n",
        "meta/ijbc_name_5pts_score.txt": "".join(f"{number}.jpg {POINTS} 0.{number}\n" for number in range(1, 5)),
        "meta/ijbc_1N_gallery_G1.csv": f"{SEARCH}11,7,a\n11,7,b\n",
        "meta/ijbc_1N_gallery_G2.csv": f"{SEARCH}13,8,a\n",
        "meta/ijbc_1N_probe_mixed.csv": f"{SEARCH}12,7,a\n",
    },
    "ijba": {
        "IJB-A_11_sets/split1/verify_metadata_1.csv": (
            f"{FACES}1,70,img/1.jpg,5,1,,50,20,20,20\n1,70,img/2.jpg,6,2,,0,0,30,30\n2,71,img/3.jpg,7,3,,0,0,30,30\n"
        ),
        "IJB-A_11_sets/split1/verify_comparisons_1.csv": "1,2\n1,1\n",
        "IJB-A_1N_sets/split1/search_gallery_1.csv": f"{FACES}1,70,img/1.jpg,5,1,,50,20,20,20\n",
        "IJB-A_1N_sets/split1/search_probe_1.csv": f"{FACES}4,71,img/3.jpg,7,3,,0,0,30,30\n",
    },
    "megaface": {
        "facescrub_lst": "Ann_A/Ann_A_1.png\nAnn_A/Ann_A_2.png\nBob/Bob_7.png\n",
        "megaface_lst": "10/1@N/a.jpg_0.jpg\n10/1@N/b.jpg_0.jpg\n",
        "facescrub_noises.txt": "# which\nAnn A_2\nGone_3\n",
        "megaface_noises.txt": "10/1@N/b.jpg_0.jpg\n",
    },
    "rfw": {
        "test/txts/African/African_pairs.txt": "m.0\t1\t2\nm.0\t1\tm.1\t2\n",
        "test/txts/African/African_people.txt": "m.0\t2\nm.1\t2\nm.2\t2\n",
        "test/txts/African/African_lmk.txt": "".join(
            f"/test/data/African/m.{p}/m.{p}_000{n}.jpg\t{p}\t{POINTS}\n" for p in range(3) for n in (1, 2)
        ),
    },
    "cfp": {
        "Protocol/Pair_list_F.txt": "1 ../Data/Images/001/frontal/01.jpg\n2 ../Data/Images/002/frontal/01.jpg\n",
        "Protocol/Pair_list_P.txt": "1 ../Data/Images/001/profile/01.jpg\n2 ../Data/Images/002/profile/01.jpg\n",
        "Protocol/Split/FP/01/same.txt": "1,1\n2,2\n",
        "Protocol/Split/FP/01/diff.txt": "1,2\n2,1\n",
    },
}
IMAGES = {
    "ijb": [f"loose_crop/{number}.jpg" for number in range(1, 5)],
    "ijba": [f"img/{number}.jpg" for number in range(1, 4)],
    "megaface": [
        *(f"facescrub_images/{name}" for name in ("Ann_A/Ann_A_1.png", "Ann_A/Ann_A_2.png", "Bob/Bob_7.png")),
        *(f"megaface_images/10/1@N/{name}.jpg_0.jpg" for name in "ab"),
    ],
    "rfw": [f"test/data/African/m.{person}/m.{person}_000{n}.jpg" for person in range(3) for n in (1, 2)],
    "cfp": [f"Data/Images/00{p}/{side}/0{n}.jpg" for p in (1, 2) for side in ("frontal", "profile") for n in (1, 2)],
    "manifest": [f"{number}.jpg" for number in range(3)],
}
PIECES = [*b'\n\t, "-\0\r#', b"nan", b"inf", b"1e400", b"9" * 20, b"9223372036854775807", b"../", b"/etc/passwd"]
PIECES = [bytes([piece]) if isinstance(piece, int) else piece for piece in PIECES]
PIECES += [b"\xef\xbb\xbf", "²".encode(), "٣".encode(), b"-0", b"1_0", b"\xff"]


@cache
def lists(kind: str) -> dict[str, bytes]:
    """A format's lists as they should be."""
    if kind != "manifest":
        return {name: text.encode() for name, text in GOOD[kind].items()}
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is in the extra 'parquet'")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"path": IMAGES[kind], "identity": ["Ann", "Ann", "Bob"], "split": ["query", "gallery", "query"]}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file, compression="none")
    return {"list.parquet": file.getvalue()}


@st.composite
def damaged(draw: Any, good: bytes) -> bytes:
    """Cut off, replaced by anything, or with pieces put in and taken out."""
    how = draw(st.sampled_from(["cut", "anything", "changed", "changed"]))
    if how == "cut":
        return good[: draw(st.integers(0, len(good)))]
    if how == "anything":
        return bytes(draw(st.binary(max_size=80)))
    place = st.integers(0, len(good))
    changes = st.tuples(place, st.integers(0, 8), st.sampled_from(PIECES) | st.binary(max_size=3))
    for at, drop, piece in draw(st.lists(changes, min_size=1, max_size=4)):
        good = good[:at] + piece + good[at + drop :]
    return good


@pytest.mark.parametrize("kind", IMAGES)
@given(data=st.data())
def test_a_damaged_list_is_read_or_refused_in_one_line(kind: str, data: st.DataObject) -> None:
    good = lists(kind)
    name = data.draw(st.sampled_from(sorted(good)))
    files = good | {name: data.draw(damaged(good[name]))}
    with TemporaryDirectory() as folder:
        root = put(Path(folder) / "in", {**files, **{path: image(n, 112) for n, path in enumerate(IMAGES[kind])}})
        source = root / "list.parquet" if kind == "manifest" else root
        refused = ""
        try:
            faces, _ = bring_in(source, Path(folder) / "out", kind, size=32, threads=1)
            assert faces.images.read(np.arange(len(faces))).shape == (len(faces), 32, 32, 3)
        except FedVisageError as error:
            refused = str(error)
        assert "\n" not in refused
        assert (Path(folder) / "out").exists() == (not refused)


@pytest.mark.parametrize("kind", IMAGES)
def test_undamaged_they_are_read(kind: str, tmp_path: Path) -> None:
    root = put(tmp_path / "in", {**lists(kind), **{path: image(n, 112) for n, path in enumerate(IMAGES[kind])}})
    faces, report = bring_in(root / "list.parquet" if kind == "manifest" else root, tmp_path / "out", kind, size=32)
    assert len(faces) >= 3
    assert report.lists


def test_a_parquet_manifest_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    """Texts that are no UTF-8 are only met when they are taken out of the table."""
    good, path, refused = lists("manifest")["list.parquet"], tmp_path / "list.parquet", 0
    for place in range(len(good)):
        path.write_bytes(good[:place] + b"\xff" + good[place + 1 :])
        try:
            read_source(path, "manifest", None, {})
        except FedVisageError:
            refused += 1
    assert refused > len(good) / 2


@pytest.mark.parametrize("side", ["1e60", "-1e60", "inf"])
def test_a_box_beyond_any_image_is_refused(side: str, tmp_path: Path) -> None:
    files = lists("ijba")
    name = next(name for name, text in files.items() if b"FACE_X" in text)
    head, first, *rest = files[name].decode().splitlines()
    cells = first.split(",")
    cells[head.split(",").index("FACE_X")] = side
    files[name] = "\n".join([head, ",".join(cells), *rest]).encode()
    root = put(tmp_path / "in", {**files, **{path: image(n, 112) for n, path in enumerate(IMAGES["ijba"])}})
    with pytest.raises(FedVisageError, match="no image is so large"):
        read_source(root, "ijba", None, {})
