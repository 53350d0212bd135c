"""`fedvisage data`: make faces, bring them in, look at them and share them out."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import typer
from PIL import Image

from fedvisage.cli.align import align_command
from fedvisage.cli.output import Json, progress, show_json, show_table
from fedvisage.cli.run import Changes, RecipeArgument
from fedvisage.config import load_recipe, parse_change
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import FaceSet, open_faceset, write_faceset
from fedvisage.faces.importing import FORMATS, PathMapping, Report, Selection, read_source, write_source
from fedvisage.faces.inspection import bars, describe_faces, describe_partition, draw_parties, sample
from fedvisage.faces.opening import open_source
from fedvisage.faces.partition import make_partition
from fedvisage.faces.pool import read_names
from fedvisage.faces.sheet import contact_sheet
from fedvisage.faces.synthetic import DEFAULT_DOMAIN, SyntheticFaces

app = typer.Typer(no_args_is_help=True)
app.command("align")(align_command)

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
    _refuse_used(out)
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
        pixels, names = sample(open_faceset(data), identities, images)
    _save(contact_sheet(pixels, names), out)
    if as_json:
        show_json({"picture": str(out), "people": names})
    else:
        print(f"{out}: {len(names)} people, {pixels.shape[1]} images each")


FormatName = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; by default recognised.")]
DomainLists = Annotated[
    list[str] | None, typer.Option("--domain", help="name=FILE: the people named in FILE are this domain; repeatable.")
]


@app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="A folder, zip archive, .rec, .bin, .csv or .parquet file.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    into: Annotated[Path | None, typer.Option(help="Where it goes instead, under its own name.")] = None,
    kind: FormatName = None,
    size: Annotated[int | None, typer.Option(min=16, max=1024, help="Crop to a square and scale to this.")] = None,
    store: Annotated[Literal["records", "array"], typer.Option(help="Encoded images, or pixels.")] = "records",
    pairs: Annotated[Path | None, typer.Option(help="List of pairs, where it is not in the folder.")] = None,
    strip: Annotated[int, typer.Option(min=0, help="Take so many leading folders off the paths in the list.")] = 0,
    endings: Annotated[bool, typer.Option(help="Images may end otherwise than the list says: .png for .jpg.")] = False,
    allow_missing: Annotated[
        int, typer.Option(min=0, help="Go on where so many rows of a list are without their images.")
    ] = 0,
    domains: DomainLists = None,
    min_images: Annotated[int, typer.Option(min=1, help="Leave out people with fewer.")] = 1,
    max_images: Annotated[int | None, typer.Option(min=1, help="Take no more of each person.")] = None,
    exclude: Annotated[Path | None, typer.Option(help="File of people to leave out, a name per line.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="0 for one per core.")] = 0,
    as_json: Json = False,
) -> None:
    """Bring a data set in: images, people and the lists of its protocol, with a report of what was left out.

    With --format bin and --into, all verification sets of a folder, each to a folder of its own: cfp_fp.bin to cfp-fp.
    A file that cannot be read is named at the end, and the exit code is 2; the others are imported.
    """
    excluded = frozenset(read_names(str(exclude))) if exclude else frozenset()
    chosen = Selection(size, store, min_images, max_images, excluded, threads, allow_missing)
    reports, failed, targets = {}, [], _targets(source, kind, out, into)
    for folder, one in targets.items():
        try:
            name, found = read_source(one, kind, pairs, dict(map(_domain, domains or [])), PathMapping(strip, endings))
            with progress("images", len(found), as_json) as step:
                report = write_source(found, folder, Report(str(one), name), chosen, step)
        except FedVisageError as error:
            if len(targets) == 1:
                raise
            failed.append(str(error))
            continue
        reports[folder.name] = report.table()
        if not as_json:
            print("\n".join(report.lines()))
            print(f"{report.images:,} images of {report.identities:,} people in {folder}")
    if as_json:
        show_json(reports if into else report.table())
    if failed:
        which = f"{len(failed)} of {len(targets)} sets were not imported: {'; '.join(failed)}"
        raise FedVisageError(f"{which}. Import them one by one with --out once the files are whole")


def _targets(source: Path, kind: str | None, out: Path | None, into: Path | None) -> dict[Path, Path]:
    """By the folder to write, which must be unused: what goes there."""
    if (out is None) == (into is None):
        raise FedVisageError("say either --out, the folder to write, or --into, where it goes under its own name")
    sets = [source] if out or kind != "bin" or source.is_file() else sorted(source.glob("*.bin"))
    if not sets:
        raise FedVisageError(f"there are no .bin files in {source}")
    targets = {out or (into or Path()) / one.with_suffix("").name.replace("_", "-"): one for one in sets}
    if len(targets) < len(sets):
        raise FedVisageError(f"two files in {source} have one name: import them one by one")
    for folder in targets:
        _refuse_used(folder)
    return targets


@app.command("inspect")
def inspect_command(
    data: Annotated[Path, typer.Argument(help="A folder of faces.")],
    sheet: Annotated[Path | None, typer.Option(help="Also write a sheet of samples to this picture.")] = None,
    as_json: Json = False,
) -> None:
    """Describe a folder of faces: counts, images per person, domains, lists."""
    faces = open_faceset(data)
    described = describe_faces(faces)
    if sheet is not None:
        most = described["images_per_identity"]["most"]
        _save(contact_sheet(*sample(faces, 8, max(1, min(8, most)))), sheet)
    if as_json:
        show_json(described)
        return
    each, (width, height) = described["images_per_identity"], described["size"]
    counted = f"{described['images']:,} images of {described['identities']:,} people"
    print(f"{counted}, {width}x{height}, {described['stored']}")
    print(f"images per person: {each['least']} to {each['most']}, median {each['median']:g}\n")
    counts = each["histogram"]
    rows = zip(counts, map("{:,}".format, counts.values()), bars(list(counts.values())), strict=True)
    show_table(["images", "people", ""], rows)
    for title, table in (("domain", described["domains"]), ("list", described["lists"])):
        if table:
            print()
            columns = list(next(iter(table.values())))
            show_table([title, *columns], [[name, *map(_word, row.values())] for name, row in table.items()])


@app.command("partition")
def partition_command(
    recipe: RecipeArgument,
    out: Annotated[Path | None, typer.Option(help="Write the partition to this JSON file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the parties as bars in this picture.")] = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Share people out as a run of the recipe would, and show who gets what."""
    chosen = load_recipe(recipe, dict(map(parse_change, changes or [])))
    with TemporaryDirectory() as cache:
        faces = open_source(chosen.faces, Path(cache), only_labels=True)
        partition = make_partition(faces, chosen.partition, Streams(chosen.seed).child("partition"))
        described = describe_partition(partition, faces)
        if out is not None:
            partition.save(out, faces.names, faces.labels)
    parties = described["parties"]
    if picture is not None:
        _save(draw_parties(parties, f"{chosen.name}: images of each party"), picture)
    if as_json:
        show_json(described)
        return
    for part, numbers in described.items():
        if part != "parties":
            print(f"{part}: " + ", ".join(f"{count:,} {word}" for word, count in numbers.items()))
    totals = [share["train"] + share["held_out"] for share in parties.values()]
    rows = [
        [name, share["role"], *(f"{share[key]:,}" for key in ("identities", "train", "held_out")), bar]
        for (name, share), bar in zip(parties.items(), bars(totals), strict=True)
    ]
    show_table(["party", "role", "people", "train", "held out", "images"], rows)


def _word(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _domain(text: str) -> tuple[str, str]:
    name, found, file = text.partition("=")
    if not found or not name or not file:
        raise FedVisageError(f"--domain {text}: write it as name=FILE")
    return name, file


def _refuse_used(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedVisageError(f"{out} is not empty: choose another folder")


def _save(picture: Image.Image, path: Path) -> None:
    try:
        picture.save(path)
    except (OSError, ValueError) as error:
        raise FedVisageError(f"cannot write {path}: {error}") from None
