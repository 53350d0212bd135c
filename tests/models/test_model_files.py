"""Model files: whole or not at all, the same bytes for the same weights, and one clear error for each thing wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from fedvisage.core.errors import FedVisageError
from fedvisage.models import Backbone, create_backbone, load_model, read_model_metadata, save_model

ABOUT = {"format": 1, "backbone": "ir-tiny", "image_size": 32, "embedding_size": 128, "metadata": {}}


@pytest.fixture
def tiny() -> Backbone:
    return create_backbone("ir-tiny", generator=torch.Generator().manual_seed(1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_free_text_travels_with_the_weights(tiny: Backbone, path: Path) -> None:
    save_model(path, tiny, {"run": "demo", "method": "fedavg"})
    assert read_model_metadata(path) == {"run": "demo", "method": "fedavg"}
    save_model(path, tiny)
    assert read_model_metadata(path) == {}


def test_the_same_weights_give_the_same_bytes(tiny: Backbone, path: Path) -> None:
    save_model(path, tiny, {"a": "1", "b": "2"})
    first = path.read_bytes()
    save_model(path, tiny, {"b": "2", "a": "1"})
    assert path.read_bytes() == first


def test_weights_in_another_memory_format_are_saved_alike(tiny: Backbone, path: Path) -> None:
    save_model(path, tiny)
    first = path.read_bytes()
    save_model(path, tiny.to(memory_format=torch.channels_last))
    assert path.read_bytes() == first


def test_a_model_loads_from_a_name_as_well_as_a_path(tiny: Backbone, path: Path) -> None:
    save_model(str(path), tiny)
    assert load_model(str(path)).metadata == tiny.metadata


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    tiny: Backbone, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(path, tiny)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedVisageError, match=r"cannot write the model .*model\.safetensors: No space left on device"):
        save_model(path, create_backbone("ir-tiny", generator=torch.Generator().manual_seed(2)))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(tiny: Backbone, path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"cannot write the model .*absent.*: No such file or directory"):
        save_model(path.parent / "absent" / "model.safetensors", tiny)


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:50], lambda b: b[:-100], lambda b: b"x" * len(b)])
def test_a_damaged_file_is_refused_by_name(tiny: Backbone, path: Path, damage: Callable[[bytes], bytes]) -> None:
    save_model(path, tiny)
    path.write_bytes(damage(path.read_bytes()))
    for read in (load_model, read_model_metadata):
        with pytest.raises(FedVisageError, match=r"cannot read the model .*model\.safetensors"):
            read(path)


def test_an_absent_file_is_refused_by_name(path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"cannot read the model .*model\.safetensors: No such file"):
        load_model(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "does not say which backbone"),
        ({"format": "pt"}, "does not say which backbone"),
        ({"fedvisage": "{"}, "does not say which backbone"),
        ({"fedvisage": "[]"}, "does not say which backbone"),
        ({"fedvisage": "{}"}, "does not say which backbone"),
        (ABOUT | {"format": 2}, r"cannot read \(format 2\)"),
        (ABOUT | {"image_size": "32"}, "cannot read"),
        (ABOUT | {"backbone": "ir-tinny"}, "unknown backbone 'ir-tinny': did you mean 'ir-tiny'"),
        (ABOUT | {"image_size": 33}, "image_size is 33"),
        (ABOUT | {"image_size": 10**30}, "image_size is"),
        (ABOUT | {"image_size": 64}, r"'fc.weight' is torch.float32 \(128, 512\) where ir-tiny has"),
    ],
)
def test_metadata_that_cannot_be_used_is_refused(tiny: Backbone, path: Path, metadata: dict, message: str) -> None:
    if metadata and "backbone" in metadata:
        metadata = {"fedvisage": json.dumps(metadata)}
    save_file(tiny.state_dict(), path, metadata)
    with pytest.raises(FedVisageError, match=rf"model\.safetensors.*{message}"):
        load_model(path)


def test_missing_extra_and_wrong_tensors_are_refused(tiny: Backbone, path: Path) -> None:
    state = tiny.state_dict()
    for tensors, message in [
        ({key: tensor for key, tensor in state.items() if key != "fc.bias"}, "lacks 1 .*first 'fc.bias'"),
        (state | {"head": torch.ones(1)}, "has 1 tensors that ir-tiny does not know, first 'head'"),
        (state | {"fc.bias": torch.ones(128, dtype=torch.int32)}, "'fc.bias' is torch.int32"),
    ]:
        save_file(tensors, path, {"fedvisage": json.dumps(ABOUT)})
        with pytest.raises(FedVisageError, match=rf"model\.safetensors.*{message}"):
            load_model(path)


def test_the_bytes_are_those_that_safetensors_writes(tiny: Backbone, path: Path) -> None:
    save_model(path, tiny, {"who": "Zoë"})
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: tensor.contiguous() for name, tensor in tiny.state_dict().items()}
    assert path.read_bytes() == save(tensors, metadata=metadata)
