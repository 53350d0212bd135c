"""Face images in memory and in files: the same pixels, and one clear error for each thing wrong with a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet, FileImages, open_faceset, write_faceset


def pixels(count: int = 7, size: int = 4) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def example() -> FaceSet:
    return FaceSet(ArrayImages(pixels()), np.array([0, 0, 1, 1, 1, 2, 2]), ("ann", "bob", "čat"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_faceset(tmp_path / "faces", example(), block=3)
    return tmp_path / "faces"


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_a_set_written_and_opened_is_the_same(block: int, tmp_path: Path) -> None:
    write_faceset(tmp_path, example(), block)
    again = open_faceset(tmp_path)
    assert again.names == example().names
    assert again.labels.tolist() == example().labels.tolist()
    assert np.array_equal(again.images.read(np.arange(7)), pixels())
    assert np.array_equal(np.load(tmp_path / "images.npy"), pixels())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> FileImages:
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, pixels())
    return FileImages(path)


@given(indices=st.lists(st.integers(0, 6), max_size=12))
def test_images_from_a_file_equal_the_array_in_any_order(images: FileImages, indices: list[int]) -> None:
    chosen = np.array(indices, dtype=np.int64)
    assert np.array_equal(images.read(chosen), ArrayImages(pixels()).read(chosen))


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_both_versions_of_the_file_format_are_read(version: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "images.npy").open("wb") as file:
        np.lib.format.write_array(file, pixels(), version)
    assert np.array_equal(FileImages(tmp_path / "images.npy").read(np.array([2])), pixels()[2:3])


@pytest.mark.parametrize("index", [-1, 7, 10**12])
def test_an_image_that_is_not_there_is_an_error_of_ours(index: int, folder: Path) -> None:
    with pytest.raises(FedVisageError, match=f"image {index} of 7 cannot be read"):
        FileImages(folder / "images.npy").read(np.array([index]))


def test_a_truncated_file_is_refused_when_opened(folder: Path) -> None:
    data = (folder / "images.npy").read_bytes()
    (folder / "images.npy").write_bytes(data[:-1])
    with pytest.raises(FedVisageError, match=r"images\.npy is truncated: it should hold 7 images"):
        open_faceset(folder)


def test_a_file_truncated_while_open_is_an_error_and_no_crash(folder: Path) -> None:
    images = FileImages(folder / "images.npy")
    with (folder / "images.npy").open("rb+") as file:
        file.truncate(200)
    with pytest.raises(FedVisageError, match="image 6 of 7 cannot be read"):
        images.read(np.array([6]))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, 4, 4), np.uint8),
        np.zeros((3, 4, 4, 1), np.uint8),
        np.zeros((3, 4, 4, 3), np.float32),
        np.zeros((3, 4, 4, 3), np.int8),
        np.asfortranarray(pixels(3)),
    ],
    ids=["three dimensions", "one channel", "floats", "signed", "fortran order"],
)
def test_images_of_another_kind_are_refused(wrong: np.ndarray[Any, Any], folder: Path) -> None:
    np.save(folder / "images.npy", wrong)
    with pytest.raises(FedVisageError, match=r"expected uint8 images \(N, H, W, 3\)"):
        open_faceset(folder)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY\x01\x00\xff\xff{", b"\x93NUMPY\x01\x00\x02\x00{}"])
def test_a_file_that_holds_no_array_is_refused(content: bytes, folder: Path) -> None:
    (folder / "images.npy").write_bytes(content)
    with pytest.raises(FedVisageError, match=r"cannot read images from .*images\.npy"):
        open_faceset(folder)


def test_a_header_with_a_negative_count_is_refused(folder: Path) -> None:
    with (folder / "images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (-5, 4, 4, 3)})
    with pytest.raises(FedVisageError, match=r"images\.npy"):
        open_faceset(folder)


def test_missing_folders_and_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"no faces in .*absent: no such folder"):
        open_faceset(tmp_path / "absent")
    with pytest.raises(FedVisageError, match=r"no faces in .*: faces\.json is missing"):
        open_faceset(tmp_path)
    (folder / "images.npy").unlink()
    with pytest.raises(FedVisageError, match=r"cannot read images from .*images\.npy"):
        open_faceset(folder)
    (folder / "labels.npy").unlink()
    with pytest.raises(FedVisageError, match="cannot read the faces in"):
        open_faceset(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"names": 3, "format": 1}', "\x00"])
def test_a_damaged_description_is_refused(content: str, folder: Path) -> None:
    (folder / "faces.json").write_text(content)
    with pytest.raises(FedVisageError, match="cannot read the faces in"):
        open_faceset(folder)


def test_another_format_is_named(folder: Path) -> None:
    (folder / "faces.json").write_text(json.dumps({"format": 9, "names": ["a", "b", "c"]}))
    with pytest.raises(FedVisageError, match="has format 9; this version reads format 1"):
        open_faceset(folder)


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 0, 1, 1, 1, 2, 3]), np.array([-1, 0, 0, 0, 0, 0, 0]), np.zeros((7, 1), int), np.zeros(7)],
    ids=["beyond the names", "negative", "two dimensions", "floats"],
)
def test_labels_that_name_nobody_are_refused(labels: np.ndarray[Any, Any], folder: Path) -> None:
    np.save(folder / "labels.npy", labels)
    with pytest.raises(FedVisageError, match="does not hold one identity number per image"):
        open_faceset(folder)


def test_labels_in_a_pickle_are_not_loaded(folder: Path) -> None:
    np.save(folder / "labels.npy", np.array([object()] * 7), allow_pickle=True)
    with pytest.raises(FedVisageError, match="cannot read the faces in"):
        open_faceset(folder)


def test_as_many_labels_as_images(folder: Path) -> None:
    np.save(folder / "labels.npy", np.zeros(6, int))
    with pytest.raises(FedVisageError, match="7 images but 6 labels"):
        open_faceset(folder)


def test_a_full_disk_while_writing_is_one_clear_line(tmp_path: Path) -> None:
    """The kernel refuses bytes beyond the file size limit of the process; a memory map would end it with a signal."""
    code = f"""
