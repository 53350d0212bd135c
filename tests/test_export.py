"""Exported models compute what the originals compute, and say how to feed them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.export import export_model
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import create_backbone, load_model, read_model_metadata, save_model


@pytest.fixture
def personal(tmp_path: Path) -> Path:
    """A party's own model: a network with a layer of its own."""
    model = create_backbone("ir-tiny", image_size=48, embedding_size=16, generator=torch.Generator().manual_seed(1))
    model.transformation = torch.nn.Linear(16, 16)
    save_model(tmp_path / "model.safetensors", model)
    return tmp_path / "model.safetensors"


def test_onnx_gives_the_originals_embeddings_for_any_number_of_images(personal: Path, tmp_path: Path) -> None:
    result = export_model(personal, tmp_path / "model.onnx")
    assert result["least_cosine"] >= 0.9999
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    images = SyntheticFaces(1, 5, 1, 48, "daylight").read(np.arange(5))
    for count in (1, 5):
        theirs = session.run(["embeddings"], {"images": images[:count]})[0]
        np.testing.assert_allclose(theirs, load_model(personal).embed(images[:count], flip=False), rtol=1e-3, atol=1e-5)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(about["fedvisage.image_size"]) == 48
    assert json.loads(about["fedvisage.mean"]) == [0.5, 0.5, 0.5]
    template = np.array(json.loads(about["fedvisage.template"]))
    np.testing.assert_allclose(template[0], np.array([38.2946, 51.6963]) * 48 / 112, atol=1e-3)


def test_dlibs_network_goes_to_onnx_with_its_chip_inside(tmp_path: Path) -> None:
    result = export_model("dlib", tmp_path / "dlib.onnx")
    assert result["least_cosine"] >= 0.9999
    assert result["metadata"]["fedvisage.backbone"] == "dlib-resnet"


def test_safetensors_keeps_the_weights_and_adds_the_description(personal: Path, tmp_path: Path) -> None:
    export_model(personal, tmp_path / "out.safetensors")
    before, after = load_model(personal).state_dict(), load_model(tmp_path / "out.safetensors").state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert "transformation.weight" in after
    assert "similarity" in read_model_metadata(tmp_path / "out.safetensors")["fedvisage.alignment"]


def test_what_cannot_be_exported_is_refused(personal: Path, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match=r"the suffix must be \.safetensors or \.onnx"):
        export_model(personal, tmp_path / "model.h5")
    with pytest.raises(FedVisageError, match="no model"):
        export_model(tmp_path / "none.safetensors", tmp_path / "model.onnx")
    with pytest.raises(FedVisageError, match="cannot write"):
        export_model(personal, tmp_path / "no" / "folder.onnx")
