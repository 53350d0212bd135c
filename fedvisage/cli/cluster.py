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
from fedvisage.clustering.choice import LARGEST, STEPS
from fedvisage.clustering.finch import Merge
from fedvisage.clustering.neighbours import Metric, Search
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import FaceSet, open_faceset
from fedvisage.faces.sheet import contact_sheet

Labels = NDArray[np.int64]
Method = Literal["c-finch", "finch", "k-means", "dbscan"]
Centroids = Literal["unit", "mean"]
COLUMNS, ROWS = 10, 10
"""Images in a row, and rows of the picture of one cluster."""
USES: dict[Method, tuple[str, ...]] = {
    "c-finch": ("--threshold", "--metric", "--merge", "--centroids", "--approximate", "--choose-distance"),
    "finch": ("--metric", "--partition", "--approximate"),
    "k-means": ("--clusters",),
    "dbscan": ("--threshold", "--choose-distance"),
}
"""The options that say how to cluster, and which method goes by which."""


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
    centroids: Annotated[
        Centroids,
        typer.Option(help="C-FINCH's centroids: means of members, brought to unit length or left as they are."),
    ] = "unit",
    clusters: Annotated[int | None, typer.Option(help="Number of clusters, for k-means.")] = None,
    partition: Annotated[
        int, typer.Option(min=-1, help="Which of FINCH's partitions: 0 is the finest, -1 the last (one cluster).")
    ] = -1,
    smallest: Annotated[int, typer.Option(min=1, help="Clusters of fewer images become -1, no cluster.")] = 1,
    approximate: Annotated[bool, typer.Option(help="Approximate neighbours (faiss), for millions of faces.")] = False,
    choose_distance: Annotated[
        bool, typer.Option("--choose-distance", help="Say which threshold keeps these people, who are known, apart.")
    ] = False,
    faces: Annotated[Path | None, typer.Option(help="The folder of faces that was embedded, for --sheets.")] = None,
    sheets: Annotated[Path | None, typer.Option(help="Folder for contact sheets of the largest clusters.")] = None,
    largest: Annotated[int, typer.Option(min=1, help="How many clusters get a contact sheet.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the labels: .npy, .safetensors or .csv.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of k-means, and of the sample behind the recall.")] = 1,
    as_json: Json = False,
) -> None:
    """Group embeddings into clusters, one per person where all goes well. Identities, if there are, only score them."""
    x, truth = read_embeddings(embeddings)
    said = {"--threshold": threshold != 0.9, "--metric": metric != "euclidean", "--merge": merge != "first-neighbours"}
    said |= {"--centroids": centroids != "unit", "--clusters": clusters is not None, "--partition": partition != -1}
    check_options(method, said | {"--approximate": approximate, "--choose-distance": choose_distance})
    how = How(x, method, metric, merge, centroids, "approximate" if approximate else "exact", Streams(seed))
    if choose_distance:
        if said["--threshold"] or out is not None or sheets is not None or smallest > 1:
            raise FedVisageError(
                "--choose-distance clusters nothing: leave out --threshold, --out, --sheets, --smallest"
            )
        show_choice(how, truth, as_json)
        return
    pictured = check_outputs(out, faces, sheets, len(x))
    labels, about = how.cluster(threshold, clusters, partition)
    labels = clustering.drop_small(labels, smallest)
    result = describe(labels, truth) | about | {"method": method, "seed": seed}
    if pictured is not None:
        result["pictures"] = [str(path) for path in draw(pictured.faces, labels, pictured.folder, largest)]
    if out is not None:
        write_labels(out, labels)
        result["file"] = str(out)
    elif as_json:
        result["labels"] = labels.tolist()
    show(result, as_json)


def check_options(method: Method, said: dict[str, bool]) -> None:
    """Refuse what the method would not look at."""
    idle = [option for option, is_said in said.items() if is_said and option not in USES[method]]
    if idle:
        raise FedVisageError(f"{method} makes no use of {', '.join(idle)}: leave it out")


