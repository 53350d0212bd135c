"""RecordIO: any bytes round-trip, InsightFace's layout is understood, damaged files are one clear error."""

from __future__ import annotations

import os
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from dataset_files import MUTATIONS, bring_in, damage, image, put_records, record, shows
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing import read_source
from fedvisage.faces.importing.recordio import MAGIC, RecordFile, frame, read_recordio, write_recordio

MAGIC_BYTES = struct.pack("<I", MAGIC)
content = st.lists(st.one_of(st.binary(max_size=9), st.just(MAGIC_BYTES)), max_size=8).map(b"".join)


@given(st.lists(content, min_size=1, max_size=6))
def test_any_bytes_round_trip_even_with_the_magic_number_in_them(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("rec") / "a.rec"
    path.write_bytes(b"".join(map(frame, contents)))
    file = RecordFile(path)
    assert [file.read(offset) for offset in file.scan()] == contents


def test_a_record_is_framed_as_dmlc_does() -> None:
    """By hand: magic, kind in the upper 3 bits over the length, content, zeros up to a multiple of four."""
    assert frame(b"abcde") == MAGIC_BYTES + struct.pack("<I", 5) + b"abcde\0\0\0"
    parts = (
        MAGIC_BYTES + struct.pack("<I", 1 << 29 | 4) + b"abcd",
        MAGIC_BYTES + struct.pack("<I", 3 << 29 | 1) + b"e\0\0\0",
    )
    assert frame(b"abcd" + MAGIC_BYTES + b"e") == b"".join(parts)
    assert frame(b"a" + MAGIC_BYTES) == MAGIC_BYTES + struct.pack("<I", 5) + b"a" + MAGIC_BYTES + b"\0\0\0", (
        "no boundary"
    )


PEOPLE = [7, 7, 3, 3, 3, 500]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recordio(tmp_path / "faces", [(person, image(number)) for number, person in enumerate(PEOPLE)], 24)
    return tmp_path / "faces"


def test_a_written_set_is_read_back_by_person(folder: Path, tmp_path: Path) -> None:
    faces, report = bring_in(folder, tmp_path / "out")
    assert report.format == "recordio"
    assert faces.names == ("00003", "00007", "00500")
    assert faces.labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert all(shows(faces, index, number) for index, number in enumerate([2, 3, 4, 0, 1, 5]))
    assert (folder / "property").read_text() == "3,24,24\n"
    assert (folder / "train.idx").read_text().splitlines()[0] == "0\t0"
    assert len((folder / "train.lst").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    "line",
    [
        "{key}\t{person}\traw/{name}/{key}.jpg\n",
        "1\t/data/raw/{name}/{key}.jpg\t{person}\n",
        "{key}\t{person}.0\t{name}/x.jpg",
    ],
)
def test_people_are_called_by_the_folders_of_the_list(folder: Path, line: str) -> None:
    called = {3: "Ann_Other", 7: "m.0abc", 500: "Zoë"}
    lines = [line.format(key=key, person=person, name=called[person]).rstrip() for key, person in enumerate(PEOPLE)]
    (folder / "train.lst").write_text("\n".join(lines) + "\n")
    source = read_recordio(folder)
    assert source.names == ("Ann_Other", "m.0abc", "Zoë")
    assert source.notes == []


@pytest.mark.parametrize(
    "content",
    [b"1\t3\ta/1.jpg\n2\t3\tb/2.jpg\n", b"1\t3\ta/1.jpg\n", b"\xff\xfe", b"nothing\n", b"1\tinf\ta/1.jpg\n", b""],
    ids=["two folders", "some people", "no text", "no fields", "no number", "empty"],
)
def test_a_list_that_does_not_name_everybody_leaves_the_numbers_and_is_noted(folder: Path, content: bytes) -> None:
    (folder / "train.lst").write_bytes(content)
    source = read_recordio(folder)
    assert source.names == ("00003", "00007", "00500")
    assert "train.lst was not used" in source.notes[0]


def test_without_an_index_the_file_is_walked_through(folder: Path) -> None:
    with_index = read_recordio(folder)
    (folder / "train.idx").unlink()
    without = read_recordio(folder / "train.rec")
    assert without.labels.tolist() == with_index.labels.tolist()
    assert [without.read(n) for n in range(6)] == [with_index.read(n) for n in range(6)]


def test_labels_may_be_arrays_and_there_may_be_no_first_record(tmp_path: Path) -> None:
    header = struct.pack("<IfQQ", 2, 0.0, 1, 0) + struct.pack("<2f", 4.0, 1.0)
    (tmp_path / "train.rec").write_bytes(frame(header + image(1)) + frame(header + image(2)))
    source = read_recordio(tmp_path)
    assert (source.names, source.labels.tolist()) == (("00004",), [0, 0])
    assert source.read(1) == image(2)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(("labels", "data"), [((7.0, 3.0), image(6)), ((7.0, 3.0, 30.0), b""), ((7.0, 3.0), b"")])
def test_parts_of_ms1m_as_fedfrs_scripts_write_them(
    tmp_path: Path, labels: tuple[float, ...], data: bytes, index: bool
) -> None:
    """Record 0 comes last in the file and says: 7 is the first number behind the images, 3 people. It may have one
    of the images in it, which is nobody's."""
    people = [0, 0, 1, 1, 1, 2]
    records = {key: record((float(person),), key, image(key)) for key, person in enumerate(people, 1)}
    source = read_recordio(put_records(tmp_path, {**records, 0: record(labels, 0, data)}, index))
    assert (source.names, source.labels.tolist()) == (("00000", "00001", "00002"), people)
    assert [source.read(number) for number in range(6)] == [image(key) for key in range(1, 7)]


@pytest.mark.parametrize("index", [True, False])
def test_the_layout_of_face2rec2_needs_no_index(tmp_path: Path, index: bool) -> None:
    """Images with labels (person, aligned), then record 0, then the people's ranges; names from the list."""
    people = [4, 4, 9, 9]
    records = {key: record((float(person), 1.0), key, image(key)) for key, person in enumerate(people, 1)}
    records[0] = record((5.0, 7.0), 0, b"")
    records |= {5: record((1.0, 3.0), 5, b""), 6: record((3.0, 5.0), 6, b"")}
    put_records(tmp_path / "faces_x", records, index)
    names = {4: "Ann", 9: "Bob"}
    lines = [f"1\t/data/{names[person]}/{key}.jpg\t{person}\n" for key, person in enumerate(people, 1)]
    (tmp_path / "faces_x" / "train.lst").write_text("".join(lines))
    faces, report = bring_in(tmp_path, tmp_path / "out")  # one level above the file
    assert (faces.names, faces.labels.tolist()) == (("Ann", "Bob"), [0, 0, 1, 1])
    assert (report.found, report.unreadable, report.notes) == (4, [], [])


def test_without_an_index_ids_that_tell_nothing_leave_the_order(tmp_path: Path) -> None:
    records = {key: record((float(key // 2),), 0, image(key)) for key in range(4)}
    source = read_recordio(put_records(tmp_path, records, index=False))
    assert source.labels.tolist() == [0, 0, 1, 1]


def test_an_index_that_lost_images_is_noticed(folder: Path) -> None:
    lines = (folder / "train.idx").read_text().splitlines()
    for kept in (lines[:5], [*lines[:3], *lines[4:]], lines[1:], [*lines, lines[-1]]):
        (folder / "train.idx").write_text("\n".join(kept))
        with pytest.raises(FedVisageError, match=r"train\.idx does not name the record of train\.rec at byte .* once"):
            read_recordio(folder)


def test_a_file_that_ends_between_two_records_is_noticed(folder: Path) -> None:
    (folder / "train.idx").unlink()
    file = RecordFile(folder / "train.rec")
    (folder / "train.rec").write_bytes((folder / "train.rec").read_bytes()[: file.scan()[4]])
    with pytest.raises(FedVisageError, match="record 0 speaks of 6 images, and there are 3 of them"):
        read_recordio(folder)


def test_an_index_that_names_one_long_record_often_is_refused_at_once(tmp_path: Path) -> None:
    """A record of 20,000 parts, named 20,000 times: 400 million steps if each were followed."""
    part = MAGIC_BYTES + struct.pack("<I", 2 << 29)
    ends = [MAGIC_BYTES + struct.pack("<I", kind << 29 | 24) + bytes(24) for kind in (1, 3)]
    (tmp_path / "train.rec").write_bytes(ends[0] + part * 20_000 + ends[1])
    (tmp_path / "train.idx").write_text("".join(f"{key}\t0\n" for key in range(20_000)))
    with pytest.raises(FedVisageError, match=r"does not name the record of train\.rec at byte 0 once"):
        read_recordio(tmp_path)


def test_boxes_of_objects_are_not_people(tmp_path: Path) -> None:
    """Labels as MXNet packs them for detection, from a public list: widths 4 and 5, the picture's size, one object."""
    labels = (4.0, 5.0, 780.0, 438.0, 0.0, 0.00641, 0.01142, 0.71795, 1.25571)
    with pytest.raises(FedVisageError, match="image 1: its labels are boxes of objects, and not a person"):
        read_recordio(put_records(tmp_path, {key: record(labels, key, image(key)) for key in range(3)}))


REAL = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[4] / "shared" / "data")) / "lists" / "recordio"
real = pytest.mark.skipif(not REAL.is_dir(), reason="no real lists: set FEDVISAGE_DATA")


@real
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "lfs-pointer/train.rec",
            r"train\.rec is a git-LFS pointer, not the file itself: fetch it with 'git lfs pull'",
        ),
        (
            "sagemaker-protobuf.rec",
            "record 0 is one of SageMaker's protobuf records, and only MXNet's records are read",
        ),
    ],
)
def test_files_that_are_no_records_of_images_are_told_for_what_they_are(name: str, says: str) -> None:
    with pytest.raises(FedVisageError, match=says):
        read_recordio(REAL / name)


