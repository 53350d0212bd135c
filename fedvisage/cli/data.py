"""`fedvisage data`: make faces and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedvisage.cli.output import Json, show_json
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import FaceSet, open_faceset, write_faceset
from fedvisage.faces.sheet import contact_sheet
from fedvisage.faces.synthetic import DEFAULT_DOMAIN, SyntheticFaces

app = typer.Typer(no_args_is_help=True)

Size = Annotated[int, typer.Option(help="Width and height in pixels.")]
Seed = Annotated[int, typer.Option(help="Seed of the generator.")]
DomainOption = Annotated[str, typer.Option(help="Distribution of skin, light and camera.")]


@app.command("synth")
def synth_command(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    identities: Annotated[int, typer.Option(min=1)] = 100,
    images: Annotated[int, typer.Option(min=1, help="Images per identity.")] = 20,
    size: Size = 112,
    domain: DomainOption = DEFAULT_DOMAIN,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write a folder of synthetic faces."""
    if out.exists() and any(out.iterdir()):
        raise FedVisageError(f"{out} is not empty: choose another folder")
    source = SyntheticFaces(seed, identities, images, size, domain)
    width = len(str(identities - 1))
    names = tuple(f"person-{number:0{width}d}" for number in range(identities))
    write_faceset(out, FaceSet(source, np.asarray(source.labels), names))
    if as_json:
        show_json({"folder": str(out), "identities": identities, "images": len(source), "size": size})
    else:
        print(f"{len(source):,} images of {identities:,} people in {out}")


@app.command("preview")
def preview_command(
    data: Annotated[Path | None, typer.Argument(help="A folder of faces; synthetic ones if left out.")] = None,
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("preview.png"),
    identities: Annotated[int, typer.Option(min=1, help="Rows.")] = 8,
    images: Annotated[int, typer.Option(min=1, help="Columns.")] = 10,
    size: Size = 112,
    domain: DomainOption = DEFAULT_DOMAIN,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write a contact sheet, a row per person."""
    if data is None:
        source = SyntheticFaces(seed, identities, images, size, domain)
        pixels = source.read(np.arange(len(source))).reshape(identities, images, size, size, 3)
        names = [f"person {number}" for number in range(identities)]
    else:
        faces = open_faceset(data)
        people, counts = np.unique(faces.labels, return_counts=True)
        people = people[counts >= images][:identities]
        if not len(people):
            raise FedVisageError(f"nobody in {data} has {images} images; ask for fewer with --images")
        chosen = np.stack([np.flatnonzero(faces.labels == person)[:images] for person in people])
        pixels = faces.images.read(chosen.reshape(-1))
        pixels = pixels.reshape(*chosen.shape, *pixels.shape[1:])
        names = [faces.names[person] for person in people]
    try:
        contact_sheet(pixels, names).save(out)
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot write {out}: {error}") from None
    if as_json:
        show_json({"picture": str(out), "people": names})
    else:
        print(f"{out}: {len(names)} people, {pixels.shape[1]} images each")
