"""The beginning of a run's folder: the recipe, where it runs, and whether what is there may be gone on with."""

from __future__ import annotations

import json
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedvisage.build import resolve
from fedvisage.config import Recipe, load_recipe, to_toml
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError


def environment() -> dict[str, Any]:
    """What results may depend on besides the recipe."""
    packages = ("fedvisage", "torch", "numpy", "pillow", "pydantic", "safetensors")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "packages": {name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def prepare_folder(folder: Path, recipe: Recipe, resume: bool, fresh: bool) -> Path:
    """The run's folder, new or as it was left; it begins with the recipe and what results may depend on besides."""
    saved = folder / "recipe.toml"
    if fresh and saved.exists():
        shutil.rmtree(folder)
    if folder.exists() and not folder.is_dir():
        raise FedVisageError(f"{folder} is a file; a run needs a folder")
    if folder.exists() and any(folder.iterdir()):
        if not resume:
            raise FedVisageError(
                f"{folder} is not empty: resume it (--resume), start over (--fresh) or choose another --out"
            )
        if not saved.exists():
            raise FedVisageError(f"{folder} holds no run to resume: recipe.toml is missing")
        _check_same_recipe(saved, recipe)
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedVisageError(f"cannot create {folder}: {error.strerror}") from error
    write_atomically(folder / "environment.json", [json.dumps(environment(), indent=1).encode()])
    write_atomically(saved, [to_toml(recipe).encode()])
    return folder


def _check_same_recipe(saved: Path, recipe: Recipe) -> None:
    """A run goes on with the recipe it began with; only how it uses the machine may change.

    Settings that are newer than the run had their defaults then.
    """
    free = {"workers": 0, "timeout": None}

    def comparable(one: Recipe) -> list[str]:
        return to_toml(one.model_copy(update={"federation": one.federation.model_copy(update=free)})).splitlines()

    before, now = comparable(resolve(load_recipe(saved))), comparable(recipe)
    if before != now:
        different = sorted(set(before) ^ set(now))
        raise FedVisageError(f"{saved} was made with another recipe ({'; '.join(different[:4])}): use another --out")