def test_an_archive_with_records_is_to_be_unpacked(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        archive.write(folder / "train.rec", "faces/train.rec")
    with pytest.raises(
        FedVisageError, match=r"not read inside an archive. Unpack it: unzip '.*faces\.zip' -d '.*/faces'"
    ):
        read_source(tmp_path / "faces.zip", None, None, {})


IDX = sorted(REAL.rglob("*.idx"))


@real
@pytest.mark.parametrize("idx", IDX, ids=lambda path: path.parents[0].name)
def test_real_indices_and_lists_are_followed_and_damage_never_loses_an_image_unsaid(idx: Path, tmp_path: Path) -> None:
    """Drawn images in the order of a public repository's index, with the labels of its list."""
    lst = idx.with_suffix(".lst")
    rows = [line.split("\t") for line in lst.read_text().splitlines()] if lst.exists() else []
    labels = {int(row[0]): tuple(map(float, row[1:-1])) for row in rows}
    keys = [int(line.split("\t")[0]) for line in idx.read_text().splitlines()]
    put_records(tmp_path, {key: record(labels.get(key, (key % 5.0,)), key, image(key)) for key in keys})
    if rows:
        (tmp_path / "train.lst").write_bytes(lst.read_bytes())
    if rows and len(rows[0]) > 3:
        with pytest.raises(FedVisageError, match="boxes of objects"):
            read_recordio(tmp_path)
        return
    source = read_recordio(tmp_path)
    assert [source.read(number) for number in range(len(source))] == [image(key) for key in sorted(keys)]
    assert not rows or source.names == ("man", "woman")
    chance = random.Random(1)
    for path in list(tmp_path.iterdir()):
        good = path.read_bytes()
        for _ in range(MUTATIONS):
            path.write_bytes(damage(good, chance))
            try:
                assert len(read_recordio(tmp_path)) == len(keys)
            except FedVisageError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert str(tmp_path) in str(error)  # noqa: PT017
        path.write_bytes(good)


def test_a_property_file_that_says_otherwise_is_noted(folder: Path) -> None:
    (folder / "property").write_text("9,24,24")
    (folder / "lfw.bin").write_bytes(b"")
    assert read_recordio(folder).notes == [
        "property says 9 people; the records show 3",
        "beside it are verification sets, to be imported one by one: lfw.bin",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.idx", b"0\t0\n1\t99999999\n", "names places beyond the end of train.rec"),
        ("train.idx", b"0\t0\n1\t-4\n", "names places beyond the end"),
        ("train.idx", b"0 a\n", "cannot read .*train.idx"),
        ("train.idx", b"0\t0\t0\n", "a key and a place per line"),
        ("train.idx", b"", "there are no images"),
        ("train.idx", b"0\t4\n", "no record begins at byte 4"),
        ("train.rec", b"", "names places beyond the end"),
        ("train.rec", b"\0" * 99999, "no record begins at byte 0"),
    ],
)
def test_damage_is_one_clear_line(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(FedVisageError, match=message):
        read_recordio(folder)


def test_truncated_records_are_refused_wherever_they_end(folder: Path) -> None:
    data = (folder / "train.rec").read_bytes()
    (folder / "train.idx").unlink()
    for end in range(1, len(data), 97):
        (folder / "train.rec").write_bytes(data[:end])
        with pytest.raises(FedVisageError):
            read_recordio(folder)


@pytest.mark.parametrize("label", [-1.0, 0.5, float("nan"), float("inf"), 1e30])
def test_a_label_that_is_no_number_of_a_person_is_refused(tmp_path: Path, label: float) -> None:
    (tmp_path / "train.rec").write_bytes(frame(struct.pack("<IfQQ", 0, label, 1, 0) + image(1)) * 2)
    with pytest.raises(FedVisageError, match="is no number of a person"):
        read_recordio(tmp_path)


@given(st.binary(max_size=120), st.booleans())
def test_random_bytes_end_in_our_error(tmp_path_factory: pytest.TempPathFactory, data: bytes, framed: bool) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train.rec").write_bytes(frame(data) if framed else MAGIC_BYTES + data)
    try:
        source = read_recordio(folder)
    except FedVisageError:
        return
    assert len(source) == len(np.atleast_1d(source.labels))


def test_two_record_files_must_be_told_apart(folder: Path) -> None:
    (folder / "val.rec").write_bytes(b"")
    with pytest.raises(FedVisageError, match=r"should hold one \.rec file and holds train\.rec, val\.rec"):
        read_recordio(folder)