class How(NamedTuple):
    """Embeddings (N, d) and how to cluster them."""

    x: NDArray[Any]
    method: Method
    metric: Metric
    merge: Merge
    centroids: Centroids
    search: Search
    streams: Streams

    def cluster(self, threshold: float, clusters: int | None, partition: int) -> tuple[Labels, dict[str, Any]]:
        """Labels (N,), and what else there is to say."""
        about: dict[str, Any] = {}
        match self.method:
            case "c-finch" | "dbscan":
                labels = self.within(threshold)
            case "finch":
                levels = clustering.finch(self.x, metric=self.metric, normalise=True, search=self.search)
                labels = levels[chosen(partition, len(levels))]
                about["partitions"] = [int(level.max()) + 1 for level in levels]
            case "k-means":
                if clusters is None:
                    raise FedVisageError("k-means has to be told how many clusters there are: --clusters 100")
                labels = clustering.k_means(self.x, clusters, self.streams.numpy("k-means"))
        if self.search == "approximate":
            position = clustering.first_neighbours(self.x, search=self.search).position
            about["recall"] = clustering.neighbour_recall(self.x, position, rng=self.streams.numpy("recall"))
        return labels, about

    def within(self, distance: float) -> Labels:
        """Labels (N,) of a method that goes by a distance."""
        if self.method == "dbscan":
            return clustering.dbscan(self.x, distance)
        return clustering.c_finch(
            self.x,
            distance,
            metric=self.metric,
            normalise_centroids=self.centroids == "unit",
            search=self.search,
            merge=self.merge,
        )


def show_choice(how: How, truth: NDArray[Any] | None, as_json: bool) -> None:
    """The largest distance that puts no two people together, and the one with the best F."""
    if truth is None:
        raise FedVisageError("a distance is chosen on people who are known, and this file holds no tensor 'labels'")
    people = len(np.unique(truth))
    found = clustering.choose_distance(how.within, truth, LARGEST[how.metric])
    tried = {"no two people together": found.pure, "best pairwise F": found.best}
    if as_json:
        keys = ("pure", "best")
        rows = {key: one and summary(one) for key, one in zip(keys, tried.values(), strict=True)}
        show_json({"method": how.method, "embeddings": len(truth), "identities": people, **rows})
        return
    print(f"{len(truth):,} embeddings of {people:,} people; thresholds by steps of {1 / STEPS}, scores in percent:")
    columns = ["threshold with", "is", "clusters", "precision", "recall", "F", "BCubed F"]
    shown = [
        [
            name,
            f"{one.distance:.2f}",
            f"{one.clusters:,}",
            *(f"{100 * part:.2f}" for part in (*one.pairwise, one.bcubed.f)),
        ]
        for name, one in tried.items()
        if one is not None
    ]
    show_table(columns, shown)
    if found.pure is None:
        print(f"even {1 / STEPS} puts two people together: none is safe")


def summary(tried: clustering.Tried) -> dict[str, Any]:
    """A distance with its scores."""
    scores = {name: getattr(tried, name)._asdict() for name in ("pairwise", "bcubed")}
    return {"threshold": tried.distance, "clusters": tried.clusters, **scores}


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
    """Position of a partition, counted from 0 on as in the recipes of `feduda`, or -1 for the last."""
    if partition >= count:
        raise FedVisageError(f"FINCH found {count} partitions here: --partition 0 to {count - 1}, or -1 for the last")
    return partition % count


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


def draw(faces: FaceSet, labels: Labels, folder: Path, count: int) -> list[Path]:
    """`clusters.png`, a row for each of the largest clusters, and a picture of each of them with more images."""
    sizes = clustering.sizes(labels)
    largest = np.argsort(-sizes, kind="stable")[:count]
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
    if "partitions" in result:
        print(f"clusters of all partitions: {', '.join(f'{count:,}' for count in result['partitions'])}")
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
