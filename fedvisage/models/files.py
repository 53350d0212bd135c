"""Backbones on disk: safetensors with what is needed to rebuild the network; and `arcface_torch` state dicts.

The safetensors metadata has one key, `fedvisage`, whose value is JSON with sorted keys, so the same weights give the
same bytes. Nothing here unpickles: `torch.load` runs with `weights_only`.
"""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedvisage.core.codec import pack
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.models.backbone import Backbone
from fedvisage.models.centres import Centre
from fedvisage.models.creation import BACKBONES, allocate, build_on_meta

KEY = "fedvisage"
FORMAT = 1
CENTRES = "centres."
"""What the tensors of a model's centres are called by, before the centre's name."""
ARCFACE_TORCH = ("ir-18", "ir-34", "ir-50", "ir-100")


def save_model(path: str | Path, backbone: Backbone, metadata: Mapping[str, str] | None = None) -> None:
    """Write `backbone` with free-text `metadata` to `path`; a reader sees the old file or the whole new one."""
    path = Path(path)
    about = {
        "format": FORMAT,
        "backbone": backbone.metadata.name,
        "image_size": backbone.metadata.image_size,
        "embedding_size": backbone.metadata.embedding_size,
        "metadata": dict(metadata or {}),
    }
    if backbone.transformation is not None:
        about["transformation"] = True
    if backbone.centres:
        about["centres"] = {name: centre.people for name, centre in backbone.centres.items()}
    state = backbone.state_dict() | {CENTRES + name: centre.vector for name, centre in backbone.centres.items()}
    order = sorted(state, key=lambda name: (-state[name].element_size(), name))  # as safetensors orders them
    pieces = pack({name: state[name] for name in order}, {KEY: json.dumps(about, sort_keys=True)})
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise FedVisageError(f"cannot write the model {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load_model(path: str | Path) -> Backbone:
    """The backbone that `save_model` wrote to `path`, with its centres, on the CPU and in evaluation mode."""
    about, tensors = _read(path)
    centres = _take_centres(about, tensors, f"model {path}")
    try:
        backbone = build_on_meta(
            about["backbone"], image_size=about["image_size"], embedding_size=about["embedding_size"]
        )
    except FedVisageError as error:
        hint = "" if about["backbone"] in BACKBONES else "; of a plug-in's, give --plugin, or import it"
        raise FedVisageError(f"model {path}: {error}{hint}") from None
    if about.get("transformation"):
        size = backbone.metadata.embedding_size
        backbone.transformation = nn.Linear(size, size, device="meta")
    backbone.centres = centres
    return _fill(backbone, tensors, f"model {path}")


def read_model_metadata(path: str | Path) -> dict[str, str]:
    """The free-text metadata given to `save_model`."""
    about, _ = _read(path, tensors=False)
    return {str(key): str(value) for key, value in about["metadata"].items()}


def load_arcface_torch(name: str, path: str | Path) -> Backbone:
    """The IR backbone `name` with the weights of an `arcface_torch` state dict (`.pt`), in evaluation mode."""
    if name not in ARCFACE_TORCH:
        raise FedVisageError(f"arcface_torch has no '{name}': {nearest(name, ARCFACE_TORCH)}")
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise FedVisageError(f"cannot read the state dict {path}: {error.strerror}") from None
    with file, warnings.catch_warnings(action="ignore"):
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception:  # hostile bytes make the unpickler raise anything
            raise FedVisageError(
                f"{path} is not a state dict of plain tensors: it is damaged, or holds objects that could run code"
            ) from None
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in state.items()
    ):
        raise FedVisageError(f"{path} is not a state dict: it must map layer names to tensors")
    return _fill(build_on_meta(name), state, f"state dict {path}")


def _read(path: str | Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a model file says of itself, and its tensors unless they are not wanted."""
    try:
        with safe_open(path, framework="pt") as file:
            about = _describe(file.metadata(), path)
            return about, {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FedVisageError(f"cannot read the model {path}: {error}") from None


def _describe(metadata: Mapping[str, str] | None, path: str | Path) -> dict[str, Any]:
    """The JSON that `save_model` put into a file's metadata, checked."""
    try:
        about: dict[str, Any] = json.loads((metadata or {})[KEY])
        version = about["format"]
        kinds = {"backbone": str, "image_size": int, "embedding_size": int, "metadata": dict}
        described = all(type(about[key]) is kind for key, kind in kinds.items())
    except (KeyError, TypeError, ValueError):
        raise FedVisageError(f"model {path} does not say which backbone it holds: FedVisage did not write it") from None
    if version != FORMAT or not described:
        raise FedVisageError(f"model {path} is described in a form this version cannot read (format {version})")
    return about


def _take_centres(about: dict[str, Any], tensors: dict[str, Tensor], what: str) -> dict[str, Centre]:
    """The centres among a file's tensors, which are taken out of them."""
    found = {name: tensors.pop(name) for name in [name for name in tensors if name.startswith(CENTRES)]}
    people = about.get("centres", {})
    size = about["embedding_size"]
    sound = isinstance(people, dict) and {CENTRES + name for name in people} == found.keys()
    if not sound or not all(type(count) is int for count in people.values()):
        raise FedVisageError(f"{what} does not say of how many people its centres are: it is damaged")
    for name, vector in found.items():
        if vector.shape != (size,) or vector.dtype != torch.float32 or not torch.isfinite(vector).all():
            raise FedVisageError(f"{what}: '{name}' is not {size} finite numbers in float32")
    return {name: Centre(found[CENTRES + name], count) for name, count in people.items()}


def _fill(backbone: Backbone, tensors: Mapping[str, Tensor], what: str) -> Backbone:
    """Give a backbone built without weights exactly the tensors it expects, and set it to evaluation mode."""
    expected = backbone.state_dict()
    name = backbone.metadata.name
    if missing := sorted(expected.keys() - tensors.keys()):
        raise FedVisageError(f"{what} lacks {len(missing)} of {name}'s {len(expected)} tensors, first '{missing[0]}'")
    if extra := sorted(tensors.keys() - expected.keys()):
        raise FedVisageError(f"{what} has {len(extra)} tensors that {name} does not know, first '{extra[0]}'")
    for key, tensor in tensors.items():
        wanted = expected[key]
        if tensor.shape != wanted.shape or tensor.is_floating_point() != wanted.is_floating_point():
            raise FedVisageError(
                f"{what}: '{key}' is {tensor.dtype} {tuple(tensor.shape)} where {name} has "
                f"{wanted.dtype} {tuple(wanted.shape)}"
            )
    allocate(backbone)
    backbone.load_state_dict(tensors)
    return backbone.eval()


def _sync_folder(folder: Path) -> None:
    """Ask the system to put a folder's list of files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
