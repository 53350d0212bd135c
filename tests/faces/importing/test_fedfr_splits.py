"""The parts that FedFR's scripts cut MS1MV2 into, as a face set whose lists are a partition."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dataset_files import bring_in, image, put_records, record, shows
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.config import Partition as Settings
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.lists import ImageList, write_lists
from fedvisage.faces.partition import make_partition

PUBLIC = {"public": [0, 0, 1]}
TRAIN = {"client_0000": [0, 0, 0, 1, 1], "client_0001": [0, 0, 1, 1, 1]}
TEST = [0, 1, 2, 2, 3]
"""People of each file's images, as the scripts number them: by file, and those of the test among everybody."""


def put_images(folder: Path, name: str, people: list[int], said: tuple[float, ...], start: int, header: bytes) -> int:
    """Images from number `start` on, and record 0 as the last one: where images end, people, and the first person."""
    records = {key: record((float(person),), key, image(start + key)) for key, person in enumerate(people, 1)}
    put_records(folder, {**records, 0: record((len(people) + 1.0, *said), 0, header)})
    for ending in ("rec", "idx"):
        (folder / f"train.{ending}").rename(folder / f"{name}.{ending}")
    return start + len(people)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """As `split_pretrain.py` leaves it, with an image in record 0, and `split_FL.py`; images are numbered from 1."""
    root = tmp_path / "ms1m_split"
    end = put_images(root / "split_pretrain_2/client_0000", "train", PUBLIC["public"], (2.0,), 0, image(3))
    for number, (client, people) in enumerate(TRAIN.items()):
        end = put_images(root / f"split_train_i0004c0002/{client}", "train", people, (2.0, 2.0 * number), end, b"")
    put_images(root / "local_veri_4", "test", TEST, (4.0,), end, b"")
    (root / "local_veri_4" / "idx_id_pair.txt").write_text("idx id\n1 0\n")
    shutil.copytree(root / "local_veri_4", root / "local_gallery_4")
    return root


def test_the_scripts_folder_is_a_face_set_whose_lists_are_the_partition(split: Path, tmp_path: Path) -> None:
    faces, report = bring_in(split, tmp_path / "faces")
    assert (report.format, report.images, report.unreadable, report.duplicates) == ("fedfr", 18, [], [])
    assert faces.names == (
        "person-00000",
        "person-00001",
        "person-00002",
        "person-00003",
        "public-00000",
        "public-00001",
    )
    found = make_partition(faces, Settings(file=str(tmp_path / "faces")), Streams(1))
    shares = found.parties
    assert list(shares) == ["party-00", "party-01"]
    assert [len(share.train) for share in shares.values()] == [5, 5]
    assert [faces.labels[list(share.train)].tolist() for share in shares.values()] == [[0, 0, 0, 1, 1], [2, 2, 3, 3, 3]]
    assert [faces.labels[list(share.held_out)].tolist() for share in shares.values()] == [[0, 1], [2, 2, 3]]
    assert faces.labels[list(found.public)].tolist() == [4, 4, 5]
    assert [shows(faces, found.public[n], 1 + n) for n in range(3)] == [True] * 3
    assert shows(faces, shares["party-01"].train[0], 9)
    assert shows(faces, shares["party-01"].held_out[2], 18)


def test_the_partition_command_shows_it(split: Path, tmp_path: Path) -> None:
    bring_in(split, tmp_path / "faces")
    words = ["data", "partition", "smoke", "--set", f"faces.source={tmp_path / 'faces'}", "--set", "faces.size=24"]
    done = CliRunner().invoke(app, [*words, "--set", f"partition.file={tmp_path / 'faces'}"])
    assert done.exit_code == 0, done.output
    assert "public: 2 identities, 3 images" in done.output
    assert ["party-01", "trainer", "2", "5", "3"] in [line.split()[:5] for line in done.output.splitlines()]
    done = CliRunner().invoke(app, [*words, "--set", f"partition.file={tmp_path}"])
    assert "this folder is none of faces.source" in str(done.exception)


def test_people_of_a_manifest_may_say_their_party(tmp_path: Path) -> None:
    rows = ["a/1.jpg,a,one.train", "a/2.jpg,a,one.train", "a/3.jpg,a,one.held-out", "b/1.jpg,b,two.train",
            "b/2.jpg,b,two.train", "c/1.jpg,c,public"]  # fmt: skip
    for number, row in enumerate(rows):
        path = tmp_path / row.split(",")[0]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image(number))
    (tmp_path / "all.csv").write_text("path,identity,split\n" + "\n".join(rows) + "\n")
    faces, _ = bring_in(tmp_path / "all.csv", tmp_path / "faces")
    found = make_partition(faces, Settings(file=str(tmp_path / "faces")), Streams(1))
    assert {name: (share.train, share.held_out) for name, share in found.parties.items()} == {
        "one": ((0, 1), (2,)),
        "two": ((3, 4), ()),
    }
    assert found.public == (5,)


def test_lists_of_images_that_are_not_there_are_refused(split: Path, tmp_path: Path) -> None:
    faces, _ = bring_in(split, tmp_path / "faces")
    write_lists(tmp_path / "faces", {"a.train": ImageList([0, 99], [0, 0])})
    with pytest.raises(FedVisageError, match=r"the list 'a\.train' of .*faces names images that are not there"):
        make_partition(faces, Settings(file=str(tmp_path / "faces")), Streams(1))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda root: shutil.rmtree(root / "split_train_i0004c0002"), "has no parties in a folder such as"),
        (lambda root: shutil.copytree(root / "local_veri_4", root / "local_veri_9"), "keep one of them there"),
        (
            lambda root: put_images(root / "local_veri_4", "test", [0, 9], (4.0,), 0, b""),
            r"local_veri_4/test\.rec: person 9 is in no party",
        ),
        (
            lambda root: put_images(root / "split_train_i0004c0002/client_0001", "train", [0], (2.0, 1.0), 0, b""),
            r"client_0001/train\.rec: person 1 is in party-00, too",
        ),
        (
            lambda root: put_images(root / "split_train_i0004c0002/client_0001", "train", [0], (2.0,), 0, b""),
            "its record 0 does not say which number its first person has",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(split: Path, tmp_path: Path, harm, says: str) -> None:  # type: ignore[no-untyped-def]
    harm(split)
    with pytest.raises(FedVisageError, match=says):
        bring_in(split, tmp_path / "faces", "fedfr")
