"""`.bin` verification sets: every way Python wrote them is read, and nothing in them is ever run."""

from __future__ import annotations

import os
import pickle
import pickletools
import random
import re
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from dataset_files import bring_in, damage, image, shows
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.bins import parse_bin, read_bin
from fedvisage.faces.lists import PairList, open_list

DATA = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[4] / "shared" / "data"))


def arrays(images: list[bytes], shape: tuple[int, ...]) -> list[np.ndarray]:
    """As `cv2.imencode` gives encoded images."""
    return [np.frombuffer(image, np.uint8).reshape(shape).copy() for image in images]


IMAGES = {
    "bytes": list,
    "bytearrays": lambda images: list(map(bytearray, images)),
    "tuple": tuple,
    "columns": lambda images: arrays(images, (-1, 1)),
    "rows": lambda images: arrays(images, (-1,)),
}
ANSWERS = {
    "list": list,
    "tuple": tuple,
    "numbers": lambda same: list(map(int, same)),
    "numpy scalars": lambda same: list(map(np.bool_, same)),
    "numpy numbers": lambda same: list(map(np.int64, same)),
    "array": lambda same: np.array(same, np.bool_),
    "array of numbers": lambda same: np.array(same, np.int32),
}


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300), st.booleans())),
    st.integers(0, pickle.HIGHEST_PROTOCOL),
    st.sampled_from(sorted(IMAGES)),
    st.sampled_from(sorted(ANSWERS)),
    st.booleans(),
)
def test_what_python_3_pickled_is_read(
    pairs: list[tuple[bytes, bytes, bool]], protocol: int, kind: str, answers: str, old: bool
) -> None:
    """With the module names of NumPy 2 and, where `old`, those of NumPy 1."""
    images = [image for one, other, _ in pairs for image in (one, other)]
    same = [answer for *_, answer in pairs]
    for value in ((IMAGES[kind](images), ANSWERS[answers](same)), [IMAGES[kind](images), ANSWERS[answers](same)]):
        data = pickle.dumps(value, protocol)
        assert parse_bin(as_numpy_1(data) if old else data) == (images, same)


