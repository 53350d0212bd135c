"""`fedvisage evaluate`: score a model on a folder of faces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedvisage.cli.output import Json, score_rows, show_json, show_table
from fedvisage.config import Evaluation
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import Faces, open_faceset
from fedvisage.models import load_model
from fedvisage.scoring import TestSet


def evaluate_command(
    models: Annotated[list[Path], typer.Argument(help="Model files (.safetensors) or run folders.")],
    data: Annotated[Path, typer.Option(help="A folder of faces, as `fedvisage data` writes it.")],
    pairs: Annotated[int, typer.Option(help="Pairs drawn for the 10-fold accuracy.")] = 3000,
    far: Annotated[list[float] | None, typer.Option(help="False-accept rate; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the drawn pairs.")] = 1,
    as_json: Json = False,
) -> None:
    """Score models on a folder of faces: 10-fold accuracy over drawn pairs, TAR at FAR over all pairs."""
    faces = open_faceset(data)
    settings = Evaluation(pairs=pairs, fars=tuple(far or Evaluation().fars))
    test = TestSet(Faces(faces, np.arange(len(faces))), settings, Streams(seed))
    scores = {}
    for path in models:
        file = path / "model.safetensors" if path.is_dir() else path
        if not file.is_file():
            raise FedVisageError(f"no model at {file}")
        scores[str(path)] = test.score(load_model(file))
    if as_json:
        show_json({"models": scores, "test": test.describe(), "seed": seed})
        return
    counts = test.describe()
    title = f"{counts['identities']} identities, {counts['images']:,} images, {counts['pairs']:,} pairs (seed {seed})"
    show_table(*score_rows(scores), title=title)
