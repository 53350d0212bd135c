"""The documents' blocks of Python work as plain scripts, worker processes included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALLER = {
    '"demo", {"federation.rounds": 5, "compare": ["central"]}': '"smoke", {"compare": [], "federation.workers": 2}',
    "size=48": "size=32",
}
METHOD = (
    """
from typing import Annotated
from pydantic import Field
import torch
from fedvisage.core.method import Method
from fedvisage.core.parcel import BACKBONE
from fedvisage.core.registry import Registry
from fedvisage.methods import fedprox
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.fedprox import proximal

METHODS = Registry[type[Method]]("method")  # an empty one: there is a FedProx already
""",
    """
def pulled(method):
    weights = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    weights.grad = torch.zeros(2)
    method.correction(None, {BACKBONE: {"w": torch.zeros(2)}})({"w": weights})
    return weights.grad.tolist()

print(pulled(METHODS["fedprox"]()), pulled(fedprox.FedProx()))
""",
)
ARRAYS = """
import numpy as np

rng = np.random.default_rng(1)
labels = test_labels = np.arange(30).repeat(8)
embeddings = test = rng.normal(size=(30, 16))[labels] + 0.5 * rng.normal(size=(240, 16))
same = np.arange(120) % 2 == 0
a, b = embeddings[::2], np.where(same[:, None], embeddings[1::2], np.roll(embeddings, 8, axis=0)[::2])
genuine, impostor = rng.normal(0.4, 0.15, 3000), rng.normal(0, 0.1, 20_000)
probes, probe_ids, gallery, gallery_ids = test[::2], labels[::2], test[1::8], labels[1::8]
gallery_labels = gallery_ids
"""
CENTRED = """
from pathlib import Path

import numpy as np
import torch

import fedvisage as fv
from fedvisage.models import Centre, create_backbone, save_model

network = create_backbone("ir-tiny", image_size=32)
network.centres = {"actors": Centre(torch.zeros(network.metadata.embedding_size), 40)}
Path("runs/actors").mkdir(parents=True)
save_model("runs/actors/model.safetensors", network)
images = np.zeros((2, 32, 32, 3), np.uint8)
"""
AROUND: dict[str, tuple[str, str]] = {
    "CONTRIBUTING": METHOD,
    "add-a-method": METHOD,
    "evaluation": (ARRAYS, ""),
    "pretrained": (CENTRED, ""),
}
"""What comes before a page's block where it takes names for granted, and what is done with it then."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def output(script: str, folder: Path) -> list[str]:
    """The lines that a script prints."""
    (folder / "script.py").write_text(script, "utf-8")
    command, one_thread = [sys.executable, "script.py"], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readme_script_runs_without_a_main_guard(tmp_path: Path) -> None:
    [script] = blocks(README)
    for words, fewer in SMALLER.items():
        assert words in script
        script = script.replace(words, fewer)
    lines = output(script, tmp_path)
    first = [line.split()[0] for line in lines if not line.startswith("Note:")]
    assert first == ["model", "start", "fedavg", "Cannot", "same"], "printed once, not once a worker"
    assert (tmp_path / "runs" / "short" / "report.html").exists()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != README and blocks(page)], ids=lambda page: page.stem
)
def test_the_blocks_of_every_other_page_run(page: Path, tmp_path: Path) -> None:
    before, after = AROUND.get(page.stem, ("", ""))
    lines = output("\n".join((before, *blocks(page), after)), tmp_path)
    if after:
        shown, shipped = lines[-1].split("] ")
        assert f"{shown}]" == shipped != "[0.0, 0.0]", "the method as shown is the one in the package"
