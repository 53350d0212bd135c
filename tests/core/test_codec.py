"""State as bytes and back: exact for any tree, readable by safetensors, and a ValueError for any other bytes."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedvisage.core.codec import DTYPES, flatten, load_state, pack, save_state, unflatten, unpack, write_atomically
from fedvisage.core.errors import FedVisageError


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    if dtype == torch.bool:
        raw = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    else:
        raw = list(draw(st.binary(min_size=count, max_size=count)))
    flat = torch.tensor(raw, dtype=torch.uint8).view(dtype)
    return flat.reshape(shape)


keys = st.text(max_size=6).filter(lambda key: key != "$")
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | tensors()
trees = st.dictionaries(
    keys,
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
    ),
    max_size=4,
)


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, with equal types (a tensor's bits, so that NaN equals NaN)."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def file_of(header: Any, data: bytes = b"") -> bytearray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + data)


def entry(shape: Any = (1,), dtype: Any = "F32", offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@given(trees)
def test_any_tree_survives_the_round_trip_through_bytes(tree: dict[str, Any]) -> None:
    found, rest = flatten(tree)
    buffer = bytearray(b"".join(pack(found, {"rest": json.dumps(rest)})))
    back, metadata = unpack(buffer)
    assert same(tree, unflatten(back, json.loads(metadata["rest"])))


@settings(max_examples=25)
@given(tree=trees)
def test_any_tree_survives_the_round_trip_through_a_file(tree: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    save_state(path, tree, durable=False)
    assert same(tree, load_state(path))


def test_a_state_that_was_written_is_let_go_of_without_the_garbage_collector(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    gone = weakref.ref(tensor)
    gc.disable()
    try:
        save_state(tmp_path / "s", {"a": {"b": tensor}})
        del tensor
        assert gone() is None
    finally:
        gc.enable()


def test_tensors_that_would_share_a_path_stay_apart(tmp_path: Path) -> None:
    tree = {"a/b": torch.zeros(2), "a": {"b": torch.ones(2)}, "__metadata__": torch.full((2,), 2.0)}
    save_state(tmp_path / "s", tree)
    assert same(tree, load_state(tmp_path / "s"))


def test_a_tensor_that_is_not_contiguous_is_stored_by_value(tmp_path: Path) -> None:
    turned = torch.arange(6.0).reshape(2, 3).T
    save_state(tmp_path / "s", {"t": turned})
    assert torch.equal(load_state(tmp_path / "s")["t"], turned)


def test_values_that_start_at_odd_addresses_are_read_right(tmp_path: Path) -> None:
    tree = {"flags": torch.tensor([True, False, True]), "numbers": torch.tensor([1.5, -2.5], dtype=torch.float64)}
    save_state(tmp_path / "s", tree)
    numbers = load_state(tmp_path / "s")["numbers"]
    assert numbers.tolist() == [1.5, -2.5]
    assert numbers.data_ptr() % 8 == 0


@pytest.mark.parametrize("key", [1, None, "$"])
def test_keys_that_would_not_come_back_are_refused(key: Any) -> None:
    with pytest.raises(FedVisageError, match="keys are strings"):
        flatten({"inner": {key: 1}})


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2), b"bytes"])
def test_only_plain_data_is_state(value: Any) -> None:
    with pytest.raises(FedVisageError, match=f"'inner/x' is a {type(value).__name__}; state holds plain data"):
        flatten({"inner": {"x": value}})


def test_a_dtype_that_safetensors_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"tensor 'z' has dtype torch\.complex64"):
        save_state(tmp_path / "s", {"z": torch.zeros(1, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_safetensors_library_reads_our_files(dtype: torch.dtype, tmp_path: Path) -> None:
    tree = {"one": torch.tensor([[0, 1], [1, 0]]).to(dtype), "group": {"none": torch.zeros(0, 3).to(dtype)}}
    save_state(tmp_path / "s.safetensors", tree)
    read = load_file(tmp_path / "s.safetensors")
    assert same(read, {"group/none": tree["group"]["none"], "one": tree["one"]}) or same(
        read, {"one": tree["one"], "group/none": tree["group"]["none"]}
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_we_read_files_of_the_safetensors_library(dtype: torch.dtype, tmp_path: Path) -> None:
    written = {"one": torch.tensor([[0, 1], [1, 0]]).to(dtype), "none": torch.zeros(0, 3).to(dtype)}
    save_file(written, tmp_path / "s.safetensors", {"about": "text"})
    read, metadata = unpack(bytearray((tmp_path / "s.safetensors").read_bytes()))
    assert metadata == {"about": "text"}
    assert {name: same(read[name], written[name]) for name in written} == {"one": True, "none": True}


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_error(junk: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(bytearray(junk))


@given(st.data())
def test_a_header_around_random_json_is_read_or_a_value_error(data: st.DataObject) -> None:
    numbers = st.integers(-3, 12) | st.just(2**62) | st.floats() | st.text(max_size=2)
    shape = st.lists(numbers, max_size=4) | numbers
    header = data.draw(
        st.dictionaries(
            st.text(max_size=3) | st.just("__metadata__"),
            st.fixed_dictionaries({"dtype": st.sampled_from([*DTYPES, "X", 3]), "shape": shape, "data_offsets": shape})
            | numbers
            | st.lists(numbers, max_size=2),
            max_size=3,
        )
    )
    payload = data.draw(st.binary(max_size=12))
    try:
        found, _ = unpack(file_of(header, payload))
    except ValueError:
        return
    assert all(tensor.numel() * tensor.element_size() <= len(payload) for tensor in found.values())


def test_every_truncation_is_a_value_error() -> None:
    whole = b"".join(pack({"a": torch.arange(3.0), "b": torch.tensor([True])}, {"m": "x"}))
    for length in range(len(whole)):
        with pytest.raises(ValueError):
            unpack(bytearray(whole[:length]))
    assert set(unpack(bytearray(whole))[0]) == {"a", "b"}


HOSTILE = {
    "reads past the end": file_of(entry(shape=[2], offsets=[0, 8]), b"1234"),
    "reads before the start": file_of(entry(offsets=[-4, 0]), b"1234"),
    "offsets swapped": file_of(entry(offsets=[4, 0]), b"1234"),
    "shape larger than its bytes": file_of(entry(shape=[2]), b"1234"),
    "negative shape": file_of(entry(shape=[-1, -1]), b"1234"),
    "shape of floats": file_of(entry(shape=[1.0]), b"1234"),
    "shape of booleans": file_of(entry(shape=[True]), b"1234"),
    "no elements, impossible strides": file_of(entry(shape=[0, 2**47, 2**47], offsets=[0, 0])),
    "no elements, dimension beyond 64 bits": file_of(entry(shape=[0, 10**30], offsets=[0, 0])),
    "a thousand dimensions": file_of(entry(shape=[1] * 1000), b"1234"),
    "dtype unknown": file_of(entry(dtype="F8"), b"1234"),
    "dtype not hashable": file_of(entry(dtype=["F32"]), b"1234"),
    "entry is a number": file_of({"t": 3}),
    "entry without offsets": file_of({"t": {"dtype": "F32", "shape": [0]}}),
    "metadata not strings": file_of({"__metadata__": {"a": 1}}),
    "metadata not a table": file_of({"__metadata__": ["a"]}),
    "header is a list": file_of([1, 2]),
    "header nested deeply": file_of(b"[" * 100_000),
    "header not UTF-8": file_of(b'{"\xff": 1}'),
    "header of 16 exabytes": bytearray(b"\xff" * 8 + b"{}"),
}


@pytest.mark.parametrize("buffer", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_a_value_error(buffer: bytearray) -> None:
    with pytest.raises(ValueError):
        unpack(buffer)


def test_thousands_of_huge_dimensions_are_refused_at_once() -> None:
    """Multiplying 600 numbers of 4,000 digits took 15 s before sizes were bounded."""
    buffer = file_of(entry(shape=[10**3999] * 600), b"1234")
    start = time.monotonic()
    with pytest.raises(ValueError):
        unpack(buffer)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "text", ['{"a": {"$": "absent"}}', "[1]", "[" * 100_000, "{", '{"a": {"$": [1]}}'], ids=lambda text: text[:20]
)
def test_a_damaged_state_names_its_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"".join(pack({}, {"state": text})))
    with pytest.raises(FedVisageError, match=r"last\.safetensors is damaged"):
        load_state(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"cannot read .*absent: No such file"):
        load_state(tmp_path / "absent")


def test_a_failing_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    """The file size limit of a process of its own stands in for a full disk: the kernel itself refuses the bytes."""
    path = tmp_path / "state.safetensors"
    save_state(path, {"t": torch.ones(10)})
    code = f"""
