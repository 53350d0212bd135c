"""Federated momentum and validation on real faces (Bai et al., arXiv 2105.02501): Figures 4 and 5, Table 1.

Three parties of unlike data: people of LFW, Indian film actors, and synthetic people under a webcam. Centralised,
FedAvg, FedAvg + FV, PFM and PFM + FV take the same steps from the same start. The people nobody trains on are cut into
two halves, one for the validators and one for the test, and everything that uses FV is run a second time with them
swapped; scores are means over both. Real faces are looked for in ../shared/data or FEDVISAGE_DATA.

    python studies/momentum/run.py main --out runs/momentum --seeds 1 2 3
    python studies/momentum/run.py intervals norms twelve solo --out runs/momentum
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fedvisage as fv
from fedvisage.config import Recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import kfold_accuracy, make_pairs
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet, open_faceset, write_faceset
from fedvisage.faces.opening import joined
from fedvisage.faces.shares import Partition, Share
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.training import embed_images

ROOT = Path(__file__).resolve().parents[2]
DOMAINS = ("lfw", "actors", "synthetic")
TRAINED = {"lfw": 150, "actors": 32, "synthetic": 60}
"""People each party trains on."""
KEPT = {"lfw": 60, "actors": 12, "synthetic": 30}
"""People of each half that nobody trains on. Twelve actors are few: a step of their score is a whole percent."""
MOST_IMAGES = {"lfw": 30, "actors": 30, "synthetic": 20}
VALIDATION_PAIRS, TEST_PAIRS = 300, 600
STEPS = 480
"""Local steps of a whole run, whatever the interval between synchronisations."""
BATCH = 32
MILESTONES = (10 / 26, 18 / 26, 24 / 26)
"""Where the learning rate falls, as in the paper."""


def main() -> None:
    """Run the parts of the study that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=sorted(PARTS), help="which part of the study")
    parser.add_argument("--out", type=Path, default=Path("runs/momentum"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--size", type=int, default=48, help="width of the images in pixels")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--halves", type=int, choices=(1, 2), default=2, help="1: validators and test are not swapped")
    chosen = parser.parse_args()
    faces = prepare_faces(chosen.out / f"faces-{chosen.size}", chosen.size)
    for part in chosen.parts:
        rows = []
        for seed in chosen.seeds:
            study = Study(chosen.out, faces, seed, chosen.size, chosen.steps, chosen.workers, chosen.halves)
            rows += [row | {"part": part, "seed": seed} for row in PARTS[part](study)]
            (chosen.out / f"{part}.json").write_text(json.dumps(rows, indent=1) + "\n")
            show(rows)


def data_folder() -> Path:
    """Where the real faces are."""
    folder = Path(os.environ.get("FEDVISAGE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "lfw112-dev").is_dir():
        raise FedVisageError(f"no real faces in {folder}: set FEDVISAGE_DATA to the folder that has lfw112-dev")
    return folder


def prepare_faces(folder: Path, size: int) -> list[Path]:
    """The three sets as face folders of one size, made once."""
    folders = [folder / domain for domain in DOMAINS]
    if not all((each / "faces.json").exists() for each in folders):
        data, shared = data_folder(), {"Kareena Kapoor", "Priyanka Chopra"}
        for domain, source, least in (("lfw", "lfw112-dev", 4), ("actors", "bollywood112-dev", 20)):
            people = [p for p in sorted((data / source / "images").iterdir()) if p.name.replace("_", " ") not in shared]
            write_faceset(folder / domain, read_people(people, size, least, MOST_IMAGES[domain]))
        count = TRAINED["synthetic"] + 2 * KEPT["synthetic"]
        made = SyntheticFaces(0, count, MOST_IMAGES["synthetic"], size, "webcam")
        names = tuple(f"person-{number:03d}" for number in range(count))
        write_faceset(folder / "synthetic", FaceSet(made, np.asarray(made.labels), names))
    return folders


def read_people(folders: Sequence[Path], size: int, least: int, most: int) -> FaceSet:
    """People with at least `least` images, at most `most` of each, scaled to `size`."""
    pixels, labels = [], []
    names: list[str] = []
    for folder in folders:
        files = sorted(folder.glob("*.jpg"))[:most]
        if len(files) < least:
            continue
        for file in files:
            with Image.open(file) as image:
                pixels.append(np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BOX)))
            labels.append(len(names))
        names.append(folder.name)
    return FaceSet(ArrayImages(np.stack(pixels)), np.array(labels), tuple(names))


@dataclass
class Study:
    """One seed: who trains, the two halves, and runs that are made once."""

    out: Path
    folders: list[Path]
    seed: int
    size: int
    steps: int
    workers: int
    halves: int

    def __post_init__(self) -> None:
        self.faces = joined({folder.name: open_faceset(folder) for folder in self.folders})
        self.trained: dict[str, list[int]] = {}
        self.kept: dict[str, tuple[list[int], list[int]]] = {}
        for domain in DOMAINS:
            people = [n for n, name in enumerate(self.faces.names) if name.startswith(f"{domain}/")]
            Streams(self.seed, "study").numpy(domain).shuffle(people)
            first, second = TRAINED[domain], KEPT[domain]
            self.trained[domain] = people[:first]
            self.kept[domain] = people[first : first + second], people[first + second : first + 2 * second]

    def images(self, people: Sequence[int]) -> tuple[int, ...]:
        """All images of some people."""
        return tuple(np.flatnonzero(np.isin(self.faces.labels, people)).tolist())

    def partition(self, half: int, parts: int, only: str = "") -> Path:
        """Trainers by domain (each in `parts` parts), validators of one half, the test of the other."""
        parties: dict[str, Share] = {}
        for domain in DOMAINS:
            for number in range(parts):
                name = f"{domain}-{'abcd'[number]}" if parts > 1 else domain
                if only in ("", domain):
                    parties[name] = Share("trainer", self.images(self.trained[domain][number::parts]))
        for domain in DOMAINS:
            parties[f"judge-{domain}"] = Share("validator", self.images(self.kept[domain][half]))
        test = self.images([person for domain in DOMAINS for person in self.kept[domain][1 - half]])
        path = self.out / f"seed-{self.seed}" / f"partition-{half}-{parts}{only and '-' + only}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        Partition((), tuple(sorted(test)), parties).save(path, self.faces.names, self.faces.labels)
        return path

    def run(
        self, method: str, *, half: int = 0, norm: str = "", interval: int = 16, parts: int = 1, only: str = ""
    ) -> Path:
        """One run; finished ones are not run again. `norm` names FV's normalisation, none for no FV."""
        rounds = max(1, self.steps // interval)
        central = method == "central"
        weighting: dict[str, Any] = {"name": "equal"}
        if norm:
            weighting = {"name": "fv", "norm": norm, "pairs": VALIDATION_PAIRS, "smoothing": 0.1}
            if parts == 1:
                weighting |= {"map_every": rounds, "map_steps": 6}
        recipe = Recipe.model_validate(
            {
                "name": f"{method}{'+fv-' + norm if norm else ''}",
                "seed": self.seed,
                "faces": {"source": [str(folder) for folder in self.folders], "size": self.size},
                "partition": {"file": str(self.partition(half, parts, only)), "parties": 1 if only else 3 * parts},
                "training": {
                    "loss": "cosface",
                    "batch_size": BATCH * (3 if central else 1),
                    "steps": interval,
                    "learning_rate": 0.05,
                    "schedule": "steps",
                    "milestones": sorted({max(1, round(share * rounds)) for share in MILESTONES}),
                    "optimiser_state": "keep",
                },
                "method": {"name": method},
                "weighting": {} if central else weighting,
                "federation": {"rounds": rounds, "workers": self.workers},
                "evaluation": {"pairs": 0, "fars": [0.1, 0.01]},
            }
        )
        tags = [method, norm and f"fv-{norm}-{half}", f"k{interval}", f"p{3 * parts}", only]
        folder = self.out / f"seed-{self.seed}" / "-".join(filter(None, tags))
        fv.run(recipe, out=folder, resume=(folder / "recipe.toml").exists())
        return folder

    def score(self, folder: Path, half: int) -> dict[str, float]:
        """Accuracy in percent per domain on the people that did not validate, and the mean of the domains."""
        model = fv.load_model(folder / "model.safetensors")
        scores = {}
        for domain in DOMAINS:
            people = self.kept[domain][1 - half]
            faces, folds = Faces(self.faces, self.images(people)), min(10, len(people) // 2)
            assert faces.labels is not None
            rng = Streams(self.seed, "test", half).numpy(domain)
            left, right, same = make_pairs(faces.labels, 2 * folds * (TEST_PAIRS // (2 * folds)), rng, folds)
            embeddings = embed_images(model, faces, normalise=True)
            scores[domain] = 100 * kfold_accuracy(embeddings[left], embeddings[right], same, folds).mean
        return scores | {"mean": float(np.mean(list(scores.values())))}

    def scored(self, method: str, norm: str = "", **options: Any) -> dict[str, Any]:
        """A row: means over the halves. Without FV one run serves both; central has no parties to cut."""
        halves = range(self.halves)
        folders = [self.run(method, half=half if norm else 0, norm=norm, **options) for half in halves]
        each = [self.score(folder, half) for folder, half in zip(folders, halves, strict=True)]
        means = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        label = method + (f" + FV ({norm})" if norm else "")
        return {"method": label, **options, **means, "loss": last_losses(folders[0])}


def last_losses(folder: Path) -> dict[str, float]:
    """Each party's training loss, smoothed over rounds by 0.9 as it went."""
    smoothed: dict[str, float] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for party, numbers in row.get("parties", {}).items() if row["phase"] == "train" else ():
            smoothed[party] = 0.9 * smoothed.get(party, numbers["loss"]) + 0.1 * numbers["loss"]
    return smoothed


def compared(study: Study, **options: Any) -> Iterator[dict[str, Any]]:
    """Centralised, FedAvg and PFM, each without and with FV."""
    yield study.scored("central", interval=options.get("interval", 16))
    for method in ("fedavg", "pfm"):
        yield study.scored(method, **options)
        yield study.scored(method, "local", **options)


def intervals(study: Study) -> Iterator[dict[str, Any]]:
    """Figure 4 a to c: steps between synchronisations over a factor of 16."""
    for interval in (4, 16, 64):
        yield from compared(study, interval=interval)


def norms(study: Study) -> Iterator[dict[str, Any]]:
    """Figure 5."""
    for method in ("fedavg", "pfm"):
        for norm in ("moving", "local", "none"):
            yield study.scored(method, norm)


def solo(study: Study) -> Iterator[dict[str, Any]]:
    """Table 1: training losses, each party by itself, then together."""
    for domain in DOMAINS:
        yield study.scored("fedavg", only=domain)
    for method in ("central", "fedavg", "pfm"):
        yield study.scored(method)


PARTS = {
    "main": compared,
    "intervals": intervals,
    "norms": norms,
    "twelve": lambda study: compared(study, parts=4),
    "solo": solo,
}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The rows, with each mean relative to the centralised one of the same seed and interval."""
    base = {(r["seed"], r.get("interval", 16)): r["mean"] for r in rows if r["method"] == "central"}
    columns = (*DOMAINS, "mean", "relative")
    print(f"{'seed':>4} {'method':<22}{'options':<22}" + "".join(f"{name:>11}" for name in columns))
    for row in rows:
        reference = base.get((row["seed"], row.get("interval", 16)))
        relative = f"{row['mean'] - reference:+11.2f}" if reference is not None else ""
        options = " ".join(f"{k}={row[k]}" for k in ("interval", "parts", "only") if k in row)
        numbers = "".join(f"{row[name]:11.2f}" for name in (*DOMAINS, "mean"))
        print(f"{row['seed']:>4} {row['method']:<22}{options:<22}{numbers}{relative}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except FedVisageError as error:
        sys.exit(f"error: {error}")
