"""`fedvisage cluster`: group embeddings into people, score the groups where identities are known, and look at them."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fedvisage import clustering
from fedvisage.cli.output import Json, show_json, show_table
from fedvisage.clustering.finch import Merge
from fedvisage.clustering.neighbours import Metric
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import FaceSet, open_faceset
from fedvisage.faces.sheet import contact_sheet

Labels = NDArray[np.int64]
Method = Literal["c-finch", "finch", "k-means", "dbscan"]
SHEETS, COLUMNS, ROWS = 20, 10, 10
"""Clusters shown, images in a row, and rows of the picture of one cluster."""


def cluster_command(
    embeddings: Annotated[Path, typer.Argument(help="Embeddings: .safetensors of `fedvisage embed`, or .npy (N, d).")],
    method: Annotated[Method, typer.Option(help="How to cluster.")] = "c-finch",
    threshold: Annotated[float, typer.Option(help="Distance within which C-FINCH links; DBSCAN's radius.")] = 0.9,
    metric: Annotated[
        Metric, typer.Option(help="Distance of the unit embeddings, for C-FINCH and FINCH.")
    ] = "euclidean",
    merge: Annotated[Merge, typer.Option(help="How C-FINCH merges: as published, or by a safer rule.")] = (
        "first-neighbours"
    ),
    clusters: Annotated[int | None, typer.Option(help="Number of clusters, for k-means.")] = None,
    partition: Annotated[int, typer.Option(help="Which of FINCH's partitions: 1 is the finest, -1 the last.")] = 1,
    smallest: Annotated[int, typer.Option(min=1, help="Clusters of fewer images become -1, no cluster.")] = 1,
    approximate: Annotated[bool, typer.Option(help="Approximate neighbours (faiss), for millions of faces.")] = False,
    faces: Annotated[Path | None, typer.Option(help="The folder of faces that was embedded, for --sheets.")] = None,
    sheets: Annotated[Path | None, typer.Option(help="Folder for contact sheets of the largest clusters.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the labels: .npy, .safetensors or .csv.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of k-means, and of the sample behind the recall.")] = 1,
    as_json: Json = False,
) -> None:
    """Group embeddings into clusters, one per person where all goes well. Identities, if there are, only score them."""
    x, truth = read_embeddings(embeddings)
    streams = Streams(seed)
    search: Literal["exact", "approximate"] = "approximate" if approximate else "exact"
    pictured = check_outputs(out, faces, sheets, len(x))
    match method:
        case "c-finch":
            labels = clustering.c_finch(x, threshold, metric=metric, search=search, merge=merge)
        case "finch":
            levels = clustering.finch(x, metric=metric, normalise=True, search=search)
            labels = levels[chosen(partition, len(levels))]
        case "k-means":
            if clusters is None:
                raise FedVisageError("k-means has to be told how many clusters there are: --clusters 100")
            labels = clustering.k_means(x, clusters, streams.numpy("k-means"))
        case "dbscan":
            labels = clustering.dbscan(x, threshold)
    labels = clustering.drop_small(labels, smallest)
    result = describe(labels, truth) | {"method": method, "seed": seed}
    if approximate and method in ("c-finch", "finch"):
        position = clustering.first_neighbours(x, search=search).position
        result["recall"] = clustering.neighbour_recall(x, position, rng=streams.numpy("recall"))
    if pictured is not None:
        result["pictures"] = [str(path) for path in draw(pictured.faces, labels, pictured.folder)]
    if out is not None:
        write_labels(out, labels)
        result["file"] = str(out)
    elif as_json:
        result["labels"] = labels.tolist()
    show(result, as_json)


def read_embeddings(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Embeddings (N, d) of a file, and the identities (N,) it gives, if any."""
    try:
        found = {"embeddings": np.lib.format.open_memmap(path, "r")} if path.suffix == ".npy" else load_file(path)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise FedVisageError(f"cannot read embeddings from {path}: {' '.join(str(error).split())}") from None
    x, labels = found.get("embeddings"), found.get("labels")
    if x is None:
        raise FedVisageError(f"{path} holds no tensor 'embeddings' but {', '.join(sorted(found)) or 'nothing'}")
    if x.ndim != 2 or (labels is not None and labels.shape != x.shape[:1]):
        shape = "" if labels is None else f" with labels {labels.shape}"
        raise FedVisageError(f"{path} holds embeddings of shape {x.shape}{shape}; it should be (N, d) with labels (N,)")
    return x, labels


class Pictured(NamedTuple):
    """The faces to show and the folder to show them in."""

    faces: FaceSet
    folder: Path


