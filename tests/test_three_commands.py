"""The README's way to FedGC's Table 5: its commands, on stand-ins for the download and at a fraction of the budget."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.importing import write_recordio
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import create_backbone
from fedvisage.protocols import Data, Options, Subject
from fedvisage.protocols import run as evaluate
from fedvisage.studies import cells, home
from fedvisage.studies.sets import left_out

SETS = ("agedb-30", "cfp-fp", "lfw")
ROOT = Path(__file__).parents[1]
SMALLER = {"parties = 36": "parties = 2", "ir-34": "ir-tiny", "batch_size = 256": "batch_size = 4", "= 100": "= 1"}
"""What is changed of the study's paper scale, so that a CPU does it in seconds; its data and columns stay."""


def typed() -> list[str]:
    """The lines that the README tells to type."""
    section = (ROOT / "README.md").read_text("utf-8").split("## Studies")[1].split("\n## ")[0]
    return section.split("```")[1].strip().splitlines()


def download(folder: Path) -> None:
    """Six people with three images each, and three test sets of twenty pairs, as InsightFace hands them out."""
    faces = SyntheticFaces(seed=1, identities=6, images_per_identity=3, size=112)
    images = [encode(pixels) for pixels in faces.read(np.arange(18))]
    write_recordio(folder, [(int(person), image) for person, image in zip(faces.labels, images, strict=True)], 112)
    for number, name in enumerate(("lfw", "cfp_fp", "agedb_30")):
        others = SyntheticFaces(seed=2 + number, identities=40, images_per_identity=2, size=112)
        shown = [image for n in range(20) for image in (2 * n, 2 * n + 1 + 40 * (n % 2))]
        photos = [encode(pixels) for pixels in others.read(np.array(shown))]
        (folder / f"{name}.bin").write_bytes(pickle.dumps((photos, [n % 2 == 0 for n in range(20)])))


@pytest.fixture
def small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study with its FedPE row, few parties, a small network and one round."""
    folder = tmp_path / "studies"
    (folder / "fedgc").mkdir(parents=True)
    base = (home() / "fedgc" / "_base.toml").read_text("utf-8")
    for whole, part in SMALLER.items():
        assert base.count(whole) == 1
        base = base.replace(whole, part)
    (folder / "fedgc" / "_base.toml").write_text(base, "utf-8")
    head, _, fedpe, *_ = (home() / "fedgc" / "table-5.toml").read_text("utf-8").split("[[rows]]")
    (folder / "fedgc" / "table-5.toml").write_text("[[rows]]".join((head, fedpe)), "utf-8")
    for module in ("definition", "cells"):
        monkeypatch.setattr(import_module(f"fedvisage.studies.{module}"), "home", lambda: folder)
    return folder


def test_the_three_commands_fill_the_columns_whose_sets_are_there_and_name_the_others(
    tmp_path: Path, small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    download(tmp_path / "faces_webface_112x112")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    *imports, run = typed()
    for line in imports:
        subprocess.run(line, shell=True, check=True, capture_output=True, timeout=60)
    assert len(open_faceset(Path("casia-webface"))) == 18
    for name in SETS:
        assert len(open_faceset(Path(name))) == 40

    done = CliRunner().invoke(app, shlex.split(run)[1:])
    assert done.exit_code == 0, done.output
    told, *progress = done.stderr.splitlines()
    names = ("CALFW", "CPLFW", "SLLFW", "VGG2-FP")
    absent = ", ".join(f"{name} ({name.lower()})" for name in names)
    assert told == f"columns left out, as their face sets are not there: {absent}"
    assert len(progress) == 3, "a row under three seeds, after that"
    results = [json.loads(path.read_text()) for path in (small_study / "results").glob("*.json")]
    assert [sorted(result["scores"]) for result in results] == [[f"lfw {name} accuracy" for name in SETS]] * 3
    assert all(0 <= score <= 1 for result in results for score in result["scores"].values())

    before = {path: path.stat().st_mtime_ns for path in (small_study / "results").glob("*.json")}
    assert CliRunner().invoke(app, shlex.split(run)[1:]).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing was scored again"


def test_a_verification_set_without_names_is_scored_as_studies_score(tmp_path: Path) -> None:
    download(tmp_path / "faces")
    words = ["data", "import", str(tmp_path / "faces"), "--format", "bin", "--into", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    model = create_backbone("ir-tiny", image_size=112, device=torch.device("cpu")).eval()
    subject = Subject("a model", "nowhere", _model=model)
    found = evaluate("lfw", Data(tmp_path / "lfw"), subject, Options(influence=True))
    assert 0 <= found.metrics["accuracy"] <= 1
    assert found.influence == {}, "nobody says whose images they are"


def test_a_column_is_left_out_only_where_a_cell_is_without_its_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = cells("fedgc/table-5", "paper", [1])
    assert list(left_out(chosen, tmp_path)) == ["LFW", "CFP-FP", "AgeDB-30", "CALFW", "CPLFW", "SLLFW", "VGG2-FP"]
    for name in ("lfw", "cfp-fp", "agedb-30", "calfw", "cplfw", "vgg2-fp"):
        (tmp_path / name).mkdir()
    assert left_out(chosen, tmp_path) == {"SLLFW": "sllfw"}
    assert left_out(cells("fedgc/table-5", "smoke", [1]), tmp_path) == {}
    assert left_out(cells("fedgc/table-5", "laptop", [1]), tmp_path, tmp_path / "root").keys() == {
        "LFW folds 6 and 7, accuracy",
        "actors, TAR@0.1",
        "ORL, TAR@0.1",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "say either --out"),
        (("--out", "a", "--into", "b"), "say either --out"),
        (("--format", "bin", "--into", "b"), r"there are no \.bin files in"),
    ],
)
def test_an_import_needs_one_place_and_something_to_put_there(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    done = CliRunner().invoke(app, ["data", "import", str(tmp_path), *options])
    assert isinstance(done.exception, FedVisageError)
    assert re.search(says, str(done.exception))


def test_two_files_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    for name in ("cfp_fp.bin", "cfp-fp.bin"):
        (tmp_path / name).touch()
    done = CliRunner().invoke(app, ["data", "import", str(tmp_path), "--format", "bin", "--into", str(tmp_path)])
    assert "have one name" in str(done.exception)