def as_numpy_1(data: bytes) -> bytes:
    """The pickle with the names of NumPy before version 2; text of protocol 4 has its length before it."""
    for part in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + part, b"numpy.core." + part
        data = data.replace(b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        data = data.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    return data


def test_what_python_2_pickled_is_read() -> None:
    """Protocol 2 with Python 2's strings: SHORT_BINSTRING `U`, BINSTRING `T`."""
    long = bytes(range(256)) * 2
    two = b"\x80\x02]q\x00(U\x03abcq\x01T" + (512).to_bytes(4, "little") + long + b"q\x02e]q\x03\x88a\x86q\x04."
    assert parse_bin(two) == ([b"abc", long], [True])
    zero = b"\x80\x02(](U\x01aU\x01be](I01\net."
    assert parse_bin(zero) == ([b"a", b"b"], [True])


@pytest.mark.parametrize(
    "data",
    [
        b"((lp1\nS'ab\\x00\\n\\\\\\'\"\\xff'\np2\naS\"it's\"\np3\nac__builtin__\nbytearray\np4\n(Vxy\xff\n"
        b"S'latin-1'\ntRp5\naS''\na(lp6\nI01\naI00\natp7\n.",
        b"(]q\x01(U\x08ab\x00\n\\'\"\xffq\x02U\x04it'sq\x03c__builtin__\nbytearray\nq\x04(X\x04\x00\x00\x00xy\xc3\xbf"
        b"U\x07latin-1tRq\x05U\x00e]q\x06(I01\nI00\netq\x07.",
        b"\x80\x02]q\x01(U\x08ab\x00\n\\'\"\xffq\x02U\x04it'sq\x03c__builtin__\nbytearray\nq\x04X\x04\x00\x00\x00xy\xc3"
        b"\xbfU\x07latin-1\x86Rq\x05U\x00e]q\x06(\x88\x89e\x86q\x07.",
    ],
    ids=["protocol 0", "protocol 1", "protocol 2"],
)
def test_strings_and_bytearrays_of_python_2_are_read(data: bytes) -> None:
    """What cPickle of Python 2.7.18 wrote."""
    assert parse_bin(data) == ([b"ab\x00\n\\'\"\xff", b"it's", b"xy\xff", b""], [True, False])


REAL = sorted((DATA / "lists" / "bin").glob("*.bin"))


@pytest.mark.skipif(not REAL, reason="no real lists: set FEDVISAGE_DATA")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_files_as_packers_write_them_are_imported_and_damaged_ones_are_one_clear_error(
    path: Path, tmp_path: Path
) -> None:
    """Noise images, as the packers of InsightFace dump them under Python 2.7 and 3.11."""
    faces, report = bring_in(path, tmp_path / "out")
    assert (len(faces), report.unreadable, report.lists) == (4, [], {"pairs": 2})
    assert open_list(tmp_path / "out", "pairs").same.tolist() == [1, 0]  # type: ignore[attr-defined]
    good, chance = path.read_bytes(), random.Random(1)
    for _ in range(1000):
        try:
            images, same = parse_bin(damage(good, chance))
        except FedVisageError:
            continue
        assert len(images) == 2 * len(same)


LISTING = DATA / "lists" / "bin" / "small_lfw.opcodes.txt"


def from_listing(listing: str) -> tuple[bytes, list[bytes]]:
    """A pickle with the instructions of a listing by `pickletools`, and the images that stand in for those left out.

    Each image is as long as the listing's offsets leave room for; `SHORT_BINBYTES` is the letter of the array's type.
    """
    lines = [re.fullmatch(r" *(\d+): (\S+) +(\w+) *(.*)", line) for line in listing.splitlines()[:-1]]
    found = [line.groups() for line in lines if line]
    codes = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    sizes = {"PROTO": 1, "BINPUT": 1, "BINGET": 1, "BININT1": 1, "BININT2": 2, "BININT": 4}
    data, images = b"", []
    for number, (at, _, name, argument) in enumerate(found):
        assert len(data) == int(at)
        data += codes[name]
        if name in sizes:
            data += int(argument).to_bytes(sizes[name], "little", signed=name == "BININT")
        elif name == "GLOBAL":
            data += argument.strip("'").replace(" ", "\n").encode() + b"\n"
        elif name == "BINUNICODE":
            data += len(argument.strip("'")).to_bytes(4, "little") + argument.strip("'").encode()
        elif name == "SHORT_BINBYTES":
            data += b"\x01b"
        elif name == "BINBYTES":
            room = int(found[number + 1][0]) - len(data) - 4
            images.append(np.random.default_rng(number).bytes(room))
            data += room.to_bytes(4, "little") + images[-1]
    return data, images


@pytest.mark.skipif(not LISTING.exists(), reason="no real lists: set FEDVISAGE_DATA")
def test_the_instructions_of_insightfaces_own_file_are_followed() -> None:
    """`small_lfw.bin` with noise for its twenty faces."""
    data, images = from_listing(LISTING.read_text())
    assert (len(data), len(images)) == (108_463, 20)
    assert parse_bin(data) == (images, [True] * 10)


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
        with pytest.raises(FedVisageError, match=r"lfw\.bin is no verification set: it asks for '\w+\.mkdir'"):
            read_bin(tmp_path / "lfw.bin")
    assert not target.exists()
    pickle.loads(pickle.dumps(Bomb(target), protocol))
    assert target.exists(), "it is a bomb indeed"


def test_every_instruction_that_looks_something_up_or_calls_it_is_refused() -> None:
    """As it would be used: with the name, the class or the object on the stack that it needs."""
    system, args = b"cos\nsystem\n", b"(X\x02\x00\x00\x00lst"
    hostile = {
        "GLOBAL": system,
        "STACK_GLOBAL": b"\x8c\x02os\x8c\x06system\x93",
        "REDUCE": system + args + b"R",
        "BUILD": b"]}b",
        "INST": b"(X\x02\x00\x00\x00lsios\nsystem\n",
        "OBJ": b"(" + system + b"X\x02\x00\x00\x00lso",
        "NEWOBJ": b"cnumpy\nndarray\n(K\x09t\x81",
        "NEWOBJ_EX": b"cnumpy\nndarray\n(K\x09t}\x92",
        "PERSID": b"Pname\n",
        "BINPERSID": b"X\x02\x00\x00\x00lsQ",
        "EXT1": b"\x82\x01",
        "EXT2": b"\x83\x01\x00",
        "EXT4": b"\x84\x01\x00\x00\x00",
        "NEXT_BUFFER": b"\x97",
    }
    for name, instructions in hostile.items():
        codes = {opcode.name for opcode, *_ in pickletools.genops(b"\x80\x05" + instructions + b".")}
        assert name in codes
        for data in (instructions + b".", b"](" + instructions + b"e]\x86."):
            with pytest.raises(FedVisageError):
                parse_bin(b"\x80\x05" + data)
    known = {"PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "NONE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
    known |= {"LIST", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    known |= {"NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "BYTEARRAY8"}
    known |= {"BINBYTES", "BINBYTES8", "SHORT_BINBYTES", "STRING", "BINSTRING", "SHORT_BINSTRING"}
    known |= {"UNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE"}
    known |= {f"{size}{kind}" for size in ("", "BIN", "LONG_BIN") for kind in ("GET", "PUT")}
    for opcode in pickletools.opcodes:
        if opcode.name not in known:
            with pytest.raises(FedVisageError, match="makes more than lists and bytes"):
                parse_bin(opcode.code.encode("latin-1") + b".")


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
KIND = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1\x89\x88tR"
PLAIN = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
DATA_4 = b"C\x04abcd"


def state(version: bytes = b"K\x01", shape: bytes = b"(K\x04K\x01t", kind: bytes = KIND + PLAIN, order: bytes = b"\x89",
          data: bytes = DATA_4) -> bytes:  # fmt: skip
    """What fills an array, with one part of it changed."""
    return b"(" + version + shape + kind + order + data + b"tb"


def two(image: bytes) -> bytes:
    """A set of one pair, both images made by these instructions."""
    return b"\x80\x03](" + image + image + b"e]\x88a\x86."


HOSTILE = {
    "shape too large": ARRAY + state(shape=b"(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft"),
    "negative shape": ARRAY + state(shape=b"(J\xff\xff\xff\xffJ\xfc\xff\xff\xfft"),
    "shape no tuple": ARRAY + state(shape=b"](K\x04e"),
    "shape of arrays": ARRAY + state(shape=b"(" + ARRAY + b"t"),
    "many sides": ARRAY + state(shape=b"(" + b"K\x01" * 40 + b"K\x04t"),
    "a picture": ARRAY + state(shape=b"(K\x02K\x02t"),
    "no version": ARRAY + state(version=b"N"),
    "no dtype": ARRAY + state(kind=b"N"),
    "a class for a dtype": ARRAY + state(kind=b"cnumpy\nndarray\n"),
    "items in a list": ARRAY + state(data=b"](K\x01K\x01K\x01K\x01e"),
    "order of memory": ARRAY + state(order=b"K\x07"),
    "objects": ARRAY + state(kind=KIND.replace(b"u1", b"O8") + PLAIN),
    "unknown dtype": ARRAY + state(kind=KIND.replace(b"u1", b"V4") + PLAIN),
    "wide items": ARRAY + state(kind=KIND.replace(b"u1", b"i4") + PLAIN, shape=b"(K\x01t"),
    "dtype with fields": ARRAY + state(kind=KIND + PLAIN.replace(b"NNN", b"N]N")),
    "dtype with metadata": ARRAY + state(kind=KIND + PLAIN.replace(b"tb", b"]tb")),
    "big-endian": ARRAY + state(kind=KIND + PLAIN.replace(b"|", b">")),
    "never filled": ARRAY,
    "filled twice": ARRAY + state() + state(),
    "filled with a list": ARRAY + b"]b",
    "filled with too little": ARRAY + b"(K\x01tb",
    "a list filled": b"]" + state(),
    "bytes filled": DATA_4 + state(),
    "a name filled": b"cnumpy\nndarray\n" + state(),
    "another class": ARRAY.replace(b"ndarray", b"dtype") + state(),
    "a class of others": ARRAY.replace(b"numpy\nndarray", b"os\npopen") + state(),
    "a name below a name": b"\x8c\x05numpy\x8c\x0endarray.tofile\x93",
    "ndarray called": b"cnumpy\nndarray\n((J\xff\xff\xff\x7ftX\x02\x00\x00\x00u1tR",
    "a result called": KIND + b"(" + DATA_4 + b"tR",
    "a scalar of objects": b"cnumpy.core.multiarray\nscalar\n(" + KIND.replace(b"u1", b"O8") + DATA_4 + b"tR",
    "a scalar too wide": b"cnumpy.core.multiarray\nscalar\n(" + KIND + DATA_4 + b"tR",
    "another codec": b"c_codecs\nencode\n(X\x02\x00\x00\x00abX\x04\x00\x00\x00zlibtR",
    "beyond latin-1": b"c_codecs\nencode\n(X\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1tR",
    "bytes of a number": b"c__builtin__\nbytes\n(J\xff\xff\xff\x7ftR",
    "bytearray of a number": b"c__builtin__\nbytearray\n(J\xff\xff\xff\x7ftR",
    "reading a file": b"cnumpy\nload\n(X\x01\x00\x00\x00atR",
    "a buffer of text": b"cnumpy.core.numeric\n_frombuffer\n(X\x01\x00\x00\x00a"
    + KIND
    + b"(K\x01tX\x01\x00\x00\x00CtR",
    "its own argument": b"(lp0\ng0\na" + state(),
}


def test_the_array_that_hostile_ones_are_made_from_is_read() -> None:
    assert parse_bin(two(ARRAY + state())) == ([b"abcd", b"abcd"], [True])


@pytest.mark.parametrize("name", HOSTILE)
def test_what_hides_behind_the_names_of_arrays_is_refused(name: str) -> None:
    modules = set(sys.modules)
    with pytest.raises(FedVisageError):
        parse_bin(two(HOSTILE[name]))
    assert set(sys.modules) == modules


@pytest.mark.parametrize("protocol", range(6))
def test_an_array_of_bombs_runs_nothing(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    for value in (np.array([Bomb(target), 1], object), np.array([(1, 2)], [("a", "i4"), ("b", "O")])):
        for whole in (([value, value], [True]), ([b"a", b"b"], value), value):
            with pytest.raises(FedVisageError):
                parse_bin(pickle.dumps(whole, protocol))
    assert not target.exists()


def test_small_files_stay_small() -> None:
    """Text encoded again and again, lists of lists of one list, tuples within tuples, marks without an end."""
    encoded = b"c_codecs\nencode\np0\n" + b"(X\x00\x00\x10\x00" + b"a" * 2**20 + b"X\x06\x00\x00\x00latin1tp1\n"
    doubled = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(200))
    bombs = [encoded + b"R" + b"g0\ng1\nR" * 1000, doubled, b")" + b"\x85" * 10**5, b"(" * 10**5, b"]" * 10**5]
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises(FedVisageError):
            parse_bin(b"\x80\x04](" + bomb + b"e]\x86.")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100 * len(bomb) + 2**20


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2, 3], "does not hold a list of images and a list of answers"),
        (([b"a", 7], [True]), "first part is not a list of encoded images: number 1 is none"),
        (([b"a", np.zeros((3, 4, 3), np.uint8)], [True]), r"image 1 is an array of u1 of shape \(3, 4, 3\)"),
        (([b"a", np.zeros(4, np.int32)], [True]), r"image 1 is an array of i4 of shape \(4,\)"),
        (([b"a", b"b"], np.array([2])), "second part is not a list of booleans"),
        (([b"a", b"b"], np.array([[True]])), "second part is not a list of booleans"),
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
    faces, report = bring_in(tmp_path / "a.bin", tmp_path / "out", allow_missing=1)
    assert len(faces) == 3
    assert report.unreadable == [{"image": "a.bin, image 1", "why": "no image: cannot identify image"}]
    assert report.notes == ["1 of 2 pairs are left out: their images are not there"]
    assert np.array_equal(open_list(tmp_path / "out", "pairs").same, [0])  # type: ignore[attr-defined]


def test_ten_folds_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(pickle.dumps(([image(n) for n in range(40)], [True, False] * 10), 4))
    bring_in(tmp_path / "a.bin", tmp_path / "out")
    folds = open_list(tmp_path / "out", "pairs").fold  # type: ignore[attr-defined]
    assert folds.tolist() == [1 + n // 2 for n in range(20)]
