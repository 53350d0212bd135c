"""`fedvisage export`: a model for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.output import Json, show_json
from fedvisage.cli.recognise import Centre, Model
from fedvisage.export import export_model
from fedvisage.models import NO_CENTRE
from fedvisage.recognise import DEFAULT_MODEL


def export_command(
    out: Annotated[Path, typer.Argument(help="File to write; .safetensors or .onnx.")],
    model: Model = DEFAULT_MODEL,
    centre: Centre = NO_CENTRE,
    as_json: Json = False,
) -> None:
    """Write a model as safetensors or ONNX, with the alignment template and normalisation in its metadata."""
    result = export_model(model, out, centre)
    if as_json:
        show_json(result)
        return
    checked = (
        f", agrees with the original (least cosine {result['least_cosine']:.6f})" if "least_cosine" in result else ""
    )
    print(f"{out}: {result['format']}{checked}\ncard: {result['card']}")