def check_outputs(out: Path | None, faces: Path | None, sheets: Path | None, count: int) -> Pictured | None:
    """Refuse what cannot be written before the work is done."""
    if out is not None and out.suffix not in (".npy", ".safetensors", ".csv"):
        raise FedVisageError(f"labels are written as .npy, .safetensors or .csv, not {out.name}")
    if (faces is None) != (sheets is None):
        raise FedVisageError("contact sheets need both --faces (the images) and --sheets (the folder to write)")
    if faces is None or sheets is None:
        return None
    whole = open_faceset(faces)
    if len(whole) != count:
        raise FedVisageError(f"{faces} holds {len(whole):,} images, the file {count:,} embeddings: not the same faces")
    return Pictured(whole, sheets)


def chosen(partition: int, count: int) -> int:
    """Position of a partition that is counted from 1, or from the end by negative numbers."""
    if partition == 0 or abs(partition) > count:
        raise FedVisageError(f"FINCH found {count} partitions here: --partition 1 to {count}, or -1 for the last")
    return partition - 1 if partition > 0 else count + partition


def describe(labels: Labels, truth: NDArray[Any] | None) -> dict[str, Any]:
    """Counts of a clustering and, where identities are known, its scores."""
    sizes = np.sort(clustering.sizes(labels))[::-1]
    result: dict[str, Any] = {
        "embeddings": len(labels),
        "clusters": len(sizes),
        "singletons": int(np.count_nonzero(sizes == 1)),
        "unclustered": int(np.count_nonzero(labels < 0)),
        "sizes": sizes.tolist(),
    }
    if truth is not None:
        result["identities"] = len(np.unique(truth))
        for name, scores in (("pairwise", clustering.pairwise), ("bcubed", clustering.bcubed)):
            result[name] = scores(truth, labels)._asdict()
        result["nmi"] = clustering.nmi(truth, labels)
    return result


def write_labels(path: Path, labels: Labels) -> None:
    """Labels (N,) as the suffix says."""
    match path.suffix:
        case ".csv":
            lines = ["image,cluster", *(f"{image},{cluster}" for image, cluster in enumerate(labels.tolist()))]
            write_atomically(path, ["\n".join(lines).encode() + b"\n"])
        case ".npy":
            buffer = BytesIO()
            np.save(buffer, labels, allow_pickle=False)
            write_atomically(path, [buffer.getvalue()])
        case _:
            write_atomically(path, [save({"labels": labels})])


def draw(faces: FaceSet, labels: Labels, folder: Path) -> list[Path]:
    """`clusters.png`, a row for each of the largest clusters, and a picture of each of them with more images."""
    sizes = clustering.sizes(labels)
    largest = np.argsort(-sizes, kind="stable")[:SHEETS]
    if not len(largest):
        return []
    members = {int(cluster): np.flatnonzero(labels == cluster) for cluster in largest}
    names = [f"{cluster}: {len(images):,}" for cluster, images in members.items()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "clusters.png"]
        overview = np.concatenate([grid(faces, images, 1) for images in members.values()])
        contact_sheet(overview, names).save(paths[0])
        width = len(str(int(largest.max())))
        for cluster, images in members.items():
            paths.append(folder / f"cluster-{cluster:0{width}d}.png")
            contact_sheet(grid(faces, images, ROWS)).save(paths[-1])
    except OSError as error:
        raise FedVisageError(f"cannot write contact sheets to {folder}: {error.strerror or error}") from None
    return paths


def grid(faces: FaceSet, images: Labels, rows: int) -> NDArray[np.uint8]:
    """The first images of a cluster in up to `rows` rows (rows, columns, H, W, 3), white where there are no more."""
    shown = images[: rows * COLUMNS]
    pixels = faces.images.read(shown)
    rows = math.ceil(len(shown) / COLUMNS)
    result = np.full((rows * COLUMNS, *pixels.shape[1:]), 255, np.uint8)
    result[: len(shown)] = pixels
    return result.reshape(rows, COLUMNS, *pixels.shape[1:])


def show(result: dict[str, Any], as_json: bool) -> None:
    """The result for machines or for people."""
    if as_json:
        show_json(result)
        return
    sizes = result["sizes"]
    largest = ", ".join(f"{size:,}" for size in sizes[:10]) + (", ..." if len(sizes) > 10 else "")
    print(
        f"{result['embeddings']:,} embeddings in {result['clusters']:,} clusters, {result['singletons']:,} of one image"
    )
    if result["unclustered"]:
        print(f"in no cluster: {result['unclustered']:,}")
    print(f"largest: {largest or '-'}")
    if "recall" in result:
        print(f"first neighbours found: {100 * result['recall']:.1f}%")
    if "nmi" in result:
        rows = [
            [name, *(f"{100 * result[key][part]:.2f}" for part in ("precision", "recall", "f"))]
            for name, key in (("pairwise", "pairwise"), ("BCubed", "bcubed"))
        ]
        print(f"against {result['identities']:,} identities, in percent: NMI {100 * result['nmi']:.2f}")
        show_table(["score", "precision", "recall", "F"], rows)
    if "pictures" in result:
        print(f"contact sheets: {Path(result['pictures'][0]).parent}" if result["pictures"] else "contact sheets: none")
    if "file" in result:
        print(f"labels: {result['file']}")
