"""What the documents' examples begin with: small stand-ins for downloads, face sets and finished runs."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import protocol_sets
from drawn_photos import ANN, ANN_AGAIN, BOB, draw
from releases import RELEASES
from safetensors.numpy import save_file
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.build import open_faces
from fedvisage.cli.main import app
from fedvisage.config import to_toml
from fedvisage.deploy import open_party_folder
from fedvisage.faces.decoding import encode
from fedvisage.faces.importing.recordio import write_recordio
from fedvisage.models import create_backbone, save_model
from fedvisage.studies import cells, run_cell

ROOT = Path(__file__).parents[1]
ONE_ROUND = {"federation.rounds": 1, "compare": [], "pretrain.epochs": 1}
FEDFR = ONE_ROUND | {"method.name": "fedfr"}


def command(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{' '.join(arguments)}: {done.output}{done.exception}"


def recipe(path: Path) -> None:
    """A recipe of the reader's own, which takes seconds."""
    path.write_text(to_toml(fv.load_recipe("smoke", ONE_ROUND)), "utf-8")


def download(folder: Path, count: int, each: int) -> None:
    """`count` images in InsightFace's form, `each` of a person, and a list of pairs."""
    rng = np.random.default_rng(1)
    images = [encode(rng.integers(0, 256, (112, 112, 3), np.uint8)) for _ in range(count)]
    write_recordio(folder, [(n // each, image) for n, image in enumerate(images)], 112)
    (folder / "lfw.bin").write_bytes(pickle.dumps((images[:40], [n < 10 for n in range(20)])))


def readme(folder: Path) -> None:
    """A download, and photos."""
    download(folder / "faces_webface_112x112", 60, 6)
    (folder / "photos").mkdir()
    for name, person in {"a": ANN, "b": ANN_AGAIN}.items():
        draw(folder / "photos" / f"{name}.jpg", person)


def comparison(folder: Path) -> None:
    """The figures measured before."""
    (folder / "docs").mkdir()
    shutil.copy2(ROOT / "docs" / "measured-methods.json", folder / "docs")


def concepts(folder: Path) -> None:
    """A recipe."""
    recipe(folder / "RECIPE")


def data(folder: Path) -> None:
    """A download: eleven people with 60 images each and one with four; benchmarks as they unpack; a model; a recipe."""
    download(folder / "faces_emore", 664, 60)
    for release in RELEASES:
        release(folder)
    save_model(folder / "model.safetensors", create_backbone("ir-tiny", image_size=112, embedding_size=16))
    recipe(folder / "recipe.toml")


def runs(folder: Path) -> None:
    """A finished run whose parties have models of their own, under the names that pages use; its model; face sets."""
    fv.run(fv.load_recipe("smoke", FEDFR), out=folder / "runs" / "fedfr")
    for name in ("runs/demo", "runs/b"):
        (folder / name).symlink_to("fedfr")
    for name in ("a.safetensors", "model.safetensors"):
        (folder / name).symlink_to("runs/fedfr/model.safetensors")


def evaluation(folder: Path) -> None:
    """Runs, sets with the lists of each protocol, embeddings of a run's faces, a party that is a host of its own."""
    runs(folder)
    run = folder / "runs" / "fedfr"
    open_faces(fv.load_recipe(run / "recipe.toml"), folder / "faces" / "all")
    command("embed", str(run / "parties" / "party-03"), "--data", "faces/all", "--out", "FILE", "--no-flip")
    command("deploy", "init", "hosts", "--recipe", str(run / "recipe.toml"), "--port", "0")
    (folder / "PARTY").symlink_to("hosts/parties/party-03")
    party = open_party_folder(folder / "PARTY")
    shutil.copytree(run / "parties" / "party-03", party.models("run"))
    shutil.copy2(run / "recipe.toml", party.models("run"))
    party.use(party.models("run"))
    for name in ("lfw", "agedb", "cfp-fp"):
        protocol_sets.lfw(folder / "faces" / name)
    protocol_sets.rfw(folder / "faces" / "rfw")
    protocol_sets.ijb(folder / "faces" / "ijbc")


def pretrained(folder: Path) -> None:
    """Runs, faces of other people, and photos, some in a folder per person."""
    runs(folder)
    (folder / "PHOTOS" / "Ann").mkdir(parents=True)
    draw(folder / "PHOTOS" / "Ann" / "1.jpg", ANN)
    protocol_sets.lfw(folder / "faces")
    for seed, name in enumerate(("training-actors", "other-actors")):
        command("data", "synth", f"faces/{name}", *f"--identities 20 --images 2 --size 112 --seed {seed}".split())
    for name in ("a", "ann1"):
        draw(folder / f"{name}.jpg", ANN)
    for name in ("b", "ann2"):
        draw(folder / f"{name}.jpg", ANN_AGAIN)
    draw(folder / "party.jpg", ANN, BOB)


def plug_ins(folder: Path) -> None:
    """The module and the recipe that the page shows."""
    for kind, name in (("python", "my_parts.py"), ("toml", "mine.toml")):
        page = (ROOT / "docs" / "plug-ins.md").read_text("utf-8")
        (folder / name).write_text(page.split(f"```{kind}\n")[1].split("```")[0], "utf-8")


def operators(folder: Path) -> None:
    """The folder of one of the parties that the page's first command makes, a recipe, a plug-in and photos."""
    (folder / "my_parts.py").write_text("", "utf-8")
    recipe(folder / "RECIPE")
    draw(folder / "ada.jpg", ANN)
    draw(folder / "photo.jpg", ANN)
    (folder / "PARTY").symlink_to("demo-federation/parties/party-00")


def cell_runs(folder: Path, study: str, **rows: str) -> None:
    """Runs of a study's smallest cells, by the names that the page gives them."""
    found = {cell.row: cell for cell in cells(study, "smoke", [1])}
    for name, row in rows.items():
        run_cell(found[row], folder / "runs" / "cells", folder / "results")
        (folder / name).symlink_to(f"runs/cells/{found[row].key}")


def fedface(folder: Path) -> None:
    """A run of Figure 5."""
    cell_runs(folder, "fedface/figure-5", RUN="fedavg")


def fedfr(folder: Path) -> None:
    """A run of Table 1."""
    cell_runs(folder, "fedfr/table-1", RUN="fedfr")


def fedgc(folder: Path) -> None:
    """Two runs of Figure 3."""
    cell_runs(folder, "fedgc/figure-3", RUN="softmax-fedgc", OTHER="softmax-fedpe")


def feduda(folder: Path) -> None:
    """A run of Table 2, the examples, and the embeddings that `merge_rules.py` would make of real faces."""
    cell_runs(folder, "feduda/table-2", RUN="fedfr-5")
    (folder / "examples").symlink_to(ROOT / "examples")
    rng = np.random.default_rng(1)
    for seed in (f"seed-{number}{flip}" for number in (1, 2, 3) for flip in ("", "-no-flip")):
        home = folder / "runs" / "merge-rules" / seed
        home.mkdir(parents=True)
        for name in ("source", "held-out", "target"):
            labels = np.arange(4).repeat(3)
            x = rng.normal(size=(4, 16))[labels] + 0.4 * rng.normal(size=(len(labels), 16))
            save_file({"embeddings": x.astype(np.float32), "labels": labels}, home / f"{name}.safetensors")
    (folder / "FILE").symlink_to("runs/merge-rules/seed-1/source.safetensors")


def pfm_fv(folder: Path) -> None:
    """The run of a cell."""
    (folder / "runs" / "studies").mkdir(parents=True)
    cell_runs(folder, "pfm-fv/causes", CELL="fedavg")
    (folder / "runs" / "studies" / "CELL").symlink_to("../../CELL")


GUIDES = (readme, comparison, concepts, data, evaluation, pretrained, plug_ins, operators)
PAPERS = (fedface, fedfr, fedgc, feduda, pfm_fv)
INPUTS: Mapping[str, Callable[[Path], None]] = {
    function.__name__.replace("_", "-"): function for function in (*GUIDES, *PAPERS)
}
"""By page."""
