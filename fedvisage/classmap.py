"""A map of a finished run's people: class embeddings of all parties, and the pairs across parties most alike.

The pairs are those of FedGC's Figure 3 (Niu & Deng, AAAI 2022): the two people of different parties whose class
embeddings are most similar, then the next two, nobody twice; with the images of both as the run's model sees them.
Only for runs whose parties are on this machine: on real hosts private embeddings are not here to be drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.build import CACHE, build_parts, open_faces
from fedvisage.config import load_recipe
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.faceset import Faces, FaceSet
from fedvisage.faces.partition import Partition
from fedvisage.federation import StateStore
from fedvisage.methods.fedavg import EMBEDDINGS
from fedvisage.models import Backbone, load_model
from fedvisage.report.tsne import tsne
from fedvisage.training import embed_images

MAP = "map.json"
MOST_CLASSES, PAIRS, IMAGES, BINS = 240, 4, 16, 40
BLOCK = 1 << 17
"""Cosines held at a time."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Someone:
    """A party's person: the party, and the person's number among its people."""

    party: str
    number: int


@dataclass(frozen=True)
class Classes:
    """People with their class embeddings (C, d) at unit length."""

    who: Sequence[Someone]
    embeddings: NDArray[np.floating]


def write_map(folder: Path, like: Path | None = None) -> Path | None:
    """Write map.json of a finished run, with the pairs of another run's map where `like` names its folder.

    None where there is nothing to draw: fewer than two parties with class embeddings of one model.
    """
    recipe = load_recipe(str(folder / "recipe.toml"))
    partition = Partition.load(folder / "partition.json")
    method = build_parts(recipe).method
    if method.has_no_global_model or method.pools or not (folder / "parties").is_dir():
        return None
    classes = class_embeddings(folder, partition)
    if len({one.party for one in classes.who}) < 2:
        return None
    pairs = _pairs_of(like, classes) if like else most_alike(classes, PAIRS)
    model, faces = load_model(folder / "model.safetensors"), open_faces(recipe, folder / CACHE)
    shown = np.linspace(0, len(classes.who) - 1, min(MOST_CLASSES, len(classes.who))).astype(int)
    parties = sorted({one.party for one in classes.who})
    content = {
        "parties": parties,
        "classes": {
            "of": len(classes.who),
            "party": [parties.index(classes.who[i].party) for i in shown],
            "points": _rounded(tsne(classes.embeddings[shown])),
        },
        "alike": _images(classes, pairs, model, faces, partition),
    }
    write_atomically(folder / MAP, [json.dumps(content).encode()])
    return folder / MAP


def class_embeddings(folder: Path, partition: Partition) -> Classes:
    """Every party's class embeddings as it last had them; parties without labels have none to show."""
    store = StateStore(folder / "parties")
    who, rows, size = [], bytearray(), 1  # of many parties, arrays would be many small ones
    for party, share in sorted(partition.parties.items()):
        kept = store.generations(party) if share.role in ("trainer", "source") else []
        embeddings = store.load(party, kept[-1]).get(EMBEDDINGS) if kept else None
        if embeddings is None:
            continue
        values = embeddings.float().cpu().numpy()
        who += [Someone(party, number) for number in range(len(values))]
        rows += values.tobytes()
        size = values.shape[1]
    store.close()
    whole = np.frombuffer(rows, np.float32).reshape(-1, size)
    whole /= np.maximum(np.sqrt(np.einsum("ij,ij->i", whole, whole)), 1e-12)[:, None]
    return Classes(who, whole)


def most_alike(classes: Classes, count: int) -> list[tuple[int, int]]:
    """The pairs of people of different parties with the highest cosines, nobody twice.

    Before the last pair `2 * count - 2` people are taken, so one more than that many partners of each person suffice.
    """
    cosines, partners = _closest_elsewhere(classes, 2 * count - 1)
    found: list[tuple[int, int]] = []
    while len(found) < count and np.isfinite(cosines.max(initial=-np.inf)):
        a, place = divmod(int(cosines.argmax()), cosines.shape[1])
        b = int(partners[a, place])
        found.append((min(a, b), max(a, b)))
        cosines[[a, b]] = -np.inf
        cosines[np.isin(partners, (a, b))] = -np.inf
    return found


def _closest_elsewhere(classes: Classes, count: int) -> tuple[Floats, NDArray[np.int64]]:
    """For every person the largest cosines (C, k) with people of other parties, -inf where there are fewer, and who."""
    total = len(classes.who)
    party = np.unique([one.party for one in classes.who], return_inverse=True)[1]
    kept = min(count, total)
    cosines, partners = np.empty((total, kept)), np.empty((total, kept), dtype=np.int64)
    step = max(1, BLOCK // max(1, total))
    for start in range(0, total, step):
        here = slice(start, start + step)
        block = classes.embeddings[here] @ classes.embeddings.T
        block[party[here, None] == party] = -np.inf
        partners[here] = np.argpartition(block, total - kept, axis=1)[:, total - kept :]
        cosines[here] = np.take_along_axis(block, partners[here], axis=1)
    return cosines, partners


def _pairs_of(other: Path, classes: Classes) -> list[tuple[int, int]]:
    """The pairs of another run's map, which must have the same parties and people."""
    try:
        kept = json.loads((other / MAP).read_text("utf-8"))["alike"]["pairs"]
        wanted = [tuple(Someone(*side) for side in pair["who"]) for pair in kept]
        place = {one: index for index, one in enumerate(classes.who)}
        return [(place[a], place[b]) for a, b in wanted]
    except (OSError, ValueError, TypeError):
        raise FedVisageError(f"{other} has no map of its people ({MAP}) to take pairs from") from None
    except KeyError:
        raise FedVisageError(f"the run in {other} has other parties or people") from None


def _images(
    classes: Classes, pairs: Sequence[tuple[int, int]], model: Backbone, faces: FaceSet, partition: Partition
) -> dict[str, Any]:
    """How the model sees the images of each pair: places of all of them, and cosines within and between the two."""
    seen: list[NDArray[np.float32]] = []
    listed = []
    for a, b in pairs:
        sides = [_features(classes.who[one], model, faces, partition) for one in (a, b)]
        between = (sides[0] @ sides[1].T).ravel()
        within = np.concatenate([(side @ side.T)[np.triu_indices(len(side), 1)] for side in sides])
        seen += sides
        listed.append(
            {
                "who": [[classes.who[one].party, classes.who[one].number] for one in (a, b)],
                "cosine": round(float(classes.embeddings[a] @ classes.embeddings[b]), 4),
                "between": _histogram(between),
                "within": _histogram(within),
                "mean": round(float(between.mean()), 4),
            }
        )
    which = [index for index, side in enumerate(seen) for _ in side]
    points = tsne(np.concatenate(seen)) if seen else np.empty((0, 2))
    return {"pairs": listed, "which": which, "points": _rounded(points)}


def _features(one: Someone, model: Backbone, faces: FaceSet, partition: Partition) -> NDArray[np.float32]:
    """Unit features (n, d) of some training images of a person."""
    train = np.array(partition.parties[one.party].train)
    people = np.unique(faces.labels[train])
    images = train[faces.labels[train] == people[one.number]][:IMAGES]
    return embed_images(model, Faces(faces, images), flip=False, normalise=True)


def _histogram(cosines: NDArray[np.floating]) -> list[int]:
    counts: list[int] = np.histogram(cosines, bins=BINS, range=(-1, 1))[0].tolist()
    return counts


def _rounded(points: Floats) -> list[list[float]]:
    rows: list[list[float]] = points.round(4).tolist()
    return rows
