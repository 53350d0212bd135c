"""`.bin` verification sets: every way Python wrote them is read, and nothing in them is ever run."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from dataset_files import bring_in, image, shows
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.bins import parse_bin, read_bin
from fedvisage.faces.lists import PairList, open_list


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300), st.booleans()), max_size=6), st.integers(3, 5)
)
def test_what_python_3_pickled_is_read(pairs: list[tuple[bytes, bytes, bool]], protocol: int) -> None:
    images = [image for one, other, _ in pairs for image in (one, other)]
    same = [answer for *_, answer in pairs]
    for value in ((images, same), [images, same]):
        assert parse_bin(pickle.dumps(value, protocol)) == (images, same)


def test_what_python_2_pickled_is_read() -> None:
    """Protocol 2 with Python 2's strings: SHORT_BINSTRING `U`, BINSTRING `T`."""
    long = bytes(range(256)) * 2
    two = b"\x80\x02]q\x00(U\x03abcq\x01T" + (512).to_bytes(4, "little") + long + b"q\x02e]q\x03\x88a\x86q\x04."
    assert parse_bin(two) == ([b"abc", long], [True])
    zero = b"\x80\x02(](U\x01aU\x01be](I01\net."
    assert parse_bin(zero) == ([b"a", b"b"], [True])


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_bomb_is_refused_and_runs_nothing(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    for value in (([Bomb(target)], [True]), ([b"a", b"b"], [Bomb(target)]), Bomb(target)):
        (tmp_path / "lfw.bin").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(FedVisageError, match=r"lfw\.bin is no verification set: instruction"):
            read_bin(tmp_path / "lfw.bin")
    assert not target.exists()
    pickle.loads(pickle.dumps(Bomb(target), protocol))
    assert target.exists(), "it is a bomb indeed"


def test_every_instruction_that_looks_something_up_or_calls_it_is_refused() -> None:
    dangerous = {
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "PERSID",
        "BINPERSID",
    }
    dangerous |= {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER"}
    for opcode in pickletools.opcodes:
        if opcode.name in dangerous:
            with pytest.raises(FedVisageError, match="makes more than lists and bytes"):
                parse_bin(b"\x80\x04" + opcode.code.encode("latin-1") + b"os\nsystem\n" + b"\0" * 20 + b".")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2, 3], "does not hold a list of images and a list of answers"),
        (([b"a", 7], [True]), "first part is not a list of encoded images"),
        ((b"ab", [True]), "first part is not a list of encoded images"),
        (([b"a", b"b"], [2]), "second part is not a list of booleans"),
        (([b"a", b"b", b"c"], [True]), "3 images for 1 pairs"),
    ],
)
def test_other_lists_are_refused(value: object, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        parse_bin(pickle.dumps(value, 4))


GOOD = pickle.dumps(([b"ab" * 20, b"cd" * 150, b"e", b""], [True, False]), 4)


@given(st.integers(0, len(GOOD) - 1))
def test_a_truncated_file_ends_in_our_error(end: int) -> None:
    with pytest.raises(FedVisageError):
        parse_bin(GOOD[:end])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_end_in_lists_or_in_our_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    try:
        images, same = parse_bin(bytes(data))
    except FedVisageError:
        return
    assert len(images) == 2 * len(same)


def test_pairs_become_a_list_and_repeated_images_are_kept_once(tmp_path: Path) -> None:
    numbers = [0, 1, 2, 0, 3, 4, 1, 0]
    (tmp_path / "lfw.bin").write_bytes(pickle.dumps(([image(n) for n in numbers], [True, False, True, False]), 2))
    with pytest.raises(FedVisageError, match="instruction"):
        read_bin(tmp_path / "lfw.bin")
    (tmp_path / "lfw.bin").write_bytes(pickle.dumps(([image(n) for n in numbers], [True, False, True, False]), 3))
    faces, report = bring_in(tmp_path / "lfw.bin", tmp_path / "out")
    pairs = open_list(tmp_path / "out", "pairs")
    assert isinstance(pairs, PairList)
    assert (len(faces), len(report.duplicates), faces.names) == (5, 3, ("unlabelled",))
    assert pairs.same.tolist() == [1, 0, 1, 0]
    for place in range(4):
        assert shows(faces, int(pairs.left[place]), numbers[2 * place])
        assert shows(faces, int(pairs.right[place]), numbers[2 * place + 1])


def test_an_unreadable_image_takes_its_pair_along(tmp_path: Path) -> None:
    images = [image(0), b"junk", image(2), image(3)]
    (tmp_path / "a.bin").write_bytes(pickle.dumps((images, [True, False]), 4))
    faces, report = bring_in(tmp_path / "a.bin", tmp_path / "out")
    assert len(faces) == 3
    assert report.unreadable == [{"image": "a.bin, image 1", "why": "no image: cannot identify image"}]
    assert report.notes == ["1 of 2 pairs are left out: their images are not there"]
    assert np.array_equal(open_list(tmp_path / "out", "pairs").same, [0])  # type: ignore[attr-defined]


def test_ten_folds_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(pickle.dumps(([image(n) for n in range(40)], [True] * 20), 4))
    bring_in(tmp_path / "a.bin", tmp_path / "out")
    folds = open_list(tmp_path / "out", "pairs").fold  # type: ignore[attr-defined]
    assert folds.tolist() == [1 + n // 2 for n in range(20)]