import resource, signal, sys
import numpy as np
from pathlib import Path
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
faces = FaceSet(ArrayImages(np.zeros((100, 32, 32, 3), np.uint8)), np.zeros(100, int), ("a",))
try:
    write_faceset(Path({str(tmp_path)!r}), faces)
except FedVisageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"cannot write faces to {tmp_path}: File too large" in done.stderr
    assert done.returncode == 1
    assert not (tmp_path / "faces.json").exists()


def test_a_view_has_labels_of_its_own_in_the_order_of_the_set() -> None:
    view = Faces(example(), [5, 2, 6])
    assert view.labels is not None
    assert (view.labels.tolist(), view.classes, len(view)) == ([1, 0, 1], 2, 3)
    assert np.array_equal(view.read(np.array([1, 0])), pixels()[[2, 5]])
    assert np.array_equal(view.all(), pixels()[[5, 2, 6]])


def test_a_view_of_further_images_takes_the_labels_of_the_first() -> None:
    first = Faces(example(), [2, 5])
    more = Faces(example(), [6], like=first)
    assert more.labels is not None
    assert (more.labels.tolist(), more.classes) == ([1], 2)


def test_a_view_cannot_show_people_the_other_does_not_have() -> None:
    with pytest.raises(FedVisageError, match="people that the other view does not have"):
        _ = Faces(example(), [0], like=Faces(example(), [5])).labels


def test_without_labels_nobody_can_be_told_apart() -> None:
    view = Faces(example(), [0, 2, 5], labelled=False)
    assert (view.labels, view.classes, len(view.people)) == (None, 0, 0)
    assert not any(isinstance(value, np.ndarray) and value.tolist() == [0, 1, 2] for value in vars(view).values())
