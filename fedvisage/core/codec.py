"""Tensors and text as bytes and back: the safetensors layout, without pickle and without copies.

The same few functions serve checkpoints, party state and the wire. `pack` yields pieces that can be written one after
the other; `unpack` gives tensors that look into the buffer it was handed, after checking every offset against it.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Flat

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
HEADER_LIMIT = 100_000_000
LARGEST_SIZE = 2**48
MOST_DIMENSIONS = 64

State = dict[str, Any]
"""Plain data: nested dicts of tensors, numbers, strings, booleans, None and lists of those."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is contiguous on the CPU."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file as pieces: header first, then each tensor's bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    pieces: list[bytes | memoryview] = []
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in CODES:
            raise FedVisageError(f"tensor '{name}' has dtype {tensor.dtype}, which cannot be stored")
        piece = tensor_bytes(tensor)
        header[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(piece)],
        }
        offset += len(piece)
        pieces.append(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def unpack(buffer: bytearray | memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (views into `buffer`, which must be writable) and metadata; a ValueError says what is wrong with it."""
    view = memoryview(buffer)
    if len(view) < 8:
        raise ValueError("shorter than its own header")
    length = int.from_bytes(view[:8], "little")
    if length > min(HEADER_LIMIT, len(view) - 8):
        raise ValueError("header runs past the end")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ValueError("header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError("header is not a table")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata is not a table of strings")
    data = view[8 + length :]
    whole = torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
    return {name: _view(name, entry, whole) for name, entry in header.items()}, metadata


def _view(name: str, entry: Any, whole: Tensor) -> Tensor:
    try:
        dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        sizes = [*shape, first, last]
        sound = len(shape) <= MOST_DIMENSIONS and all(type(size) is int and 0 <= size < LARGEST_SIZE for size in sizes)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"entry of tensor '{name}' is malformed") from error
    if not sound or last > len(whole) or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"tensor '{name}' does not fit the bytes that hold it")
    try:
        if first == last:
            return torch.empty(shape, dtype=dtype)
        raw = whole[first:last]
        if first % dtype.itemsize or raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).reshape(shape)
    except RuntimeError as error:
        raise ValueError(f"tensor '{name}' has the impossible shape {shape}") from error


def flatten(tree: State) -> tuple[dict[str, Tensor], Any]:
    """A state's tensors by path, and the rest of it as JSON data in which each tensor is `{"$": path}`."""
    tensors: dict[str, Tensor] = {}
    return tensors, _walk(tree, "", tensors)


def _walk(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A part of a state as JSON data; its tensors go into `tensors`."""
    if isinstance(node, Tensor):
        while path in tensors or path == "__metadata__":
            path += "'"
        tensors[path] = node
        return {"$": path}
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str) or key == "$":
                raise FedVisageError(f"state entry '{path}' has the key {key!r}; keys are strings other than '$'")
        return {key: _walk(value, f"{path}/{key}" if path else key, tensors) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_walk(value, f"{path}/{index}", tensors) for index, value in enumerate(node)]
    if node is None or isinstance(node, str | bool | int | float):
        return node
    raise FedVisageError(f"state entry '{path}' is a {type(node).__name__}; state holds plain data and tensors only")


def unflatten(tensors: Mapping[str, Tensor], rest: Any) -> Any:
    """The inverse of `flatten`."""
    if isinstance(rest, dict):
        if set(rest) == {"$"}:
            return tensors[rest["$"]]
        return neighbours({key: unflatten(tensors, value) for key, value in rest.items()})
    if isinstance(rest, list):
        return [unflatten(tensors, value) for value in rest]
    return rest


def neighbours(group: dict[str, Any]) -> dict[str, Any]:
    """The same dict, as a `Flat` where it holds tensors that follow each other in one buffer."""
    tensors = [value for value in group.values() if isinstance(value, Tensor) and value.numel()]
    if len(tensors) < 2 or len(tensors) != len(group):
        return group
    first = tensors[0]
    place, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        same = tensor.dtype == first.dtype and tensor.untyped_storage().data_ptr() == storage
        if not same or tensor.storage_offset() != place:
            return group
        place += tensor.numel()
    return Flat(group, first.as_strided((place - first.storage_offset(),), (1,)))


def write_atomically(path: Path | str, pieces: Iterable[bytes | memoryview], durable: bool = True) -> None:
    """Write a whole file or nothing: a temporary beside it, then a rename. On a full disk the old file stays."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{threading.get_ident()}")
    try:
        _write(temporary, pieces, durable)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or error
        raise FedVisageError(f"cannot write {path}: {reason}; what was there before is kept") from error


def _write(path: Path | str, pieces: Iterable[bytes | memoryview], durable: bool) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for piece in pieces:
            view = memoryview(piece)
            while len(view):
                view = view[os.write(file, view) :]
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def state_size(state: State) -> int:
    """Bytes of a state's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in flatten(state)[0].values())


def state_pieces(state: State) -> list[bytes | memoryview]:
    """A state as the pieces of one safetensors file."""
    tensors, rest = flatten(state)
    return pack(tensors, {"state": json.dumps(rest)})


def state_bytes(state: State) -> bytes:
    """A state as bytes that `read_state` understands."""
    return b"".join(state_pieces(state))


def save_state(path: Path | str, state: State, durable: bool = True) -> None:
    """Write a state as one safetensors file, atomically."""
    write_atomically(path, state_pieces(state), durable)


def save_new_state(path: Path | str, state: State, durable: bool) -> None:
    """Write a state under a name that nobody looks for until this has returned: no rename is needed."""
    try:
        _write(path, state_pieces(state), durable)
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        raise FedVisageError(f"cannot write {path}: {error.strerror or error}") from error


def read_state(buffer: bytearray, where: Path | str) -> State:
    """The state in `buffer`, which came from `where`."""
    try:
        tensors, metadata = unpack(buffer)
        state = unflatten(tensors, json.loads(metadata["state"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FedVisageError(f"{where} is damaged: {error}") from error
    if not isinstance(state, dict):
        raise FedVisageError(f"{where} is damaged: not a state")
    return state


def load_state(path: Path | str) -> State:
    """Read a state written by `save_state`."""
    try:
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(os.fstat(file.fileno()).st_size)
            view = memoryview(buffer)
            while len(view) and (count := file.readinto(view)):
                view = view[count:]
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from error
    return read_state(buffer, path)
