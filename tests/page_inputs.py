"""What the documents' examples begin with: small stand-ins for downloads, face sets and finished runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import protocol_sets

import fedvisage as fv
from fedvisage.config import to_toml
from fedvisage.faces.decoding import encode
from fedvisage.faces.importing.recordio import write_recordio

FEDFR = {"method.name": "fedfr", "federation.rounds": 1, "compare": [], "pretrain.epochs": 1}


def data(folder: Path) -> None:
    """A download in InsightFace's form: eleven people with 60 images each and one with four; a pair list; a recipe."""
    rng = np.random.default_rng(1)
    images = [encode(rng.integers(0, 256, (112, 112, 3), np.uint8)) for _ in range(664)]
    write_recordio(folder / "faces_emore", [(n // 60, image) for n, image in enumerate(images)], 112)
    (folder / "faces_emore" / "lfw.bin").write_bytes(pickle.dumps((images[:40], [n < 10 for n in range(20)])))
    (folder / "recipe.toml").write_text(to_toml(fv.load_recipe("smoke")), "utf-8")


def runs(folder: Path) -> None:
    """A finished run whose parties have models of their own, under the names that pages use; its model; face sets."""
    fv.run(fv.load_recipe("smoke", FEDFR), out=folder / "runs" / "fedfr")
    for name in ("runs/demo", "runs/b"):
        (folder / name).symlink_to("fedfr")
    for name in ("a.safetensors", "model.safetensors"):
        (folder / name).symlink_to("runs/fedfr/model.safetensors")


def evaluation(folder: Path) -> None:
    """Runs, and sets with the lists of each protocol."""
    runs(folder)
    for name in ("lfw", "agedb", "cfp-fp"):
        protocol_sets.lfw(folder / "faces" / name)
    protocol_sets.rfw(folder / "faces" / "rfw")
    protocol_sets.ijb(folder / "faces" / "ijbc")


def pretrained(folder: Path) -> None:
    """Runs, and faces of other people."""
    runs(folder)
    protocol_sets.lfw(folder / "faces")


def operators(folder: Path) -> None:
    """The folder of one of the parties that the page's first command makes."""
    (folder / "PARTY").symlink_to("demo-federation/parties/party-00")


INPUTS: Mapping[str, Callable[[Path], None]] = {
    function.__name__: function for function in (data, evaluation, pretrained, operators)
}
"""By page."""
