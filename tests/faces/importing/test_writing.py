"""What an import keeps, leaves out and reports; nothing is dropped silently, and nothing outside the source is read."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import bring_in, colour_of, image, put, shows
from PIL import Image

from fedvisage.config import Partition as Settings
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.importing import FORMATS, detect
from fedvisage.faces.importing.tree import open_tree
from fedvisage.faces.importing.writing import _Seen
from fedvisage.faces.opening import joined
from fedvisage.faces.partition import Partition, make_partition
from fedvisage.faces.records import EncodedImages


def huge_png() -> bytes:
    """20,000 x 20,000 pixels in a few bytes."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b"\0" * 99))
    framed = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ann has images 0 to 4, Bob 10 to 12, Cy 20."""
    people = {"Ann": range(5), "Bob": range(10, 13), "Cy": range(20, 21)}
    return put(tmp_path / "in", {f"{name}/{n:03d}.jpg": image(n) for name, own in people.items() for n in own})


def test_files_are_kept_as_they_are(folder: Path, tmp_path: Path) -> None:
    faces, report = bring_in(folder, tmp_path / "out")
    assert isinstance(faces.images, EncodedImages)
    assert faces.images.record(5) == image(10)
    assert (faces.names, faces.labels.tolist()) == (("Ann", "Bob", "Cy"), [0] * 5 + [1] * 3 + [2])
    assert json.loads((tmp_path / "out" / "import.json").read_text())["images"] == report.images == 9


def test_unreadable_files_and_duplicates_are_listed_and_left_out(folder: Path, tmp_path: Path) -> None:
    put(
        folder,
        {
            "Ann/099.jpg": image(2),
            "Bob/099.jpg": image(3),
            "Bob/broken.jpg": image(7)[:-80],
            "Bob/empty.png": b"",
            "Bob/huge.png": huge_png(),
            "notes.txt": "not an image",
            "Bob/.hidden.jpg": image(8),
        },
    )
    faces, report = bring_in(folder, tmp_path / "out")
    assert len(faces) == 9
    assert report.found == 14
    assert report.duplicates == [
        {"image": "Ann/099.jpg", "of": "Ann/002.jpg"},
        {"image": "Bob/099.jpg", "of": "Ann/003.jpg", "of_person": "Ann"},
    ]
    reasons = {entry["image"]: entry["why"] for entry in report.unreadable}
    assert reasons["Bob/huge.png"] == "more than 64,000,000 pixels"
    assert reasons["Bob/empty.png"] == "no image: cannot identify image"
    assert "truncated" in reasons["Bob/broken.jpg"].lower()
    lines = "\n".join(report.lines())
    assert "unreadable, left out: 3" in lines
    assert "of the duplicates, 1 were under another name" in lines


def test_people_are_chosen_by_number_of_images_and_name(folder: Path, tmp_path: Path) -> None:
    faces, report = bring_in(folder, tmp_path / "out", min_images=3, max_images=4, exclude=frozenset({"Bob"}))
    assert (faces.names, len(faces)) == (("Ann",), 4)
    assert (report.excluded, report.too_few, report.beyond_cap) == (3, {"Cy": 1}, 1)


@pytest.mark.parametrize("store", ["records", "array"])
def test_who_has_too_few_is_known_only_after_all_images_were_read(folder: Path, tmp_path: Path, store: str) -> None:
    put(folder, {"Ann/000.jpg": b"junk", "Ann/001.jpg": image(2), "Bob/013.jpg": image(13)})
    faces, report = bring_in(folder, tmp_path / "out", min_images=4, store=store)
    assert faces.names == ("Bob",)
    assert report.too_few == {"Cy": 1, "Ann": 3}
    assert all(shows(faces, index, 10 + index) for index in range(4))


def test_nobody_left_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"no image of .* can be used: 0 are of excluded people, 3 people have"):
        bring_in(folder, tmp_path / "out", min_images=9)
    assert not (tmp_path / "out").exists(), "so that the next attempt finds no half-written folder"


def test_linked_folders_are_followed_once(folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", {"Eve/1.jpg": image(50)})
    (folder / "Eve").symlink_to(tmp_path / "elsewhere" / "Eve")
    (folder / "Bob" / "round").symlink_to(folder)
    faces, _ = bring_in(folder, tmp_path / "out")
    assert faces.names == ("Ann", "Bob", "Cy", "Eve")


def test_images_of_different_sizes_are_refused_or_brought_to_one(folder: Path, tmp_path: Path) -> None:
    put(folder, {"Dan/1.jpg": encode(np.full((30, 50, 3), 99, np.uint8))})
    with pytest.raises(FedVisageError, match=r"Dan/1\.jpg is 50x30, but the images before are 24x24: .* --size"):
        bring_in(folder, tmp_path / "out")
    faces, report = bring_in(folder, tmp_path / "sized", size=20)
    assert report.size == (20, 20)
    assert faces.images.read(np.arange(len(faces))).shape == (10, 20, 20, 3)
    assert shows(faces, 2, 2)


def test_stored_as_an_array_the_pixels_are_the_decoders(folder: Path, tmp_path: Path) -> None:
    records, _ = bring_in(folder, tmp_path / "records")
    array, _ = bring_in(folder, tmp_path / "array", store="array")
    assert np.load(tmp_path / "array" / "images.npy").shape == (9, 24, 24, 3)
    assert np.array_equal(array.images.read(np.arange(9)), records.images.read(np.arange(9)))
    files = {path.name for path in (tmp_path / "array").iterdir()}
    assert files == {"images.npy", "labels.npy", "digests.npy", "faces.json", "import.json"}


def test_the_number_of_threads_changes_nothing(folder: Path, tmp_path: Path) -> None:
    for threads in (1, 3):
        bring_in(folder, tmp_path / f"{threads}", threads=threads)
    one, three = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("1", "3"))
    assert one == three


def test_what_is_neither_jpeg_nor_png_is_kept_without_loss(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (2, 9, 7), dtype=np.uint8)
    for number in range(2):
        out = io.BytesIO()
        Image.fromarray(pixels[number]).save(out, "PPM")
        put(tmp_path / "in", {f"s{number}/1.pgm": out.getvalue()})
    faces, _ = bring_in(tmp_path / "in", tmp_path / "out")
    assert np.array_equal(faces.images.read(np.array([0, 1]))[..., 1], pixels)


def test_photos_are_turned_as_the_camera_was_held(tmp_path: Path) -> None:
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    half = np.zeros((20, 20, 3), np.uint8)
    half[:, 10:] = 255
    Image.fromarray(half).save(out, "JPEG", exif=exif, quality=95)
    faces, _ = bring_in(put(tmp_path / "in", {"a/1.jpg": out.getvalue()}), tmp_path / "out", kind="folders")
    pixels = faces.images.read(np.array([0]))[0]
    assert pixels[2].max() < 40
    assert pixels[17].min() > 215


def test_a_zip_archive_is_read_in_place(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        for path in sorted(folder.rglob("*.jpg")):
            archive.write(path, f"top/{path.relative_to(folder)}")
    faces, report = bring_in(tmp_path / "faces.zip", tmp_path / "out")
    assert (faces.names, len(faces), report.format) == (("Ann", "Bob", "Cy"), 9, "folders")
    assert shows(faces, 8, 20)


@pytest.mark.parametrize("name", ["../evil.jpg", "/etc/evil.jpg", "a/../../evil.jpg", "..\\evil.jpg", "C:/evil.jpg"])
def test_an_archive_that_names_files_outside_is_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        archive.writestr(name, image(1))
    with pytest.raises(FedVisageError, match="leads out of the folder"):
        bring_in(tmp_path / "faces.zip", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"PK\x05\x06" + b"\0" * 18])
def test_an_archive_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "faces.zip").write_bytes(content)
    with pytest.raises(FedVisageError, match=r"archive|no images"):
        bring_in(tmp_path / "faces.zip", tmp_path / "out")


def test_an_archive_whose_file_has_no_name_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"")
    data = (tmp_path / "a.zip").read_bytes()
    place = data.rindex(b"PK\x01\x02")
    nameless = data[: place + 28] + b"\0\0" + data[place + 30 : place + 32] + b"\1\0" + data[place + 34 :]
    (tmp_path / "a.zip").write_bytes(nameless)
    with pytest.raises(FedVisageError, match=r"cannot read the archive .*a\.zip"):
        open_tree(tmp_path / "a.zip")


def test_a_file_in_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 5_000_000)
    with pytest.raises(FedVisageError, match="bomb is larger than 1,000 bytes"):
        open_tree(tmp_path / "a.zip").read("bomb", 1000)


def test_people_get_their_domains_from_lists(folder: Path, tmp_path: Path) -> None:
    put(tmp_path, {"north.txt": "Ann\nGone\n", "south.txt": "Cy\n", "both.txt": "Ann\n"})
    domains = {"north": str(tmp_path / "north.txt"), "south": str(tmp_path / "south.txt")}
    faces, report = bring_in(folder, tmp_path / "out", domains=domains)
    assert (faces.names, faces.domains) == (("Ann", "Cy"), ("north", "south"))
    assert faces.domain is not None
    assert faces.domain.tolist() == [0] * 5 + [1]
    assert report.notes == ["north: 1 of 2 people are not there"]
    with pytest.raises(FedVisageError, match="'Ann' is in the lists of two domains"):
        bring_in(folder, tmp_path / "two", domains=domains | {"both": str(tmp_path / "both.txt")})


def test_content_met_before_is_found_however_long_ago() -> None:
    seen, rng = _Seen(), np.random.default_rng(1)
    digests = rng.integers(0, 2**63, 600_000, dtype=np.uint64).tolist()
    assert all(seen.first(digest, index) is None for index, digest in enumerate(digests))
    assert [seen.first(digests[n], 10**7) for n in (0, 499_999, 500_000, 599_999)] == [0, 499_999, 500_000, 599_999]


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (lambda p: p / "absent", "there is no"),
        (lambda p: put(p / "empty", {"readme.txt": "x"}), "there are no images"),
        (lambda p: put(p, {"a.xyz": "x"}) / "a.xyz", "is in no format that is known by its ending"),
    ],
)
def test_a_source_that_is_none_is_one_clear_line(arrange: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=message):
        bring_in(arrange(tmp_path), tmp_path / "out")


def test_an_unknown_format_names_the_nearest(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="no format 'folder': did you mean 'folders'"):
        bring_in(folder, tmp_path / "out", kind="folder")


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("bin", "manifest")])
def test_every_reader_refuses_a_folder_without_its_files(name: str, tmp_path: Path) -> None:
    put(tmp_path / "in", {"junk.txt": b"\xff\x00\xfe"})
    with pytest.raises(FedVisageError):
        bring_in(tmp_path / "in", tmp_path / "out", kind=name)


def test_formats_are_recognised_by_their_files(tmp_path: Path) -> None:
    signs = {"train.rec": "recordio", "meta/ijbb_face_tid_mid.txt": "ijb", "split1/verify_metadata_1.csv": "ijba"}
    signs |= {"lists/facescrub_lst": "megaface", "txts/Indian/Indian_pairs.txt": "rfw"}
    signs |= {
        "Protocol/Pair_list_F.txt": "cfp",
        "pairs.txt": "pairs",
        "agedb_30_ann.txt": "pairs",
        "x/1.jpg": "folders",
    }
    for number, (path, expected) in enumerate(signs.items()):
        assert detect(put(tmp_path / str(number), {path: b"x"})) == expected


def test_colours_are_far_enough_apart_to_tell_images() -> None:
    assert len({colour_of(number) for number in range(200)}) == 200


def test_an_image_of_two_folders_is_refused_under_whatever_names(folder: Path, tmp_path: Path) -> None:
    """Numbers are no names, so only the images tell; leaving out people with too few keeps the rest in step."""
    put(
        tmp_path / "more",
        {f"{person:03d}/{n}.jpg": image(40 + 10 * person + n) for person in range(3) for n in range(3)},
    )
    put(tmp_path / "more", {"002/again.jpg": image(11), "003/only.jpg": image(90)})
    bring_in(folder, tmp_path / "one", size=20)
    bring_in(tmp_path / "more", tmp_path / "other", min_images=2, size=20)
    both = joined({name: open_faceset(tmp_path / name) for name in ("one", "other")})

    def partition(**settings: Any) -> Partition:
        return make_partition(both, Settings(parties=1, **settings), Streams(1))

    with pytest.raises(FedVisageError, match="'one/Bob' and 'other/002' have an image in common"):
        partition()
    for name in ("Bob", "other/002"):
        assert partition(exclude=[name]).parties
    (tmp_path / "other" / "digests.npy").unlink()
    assert partition().parties, "a folder written without digests is taken as it is"
    np.save(tmp_path / "other" / "digests.npy", np.zeros(3, np.uint64))
    with pytest.raises(FedVisageError, match="does not name 10 images"):
        partition()
