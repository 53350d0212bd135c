"""Rules of clustering, their distance chosen on people of the source: the tables of `docs/papers/feduda.md`.

    python examples/merge_rules.py --out runs/merge-rules

For every seed: the images that a run of the study `feduda/table-2` at scale `trained` gives to its source and its
target, and those of the source's validation people, are embedded under dlib's network into files that `fedvisage
cluster` takes. A distance is chosen on the source, by the best pairwise F or by purity, and scored on all three.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedvisage.build import make_network
from fedvisage.clustering import c_finch, choose_distance, dbscan, finch, k_means, pairwise
from fedvisage.core.randomness import Streams
from fedvisage.deploy.shares import draw
from fedvisage.faces.faceset import Faces
from fedvisage.studies import cells
from fedvisage.studies.sets import data_root, located
from fedvisage.training import embed_images

Labels = NDArray[np.int64]
SETS = ("source", "held-out", "target")
BY_DISTANCE: dict[str, Callable[[NDArray[np.float32], float], Labels]] = {
    "C-FINCH as published": c_finch,
    "C-FINCH, mutual rule": lambda x, d: c_finch(x, d, merge="mutual"),
    "C-FINCH, centroids as they are": lambda x, d: c_finch(x, d, normalise_centroids=False),
    "DBSCAN": dbscan,
}


class People(NamedTuple):
    """Embeddings (N, d) and whom they show (N,)."""

    x: NDArray[np.float32]
    truth: Labels


class Scored(NamedTuple):
    """A rule at a distance: F, precision and recall by set, in percent, and the target's largest cluster."""

    distance: float
    f: Mapping[str, float]
    precision: float
    recall: float
    images: int
    people: int


def embedded(seed: int, flip: bool, out: Path) -> dict[str, People]:
    """The three sets of a seed, from their files, which are written first where they are missing."""
    folder = out / f"seed-{seed}{'' if flip else '-no-flip'}"
    paths = {name: folder / f"{name}.safetensors" for name in SETS}
    if not all(path.exists() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        recipe = located(cells("feduda/table-2", "trained", [seed])[-1].recipe, out / "data", data_root())
        whole, partition = draw(recipe, out / "data")
        domain, target = whole.domain, whole.domains.index("bollywood112-dev")
        assert domain is not None
        validation = [image for image in partition.validation if domain[image] != target]
        by_role = {share.role: share.train for share in partition.parties.values()}
        model = make_network(recipe, torch.device("cpu"))
        for name, images in zip(SETS, (by_role["source"], validation, by_role["target"]), strict=True):
            x = embed_images(model, Faces(whole, images), flip=flip)
            save_file({"embeddings": x, "labels": whole.labels[list(images)]}, paths[name])
    return {name: People(*(load_file(path)[key] for key in ("embeddings", "labels"))) for name, path in paths.items()}


def score(cluster: Callable[[People], Labels], sets: Mapping[str, People], distance: float = np.nan) -> Scored:
    """How well a clustering does on each of the sets."""
    labels = {name: cluster(people) for name, people in sets.items()}
    scores = {name: pairwise(people.truth, labels[name]) for name, people in sets.items()}
    own = labels["target"]
    largest = own == np.bincount(own[own >= 0]).argmax()
    return Scored(
        distance,
        {name: 100 * one.f for name, one in scores.items()},
        100 * scores["target"].precision,
        100 * scores["target"].recall,
        int(largest.sum()),
        len(np.unique(sets["target"].truth[largest])),
    )


def rows(sets: Mapping[str, People], seed: int) -> dict[str, Scored]:
    """Every rule with its distance by the best F and by purity, and those that take none or the paper's."""
    found = {}
    for name, rule in BY_DISTANCE.items():
        chosen = choose_distance(lambda d, rule=rule: rule(sets["source"].x, d), sets["source"].truth)  # type: ignore[misc]
        for how, tried in (("best F", chosen.best), ("purity", chosen.pure)):
            if tried is not None:
                d = tried.distance
                found[f"{name}, {how}"] = score(lambda people, rule=rule, d=d: rule(people.x, d), sets, d)  # type: ignore[misc]
    found["FINCH, second partition"] = score(lambda people: finch(people.x)[1], sets)
    told = lambda people: k_means(people.x, len(np.unique(people.truth)), Streams(seed).numpy("k-means"))  # noqa: E731
    found["K-means, told the number of people"] = score(told, sets)
    found["C-FINCH with the paper's d"] = score(lambda people: c_finch(people.x, 0.9), sets, 0.9)
    return found


def shown(values: Sequence[float], digits: int = 1) -> str:
    """Mean and spread, or the one value that all have."""
    if len(set(values)) == 1 or len(values) == 1:
        return "" if np.isnan(values[0]) else f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def table(by_seed: Sequence[Mapping[str, Scored]]) -> list[str]:
    """Lines of a Markdown table, mean and spread over seeds."""
    lines = [f"| rule | d | {' | '.join(SETS)} | target precision, recall | target's largest cluster |"]
    lines.append("|" + "---|" * (len(SETS) + 4))
    for name in by_seed[0]:
        found = [scored[name] for scored in by_seed if name in scored]
        distances = ", ".join(f"{d:.2f}" for d in sorted({one.distance for one in found if one.distance > 0}))
        parts = [name, distances, *(shown([one.f[part] for one in found]) for part in SETS)]
        parts.append(f"{shown([one.precision for one in found])}, {shown([one.recall for one in found])}")
        parts.append("; ".join(f"{one.images} of {one.people}" for one in found))
        lines.append(f"| {' | '.join(parts)} |")
    return lines


def over_distances(by_seed: Sequence[Mapping[str, People]], first: int = 22, last: int = 42) -> list[str]:
    """Lines of a Markdown table: the target's F by seed and distance, which nobody can know without its labels."""
    distances = [step / 100 for step in range(first, last + 1)]
    lines = [f"| target's F at d | {' | '.join(f'{d:.2f}' for d in distances)} |", "|" + "---|" * (len(distances) + 1)]
    for name, rule in BY_DISTANCE.items():
        for number, sets in enumerate(by_seed, 1):
            scores = [100 * pairwise(sets["target"].truth, rule(sets["target"].x, d)).f for d in distances]
            lines.append(f"| {name}, seed {number} | {' | '.join(f'{score:.1f}' for score in scores)} |")
    return lines


def impostors(people: People, share: float = 0.01) -> float:
    """The distance within which this share of all pairs of different people is."""
    x = people.x / np.linalg.norm(people.x, axis=1, keepdims=True)
    different = people.truth[:, None] > people.truth
    return float(np.quantile(np.sqrt(np.maximum(0, 2 - 2 * (x @ x.T)[different])), share))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/merge-rules"), help="folder for faces and embeddings")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this")
    parser.add_argument("--no-flip", action="store_true", help="embed images without their mirror images")
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    sets = [embedded(seed, not given.no_flip, given.out) for seed in seeds]
    for name in SETS:
        sizes = {(len(one[name].truth), len(np.unique(one[name].truth))) for one in sets}
        near = shown([impostors(one[name]) for one in sets], 2)
        print(
            f"{name}: {', '.join(f'{images} images of {people} people' for images, people in sorted(sizes))}, ", end=""
        )
        print(f"one impostor pair of 100 within {near}")
    for lines in (table([rows(one, seed) for one, seed in zip(sets, seeds, strict=True)]), over_distances(sets)):
        print("", *lines, sep="\n")


if __name__ == "__main__":
    main()
