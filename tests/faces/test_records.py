"""Encoded records: decoded as they were encoded, opened without a look at any image, errors of ours when damaged."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import decode, encode, fit, open_image, turned
from fedvisage.faces.faceset import ArrayImages, FaceSet, open_faceset, write_description, write_faceset
from fedvisage.faces.records import EncodedImages, RecordWriter


def pixels(count: int = 20, size: int = 16) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def write(folder: Path, records: list[bytes], size: tuple[int, int] = (16, 16)) -> None:
    writer = RecordWriter(folder)
    for record in records:
        writer.add(record)
    writer.close()
    images = ArrayImages(np.zeros((len(records), 1, 1, 3), np.uint8))
    write_description(folder, FaceSet(images, np.zeros(len(records), np.int64), ("a",)), size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, [encode(image, "PNG") for image in pixels()])
    return tmp_path


@pytest.mark.parametrize("order", [[0], [19, 0, 3, 3], list(range(20)), []])
def test_images_come_back_as_they_were_in_any_order(folder: Path, order: list[int]) -> None:
    faces = open_faceset(folder)
    assert isinstance(faces.images, EncodedImages)
    assert len(faces) == 20
    assert np.array_equal(faces.images.read(np.array(order, np.int64)), pixels()[order])


def test_an_encoded_set_can_be_written_as_an_array(folder: Path, tmp_path: Path) -> None:
    write_faceset(tmp_path / "array", open_faceset(folder))
    assert np.array_equal(np.load(tmp_path / "array" / "images.npy"), pixels())


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_any_bytes_are_kept_as_records(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("records")
    write(folder, records)
    images = EncodedImages(folder, (16, 16))
    assert [images.record(number) for number in range(len(images))] == records


@pytest.mark.parametrize("index", [-1, 20, 10**12])
def test_an_image_that_is_not_there_is_an_error_of_ours(folder: Path, index: int) -> None:
    with pytest.raises(FedVisageError, match=f"image {index} of 20 cannot be read"):
        open_faceset(folder).images.read(np.array([index]))


@pytest.mark.parametrize("name", ["images.bin", "offsets.npy"])
def test_truncated_files_are_refused_when_opened_and_when_read(folder: Path, name: str) -> None:
    images = EncodedImages(folder, (16, 16))
    content = (folder / name).read_bytes()
    with (folder / name).open("rb+") as file:
        file.truncate(len(content) - 1)
    with pytest.raises(FedVisageError, match="image 19 of 20 cannot be read"):
        images.read(np.array([19]))
    with pytest.raises(FedVisageError, match=f"{name} is truncated"):
        open_faceset(folder)


@pytest.mark.parametrize(
    "offsets",
    [np.zeros(0, "<u8"), np.zeros((3, 2), "<u8"), np.zeros(21, "<i8"), np.zeros(21, ">u8"), np.zeros(21, "<f8")],
)
def test_an_index_of_another_kind_is_refused(folder: Path, offsets: np.ndarray[Any, Any]) -> None:
    np.save(folder / "offsets.npy", offsets)
    with pytest.raises(FedVisageError, match=r"expected uint64 \(N \+ 1,\)"):
        open_faceset(folder)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\xff\xff{", b"junk" * 9])
def test_an_index_that_is_none_is_refused(folder: Path, content: bytes) -> None:
    (folder / "offsets.npy").write_bytes(content)
    with pytest.raises(FedVisageError, match="cannot read images from"):
        open_faceset(folder)


def test_an_index_that_runs_backwards_is_an_error_when_read(folder: Path) -> None:
    offsets = np.load(folder / "offsets.npy")
    offsets[5] = 2**63
    np.save(folder / "offsets.npy", offsets)
    images = open_faceset(folder).images
    for index in (4, 5):
        with pytest.raises(FedVisageError, match=f"image {index} of 20 is not where the index says"):
            images.read(np.array([index]))


def test_a_record_that_is_no_image_or_of_another_size_is_named(tmp_path: Path) -> None:
    write(tmp_path, [b"junk", encode(pixels(1, 8)[0]), encode(pixels(1)[0])[:-30]])
    images = open_faceset(tmp_path).images
    with pytest.raises(FedVisageError, match="image 0 of 3: no image: cannot identify image"):
        images.read(np.array([0]))
    with pytest.raises(FedVisageError, match="image 1 is 8x8, not 16x16"):
        images.read(np.array([1]))
    with pytest.raises(FedVisageError, match="image 2 of 3: damaged image"):
        images.read(np.array([2]))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds a few bytes."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0" * 100)))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("side", [8_001, 20_000, 2**31 - 1])
def test_an_image_that_claims_to_be_huge_is_refused_before_it_is_decoded(side: int) -> None:
    with pytest.raises(FedVisageError, match="more than 64,000,000 pixels"):
        open_image(png_header(side, side))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16", "LA"])
def test_images_of_any_colours_become_red_green_and_blue(mode: str) -> None:
    out = io.BytesIO()
    Image.new(mode, (5, 4), 1).save(out, "PNG")
    assert decode(out.getvalue()).shape == (4, 5, 3)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"P5 ", b"BM", b"RIFF"]))
def test_random_bytes_are_an_image_or_an_error_of_ours(data: bytes, magic: bytes) -> None:
    try:
        image = decode(magic + data)
    except FedVisageError:
        return
    assert image.shape[2] == 3


def test_an_image_is_turned_as_the_camera_was_held() -> None:
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (5, 3)).save(out, "JPEG", exif=exif)
    assert turned(open_image(out.getvalue())).size == (3, 5)


def test_fitting_keeps_the_central_square() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    assert fit(wide, 5).tolist() == np.full((5, 5, 3), 200).tolist()
    image = pixels(1)[0]
    assert fit(image, 16) is image


def test_columns_are_kept_and_checked(tmp_path: Path) -> None:
    faces = FaceSet(
        ArrayImages(pixels(3)),
        np.array([0, 1, 1]),
        ("ann", "bob"),
        np.array([1, 0, 1]),
        ("African", "Asian"),
        np.array([0.5, 1, 0], np.float32),
        np.arange(30, dtype=np.float32).reshape(3, 5, 2),
    )
    write_faceset(tmp_path, faces)
    again = open_faceset(tmp_path)
    for name in ("domain", "score", "landmarks"):
        assert np.array_equal(getattr(again, name), getattr(faces, name))
    assert (again.domains, again.folders) == (faces.domains, ((tmp_path, 0),))
    assert again.domain_of_people().tolist() == [1, 0]
    np.save(tmp_path / "score.npy", np.zeros(2, np.float32))
    with pytest.raises(FedVisageError, match=r"the score of 3 images cannot have shape \(2,\)"):
        open_faceset(tmp_path)
    np.save(tmp_path / "score.npy", np.zeros(3, int))
    with pytest.raises(FedVisageError, match=r"score\.npy holds int64, no score of images"):
        open_faceset(tmp_path)
    table = json.loads((tmp_path / "faces.json").read_text()) | {"columns": ["domain"], "domains": ["African"]}
    (tmp_path / "faces.json").write_text(json.dumps(table))
    with pytest.raises(FedVisageError, match="the domains of the images are not all named"):
        open_faceset(tmp_path)
