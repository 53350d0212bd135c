"""From news photos to film actors: a strong public start, fine-tuned on one domain, pooled, and federated.

The start is dlib's network, which knows the faces of news photos well and those of Indian film actors less well. Only
its 256-channel stage is trained. Per seed the people of both sets are split into training, validation and test people;
fine-tuning sees the training actors only, pooling both sets' training people, and the federation gives each of eight
parties the people of one set. Learning rates were chosen on the validation people of the first seed (`--choose`).

    fedvisage data import .../lfw112-dev/images --out faces/lfw --min-images 5 --max-images 20
    fedvisage data import .../bollywood112-dev/images --out faces/actors --max-images 40
    python studies/actors/run.py faces/lfw faces/actors --out runs/actors
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import fedvisage as fv
from fedvisage.build import freeze, prepare_faces
from fedvisage.config import Evaluation, Faces, Recipe
from fedvisage.core.randomness import Streams
from fedvisage.faces import Faces as View
from fedvisage.faces import FaceSet, Partition
from fedvisage.faces.opening import open_source
from fedvisage.models import Backbone, open_model
from fedvisage.scoring import TestSet

IN_BOTH = ("kareena_kapoor", "priyanka_chopra")
VALIDATION, TEST, LFW_TRAIN = {"lfw": 40, "actors": 8}, {"lfw": 100, "actors": 14}, 100
FAR = 1e-2
OFFERED = (1e-5, 1e-4, 3e-4, 1e-3)
CHOSEN = {"fine-tune": 1e-4, "pooled": 1e-5, "federated": 1e-5}
"""The federation takes the rate of pooling, whose people it trains on."""
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "fine-tune": {"actors": {"domain": "actors", "parties": 4}},
    "pooled": {"actors": {"domain": "actors", "parties": 4}, "lfw": {"domain": "lfw", "parties": 4}},
}
GROUPS["federated"] = GROUPS["pooled"]


def main() -> None:
    """Choose, run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lfw", type=Path)
    parser.add_argument("actors", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/actors"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choose", action="store_true", help="score the offered rates on the validation people")
    asked = parser.parse_args()
    study = Study((str(asked.lfw), str(asked.actors)), asked.out)
    if asked.choose:
        for kind in GROUPS:
            print(kind, {rate: study.score(kind, 1, rate, "validation") for rate in OFFERED}, flush=True)
        return
    rows: dict[str, list[dict[str, float]]] = {"start": [], **{kind: [] for kind in GROUPS}}
    for seed in range(1, asked.seeds + 1):
        rows["start"].append(study.start(seed))
        for kind, rate in CHOSEN.items():
            rows[kind].append(study.score(kind, seed, rate, "test"))
        print(f"seed {seed}: { ({kind: scores[-1] for kind, scores in rows.items()}) }", flush=True)
    (asked.out / "table.json").write_text(json.dumps({"rates": CHOSEN, "rows": rows}, indent=1) + "\n")
    print(table(rows))


class Study:
    """The two face folders, and the runs on them."""

    def __init__(self, folders: tuple[str, str], out: Path) -> None:
        self.folders, self.out = folders, out
        self.faces = open_source(Faces(source=folders, size=112), out)

    def people(self, seed: int) -> dict[str, tuple[str, ...]]:
        """Validation, test and left-out people of a seed."""
        split: dict[str, tuple[str, ...]] = {"validation": (), "test": (), "exclude": ()}
        for domain in ("lfw", "actors"):
            names = sorted(name for name in self.faces.names if name.startswith(f"{domain}/"))
            both = [n for n in names if n.partition("/")[2].lower().replace(" ", "_") in IN_BOTH and domain == "actors"]
            names = [name for name in names if name not in both]
            Streams(seed).numpy("people", domain).shuffle(names)
            first, second = VALIDATION[domain], VALIDATION[domain] + TEST[domain]
            rest = names[second + LFW_TRAIN :] if domain == "lfw" else []
            for part, chosen in (("validation", names[:first]), ("test", names[first:second])):
                split[part] += tuple(chosen)
            split["exclude"] += (*both, *rest)
        return split

    def recipe(self, kind: str, seed: int, rate: float) -> Recipe:
        """One of the runs."""
        people = self.people(seed)
        base: dict[str, Any] = {
            "name": f"actors-{kind}",
            "seed": seed,
            "faces": {"source": self.folders, "size": 112},
            "partition": {
                "validation": {"names": people["validation"]},
                "test": {"names": people["test"]},
                "exclude": people["exclude"],
                "groups": GROUPS[kind],
                "max_images": 30,
                "held_out": 0,
            },
            "backbone": {
                "name": "dlib-resnet",
                "start": "dlib",
                "train_from": "stage4",
                "cache": str(self.out / "features"),
            },
            "training": {
                "scale": 16.0,
                "margin": 0.1,
                "batch_size": 32,
                "learning_rate": rate,
                "schedule": "cosine",
            },
            "method": {"name": "fedavg" if kind == "federated" else "central", "embeddings_start": "mean"},
            "federation": {"rounds": 4},
            "evaluation": {"pairs": 0, "fars": [FAR]},
        }
        return Recipe.model_validate(base)

    def score(self, kind: str, seed: int, rate: float, on: str) -> dict[str, float]:
        """Run, unless that was done before, and score the model on the validation or test people of each set."""
        recipe = self.recipe(kind, seed, rate)
        folder = self.out / f"{kind}-{seed}-{rate:g}"
        fv.run(recipe, out=folder, resume=folder.exists())
        return self.by_domain(open_model(folder), recipe, Partition.load(folder / "partition.json"), on)

    def start(self, seed: int) -> dict[str, float]:
        """The start itself on the test people."""
        test = set(self.people(seed)["test"])
        images = tuple(i for i, label in enumerate(self.faces.labels) if self.faces.names[label] in test)
        recipe = self.recipe("federated", seed, CHOSEN["federated"])
        return self.by_domain(open_model("dlib"), recipe, Partition((), images, {}), "test")

    def by_domain(self, model: Backbone, recipe: Recipe, partition: Partition, on: str) -> dict[str, float]:
        """True-accept rate in per cent at a false-accept rate of 1%, over all pairs within each set."""
        freeze(model, recipe)
        faces: FaceSet = prepare_faces(recipe, model, self.faces, partition, self.out)
        images = np.array(getattr(partition, on))
        scores = {}
        for domain in ("lfw", "actors"):
            inside = [faces.names[label].startswith(f"{domain}/") for label in faces.labels[images]]
            test = TestSet(View(faces, images[inside]), Evaluation(pairs=0, fars=(FAR,)), Streams(recipe.seed))
            scores[domain] = 100 * test.score(model)["tar"][f"{FAR:g}"]
        return scores


def table(rows: dict[str, list[dict[str, float]]]) -> str:
    """Mean and spread over the seeds."""
    lines = ["| model | actors | LFW people |", "|---|---|---|"]
    for name, scores in rows.items():
        cells = []
        for domain in ("actors", "lfw"):
            values = np.array([score[domain] for score in scores])
            cells.append(
                f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if len(values) > 1 else f"{values.mean():.1f}"
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
