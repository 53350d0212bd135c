"""What must stay as it is while the inside is rebuilt: bits of models, files of a run, keys of cells, `--json` outputs.

`freeze.json` holds the table of one commit, and `test_freeze.py` compares the present code with it. Whatever the table
has must still be there; additions are fine. Bits of floating-point arithmetic differ between processors and versions
of PyTorch, so the committed bits are compared only on the machine that they name. Elsewhere compare two commits:

    python tests/freeze.py write /tmp/before.json     # in a work tree of the one
    python tests/freeze.py compare /tmp/before.json   # in a work tree of the other

After a change that is meant, write `tests/freeze.json` again and say in the commit what changed and why.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_runs import COMBINED, tiny_recipe

import fedvisage as fv
from fedvisage.cli.main import app
from fedvisage.config import read_toml
from fedvisage.core.codec import State, flatten, load_state
from fedvisage.core.method import METHODS
from fedvisage.federation import StateStore
from fedvisage.planning import make_plan
from fedvisage.runfolder import environment
from fedvisage.studies import cells, chosen_cells, list_studies, load_study, results_home, tried_cells

COMMITTED = Path(__file__).with_name("freeze.json")
SEEDS = (1, 2, 3)
MANY = 4
ONE_PERSON = {
    "faces.identities": 8,
    "partition.parties": 6,
    "partition.identities_per_party": 1,
    "training.steps": 1,
    "training.batchnorm": "fixed",
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "shared classifier": ("fedavg", {"method.classifier": "shared"}),
    "own BatchNorm": ("fedavg", {"federation.batchnorm": "local", "federation.keep_local": True}),
    "recalibrated BatchNorm": ("fedavg", {"federation.batchnorm": "recalibrate"}),
    "kept momentum, cosine schedule": (
        "fedavg",
        {"training.optimiser_state": "keep", "training.schedule": "cosine", "federation.participation": 0.6},
    ),
    "two workers": ("fedprox", {"federation.workers": 2}),
    "median": ("fedavg", {"aggregation.name": "median"}),
    "trimmed mean": ("fedavg", {"aggregation": {"name": "trimmed-mean", "trim": 0.34}}),
    "norm clipping": ("fedavg", {"aggregation": {"name": "norm-clipping", "clip": 0.1}}),
    "cosine regulariser, some absent": (
        "fedgc",
        {"regulariser.name": "cosine", "federation.participation": 0.6, "federation.rounds": 3},
    ),
    "shared people": (
        "fedgc",
        {"partition.shared": 1, "regulariser": {"name": "gradient-correction", "shared_identities": True, "key": "k"}},
    ),
    "one person each": ("fedface", ONE_PERSON),
    "one person each, together": ("fedface", {**ONE_PERSON, "federation.together": 4}),
    "pfm, derived momentum": ("pfm", {"method.momentum": "derived", "federation.participation": 0.6}),
    "fedfr, second stage": ("fedfr", {"method.second_stage": "distil", "method.branch": "cosface"}),
    "fv, overlapping": ("fedgc + fv", {"weighting.overlap": True, "federation.rounds": 3}),
}
"""A method or a combination, and what else its recipe says."""


def machine() -> dict[str, str]:
    """What bits depend on besides the code."""
    around = environment()
    return {
        "processor": around["processor"],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": around["packages"]["torch"],
        "numpy": around["packages"]["numpy"],
    }


def cases() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Every shipped method, every combination, and the variants."""
    shipped = {name: METHODS[name] for name in METHODS if METHODS[name].__module__.startswith("fedvisage.")}
    return {name: (name, {}) for name in (*shipped, *COMBINED)} | dict(VARIANTS)


def short(text: str) -> str:
    """A hash of a text."""
    return sha256(text.encode()).hexdigest()[:16]


