"""A model for use elsewhere: safetensors as it is, or ONNX with everything from 8-bit images to embeddings inside.

The ONNX graph takes aligned 8-bit RGB images (N, H, W, 3) and gives embeddings (N, d), not normalised; normalisation of
the pixels and, in a party's own model, the personal layer are part of it, and so is a centre that is asked for. Its
metadata says how to align a face.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvisage.cards import make_card
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.template import ARCFACE_POINTS, ARCFACE_SIZE
from fedvisage.models import Backbone, open_model, save_model

OPSET = 20
SAMPLES = 8
LEAST_COSINE = 0.9999


def description(model: Backbone) -> dict[str, str]:
    """What a user of the exported model must know: sizes, the template to align to, the pixels' normalisation."""
    about = model.metadata
    template = ARCFACE_POINTS * (about.image_size / ARCFACE_SIZE)
    values: dict[str, Any] = {
        "backbone": about.name,
        "image_size": about.image_size,
        "embedding_size": about.embedding_size,
        "channels": about.channels,
        "alignment": "similarity of eyes, nose and corners of the mouth, image left to right, to `template`",
        "template": template.round(4).tolist(),
        "mean": about.mean,
        "std": about.std,
        "normalisation": "(pixel / 255 - mean) / std",
        "compare": "cosine; adding the embedding of the mirrored image makes it a little better",
        "licence": about.licence,
    }
    if model.centre:
        values["centre"] = f"{model.centre}, of {model.centres[model.centre].people} people; it is part of the graph"
    return {f"fedvisage.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def export_model(source: str | Path, path: Path, centre: str = "") -> dict[str, Any]:
    """Write a model to `path` in the format of its suffix (.safetensors or .onnx), with its card; what was checked.

    A safetensors file has all centres of the model; an ONNX graph gives embeddings about the `centre` of that name.
    """
    model = open_model(source, centre)
    if centre and path.suffix == ".safetensors":
        raise FedVisageError(
            f"{path} keeps every centre of the model: leave --centre out, and name one where it is used"
        )
    card = make_card(source, model, path.stem)
    about = description(model) | dict(card.facts)
    page = path.with_suffix(".card.md")
    if path.suffix == ".safetensors":
        save_model(path, model, about)
        write_atomically(page, [card.markdown.encode()])
        return {"file": str(path), "card": str(page), "format": "safetensors", "metadata": about}
    if path.suffix != ".onnx":
        raise FedVisageError(f"{path}: the suffix must be .safetensors or .onnx")
    if not path.parent.is_dir():
        raise FedVisageError(f"cannot write {path}: there is no folder {path.parent}")
    _write_onnx(model, path, about)
    cosine = _agreement(model, path)
    if not cosine >= LEAST_COSINE:
        path.unlink()
        raise FedVisageError(f"the ONNX model disagrees with the original (cosine {cosine:.6f}): nothing was written")
    write_atomically(page, [card.markdown.encode()])
    return {
        "file": str(path),
        "card": str(page),
        "format": "onnx",
        "opset": OPSET,
        "least_cosine": cosine,
        "metadata": about,
    }


class _FromPixels(nn.Module):
    """8-bit images (N, H, W, 3) to embeddings (N, d)."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """As `Backbone.embed` without the mirror image."""
        mean, std = (
            images.new_tensor(v, dtype=torch.float32) for v in (self.model.metadata.mean, self.model.metadata.std)
        )
        pixels = (images.to(torch.float32) / 255 - mean) / std
        features: Tensor = self.model(pixels.permute(0, 3, 1, 2))
        if self.model.transformation is not None:
            features = self.model.transformation(features)
        return self.model.about_centre(features)


def _write_onnx(model: Backbone, path: Path, about: dict[str, str]) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise FedVisageError('ONNX needs more packages: pip install "fedvisage[onnx]"') from None
    size = model.metadata.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with _quietly():
        program = torch.onnx.export(
            _FromPixels(model).eval(),
            (example,),
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("count")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for key, value in about.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    try:
        onnx.checker.check_model(proto)
        onnx.save(proto, str(path))
    except OSError as error:
        raise FedVisageError(f"cannot write {path}: {error.strerror or error}") from None


def _agreement(model: Backbone, path: Path) -> float:
    """Least cosine between the embeddings of the original and of the exported model, on noise and plain colours."""
    try:
        import onnxruntime
    except ImportError:
        raise FedVisageError('checking ONNX needs onnxruntime: pip install "fedvisage[onnx]"') from None
    size = model.metadata.image_size
    images = np.random.default_rng(0).integers(0, 256, (SAMPLES, size, size, 3), dtype=np.uint8)
    images[: SAMPLES // 2] = images[: SAMPLES // 2, :1, :1]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"images": images})[0]
    ours = model.embed(images, flip=False)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's notes on what it does."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