import resource, signal, sys
import torch
from pathlib import Path
from fedvisage.core.codec import save_state
from fedvisage.core.errors import FedVisageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    save_state(Path({str(path)!r}), {{"t": torch.zeros(10000)}})
except FedVisageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"cannot write {path}: {os.strerror(errno.EFBIG)}; what was there before is kept" in done.stderr
    assert load_state(path)["t"].tolist() == [1.0] * 10
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """A real file system of 64 KB, in a mount namespace of its own."""
    code = f"""
import subprocess, sys
import torch
from pathlib import Path
from fedvisage.core.codec import load_state, save_state
from fedvisage.core.errors import FedVisageError
folder = Path({str(tmp_path)!r})
path = folder / "state.safetensors"
save_state(path, {{"t": torch.ones(10)}})
try:
    save_state(path, {{"t": torch.zeros(100000)}})
except FedVisageError as error:
    print(error)
print(load_state(path)["t"].sum().item(), [p.name for p in folder.iterdir()])
"""
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$1" -c "$2"']
    try:
        done = subprocess.run(
            [*mount, str(tmp_path), sys.executable, code], capture_output=True, text=True, check=False, timeout=120
        )
    except FileNotFoundError:
        pytest.skip("no unshare on this system")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no private mounts on this system: {done.stderr.strip()}")
    assert "No space left on device; what was there before is kept" in done.stdout, done.stderr
    assert "10.0 ['state.safetensors']" in done.stdout


def test_an_interrupt_while_writing_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def pieces() -> Any:
        yield b"new"
        signal.raise_signal(signal.SIGINT)
        yield b"never"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    try:
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, pieces())
    finally:
        signal.signal(signal.SIGINT, before)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"cannot write .*absent/file: No such file"):
        write_atomically(tmp_path / "absent" / "file", [b"x"])