def digest(state: State) -> str:
    """A hash of all tensors and numbers of a state."""
    tensors, rest = flatten(state)
    total = sha256(json.dumps(rest, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def run_case(name: str, folder: Path) -> Path:
    """Run one of the cases; its run folder."""
    method, changes = cases()[name]
    place = folder / name.replace(" ", "-")
    fv.run(tiny_recipe(method, folder / f"{place.name}.toml", changes), out=place)
    return place


def bits(run: Path) -> dict[str, str]:
    """What a run computed: the global model, and what the parties keep."""
    generations = load_state(run / "checkpoints" / "last.safetensors")["book"]["generations"]
    store = StateStore(run / "parties")
    parties = {party: store.load(party, generation) for party, generation in sorted(generations.items())}
    store.close()
    return {"model": digest(dict(load_file(run / "model.safetensors"))), "parties": digest(parties)}


def shape(value: Any) -> Any:
    """The keys and kinds of a JSON value; elements of a list, and entries of a long table of tables, as one."""
    if isinstance(value, Mapping):
        inner = {str(key): shape(entry) for key, entry in value.items()}
        if len(inner) > MANY and all(isinstance(entry, dict) for entry in inner.values()):
            return {"*": together(inner.values())}
        return inner
    if isinstance(value, list | tuple):
        return {"[]": together(map(shape, value))}
    if isinstance(value, bool) or value is None:
        return str((value is None and "nothing") or "truth")
    return "number" if isinstance(value, int | float) else "text"


def together(shapes: Iterable[Any]) -> Any:
    """One shape that has everything any of them has."""
    whole: Any = "nothing"
    for one in shapes:
        if isinstance(whole, dict) and isinstance(one, dict):
            whole = {key: together(s[key] for s in (whole, one) if key in s) for key in {**whole, **one}}
        elif whole == "nothing" or isinstance(one, dict):
            whole = one
    return whole


def folder_format(run: Path) -> dict[str, Any]:
    """Every file of a run by its path, with the keys of what is in it; what the server keeps for itself is left out."""
    return {str(path.relative_to(run)): _file(path) for path in sorted(run.rglob("*")) if path.is_file()}


def _file(path: Path) -> Any:
    if path.suffix == ".json":
        return shape(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return together(shape(json.loads(line)) for line in path.read_text().splitlines())
    if path.suffix == ".toml":
        return shape(read_toml(path))
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as database:
            found = database.execute("SELECT sql FROM sqlite_master").fetchall()
        database.close()
        return [row[0] for row in found]
    if path.name == "last.safetensors":
        return {"book": shape(load_state(path)["book"])}
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            tensors = sorted(f"{name} {part.get_dtype()} {part.get_shape()}" for name, part in parts.items())
            return {"tensors": short(json.dumps(tensors)), "metadata": dict.fromkeys(file.metadata() or {}, "text")}
    return path.suffix


def commands(run: Path) -> dict[str, Any]:
    """The keys of what commands print with `--json`."""
    recipe, model = str(run.with_suffix(".toml")), str(run / "model.safetensors")
    asked = {
        "methods": ["methods"],
        "models": ["models"],
        "plan": ["plan", "smoke"],
        "plan fedgc": ["plan", "smoke", "--set", "method.name=fedgc"],
        "study plan": ["study", "plan", "fedgc/table-5"],
        "run": ["run", recipe, "--resume", "--out", str(run)],
        "report": ["report", str(run)],
        "export": ["export", str(run.parent / "exported.safetensors"), "--model", model],
    }
    return {name: shape(_printed([*words, "--json"])) for name, words in asked.items()}


def _printed(words: list[str]) -> Any:
    out = StringIO()
    with redirect_stdout(out):
        app(words, standalone_mode=False)
    return json.loads(out.getvalue())


def plans(folder: Path) -> dict[str, str]:
    """A hash of what every case is planned to cost; no processor changes that."""
    found = {}
    for name, (method, changes) in cases().items():
        plan = make_plan(tiny_recipe(method, folder / "planned.toml", changes))
        found[name] = short(json.dumps(plan, sort_keys=True))
    return found


def cell_keys() -> dict[str, str]:
    """How many finished cells every study has at each scale, and a hash of their keys."""
    finished = {path.stem for path in results_home().glob("*.json")}
    found = {}
    for name in list_studies():
        for scale in load_study(name).scales:
            made: list[Callable[[], Iterable[Any]]] = [
                lambda name=name, scale=scale: cells(name, scale, SEEDS),
                lambda name=name, scale=scale: tried_cells(name, scale, SEEDS),
                lambda name=name, scale=scale: chosen_cells(name, scale, SEEDS, results_home()),
            ]
            keys = sorted({cell.key for make in made for cell in make()} & finished)
            if keys:
                found[f"{name} {scale}"] = f"{len(keys)} {short(' '.join(keys))}"
    return found


def missing(before: Any, now: Any, path: str = "") -> list[str]:
    """Everything in the table of before that is not in the one of now, or is something else there."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [] if before == now or before == "nothing" else [f"{path}: was {before}, is {now}"]
    gone = [f"{path}: no '{key}' any more" for key in before if key not in now]
    return gone + [line for key in before if key in now for line in missing(before[key], now[key], f"{path}/{key}")]


def write() -> dict[str, Any]:
    """The table of the present code."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        runs = {name: run_case(name, folder) for name in cases()}
        formats = {name: folder_format(runs[name]) for name in ("fedavg", "pfm-fedfr + fv + gradient-correction")}
        return {
            "machine": machine(),
            "bits": {name: bits(run) for name, run in runs.items()},
            "plans": plans(folder),
            "folders": formats,
            "commands": commands(runs["fedavg"]),
            "cells": cell_keys(),
        }


def main(verb: str, path: str) -> int:
    """`write` the table to a file, or `compare` the present code with one."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if verb == "write":
        Path(path).write_text(json.dumps(write(), indent=1, sort_keys=True) + "\n")
        return 0
    before = json.loads(Path(path).read_text())
    if before["machine"] != machine():
        print(f"{path} was written on another machine, so its bits say nothing here: {before['machine']}")
        before.pop("bits")
    lines = missing(before, write())
    print("\n".join(lines) or "nothing is missing or different")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
