"""What the documents' examples begin with: small stand-ins for downloads, face sets and finished runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import protocol_sets
from drawn_photos import ANN, ANN_AGAIN, BOB, draw
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli.main import app
from fedvisage.config import to_toml
from fedvisage.faces.decoding import encode
from fedvisage.faces.importing.recordio import write_recordio
from fedvisage.studies import cells, run_cell

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
    """Runs, faces of other people, and photos."""
    runs(folder)
    protocol_sets.lfw(folder / "faces")
    for name in ("a", "ann1"):
        draw(folder / f"{name}.jpg", ANN)
    for name in ("b", "ann2"):
        draw(folder / f"{name}.jpg", ANN_AGAIN)
    draw(folder / "party.jpg", ANN, BOB)


def operators(folder: Path) -> None:
    """The folder of one of the parties that the page's first command makes, and photos."""
    draw(folder / "ada.jpg", ANN)
    draw(folder / "photo.jpg", ANN)
    (folder / "PARTY").symlink_to("demo-federation/parties/party-00")


def feduda(folder: Path) -> None:
    """Embeddings of known people, as `examples/merge_rules.py` writes them."""
    fv.run(fv.load_recipe("smoke", {"federation.rounds": 1, "compare": []}), out=folder / "runs" / "start")
    protocol_sets.lfw(folder / "faces")
    (folder / "runs" / "merge-rules" / "seed-1").mkdir(parents=True)
    out = folder / "runs" / "merge-rules" / "seed-1" / "source.safetensors"
    assert CliRunner().invoke(app, ["embed", "runs/start", "--data", "faces", "--out", str(out)]).exit_code == 0


def pfm_fv(folder: Path) -> None:
    """The run of a cell."""
    cell = cells("pfm-fv/causes", "smoke", [1])[0]
    run_cell(cell, folder / "runs" / "studies", folder / "results")
    (folder / "runs" / "studies" / "CELL").symlink_to(cell.key)


INPUTS: Mapping[str, Callable[[Path], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (data, evaluation, pretrained, operators, feduda, pfm_fv)
}
"""By page."""
