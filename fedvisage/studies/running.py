"""A cell put to work: an ordinary run, its scores by every column's measure, and a small JSON file.

A face set written `@name` is the folder `name` below the data root, imported at the recipe's size when first used;
`@name:5-20` takes people with at least 5 images, and at most 20 of each, and `@name@64` (`@name:5-20@64`) imports it at
64 pixels instead, for recipes that scale faces when they are read. `@synthetic-webcam`, or any other domain of the
generator, is made: 120 people with 20 images each. `@name+templates` has the lists of a stand-in, see `standins`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedvisage.build import start_model
from fedvisage.config import Recipe
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import Diverged, FedVisageError, nearest
from fedvisage.faces.faceset import FaceSet, write_faceset
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.faces.lists import list_names
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.federation import Event
from fedvisage.pipeline import EVALUATION, RunResult, run
from fedvisage.privacy import read_ledger
from fedvisage.protocols import PROTOCOLS, Data, Options, Subject, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.runfolder import environment
from fedvisage.scoring import headline
from fedvisage.studies.cells import Cell
from fedvisage.studies.definition import TEST, TRAINING, Measure, Study, load_study
from fedvisage.studies.drawn import PLANS, PREFIX, draw_set, set_name
from fedvisage.studies.people import NOBODY, pack, people_digest, test_influences
from fedvisage.studies.standins import add_lists
from fedvisage.studies.weightings import KINDS, SEARCHED, kept_weighting

CLOCK = "seconds"
"""In a cell's run folder: how long earlier, interrupted tries took."""
SYNTHETIC = "synthetic-"
SMOOTHING = 0.9
"""Of training losses, from round to round."""
Watch = Callable[[Event], None]


def run_cell(
    cell: Cell, work: Path, results: Path, data: Path | None = None, watch: Watch = lambda event: None, workers: int = 0
) -> Path:
    """Run and score a cell as far as that is not done, going on where an earlier try was interrupted; the result.

    Another process that runs the same cell in the same `work` is waited for. `workers` as in the recipe.
    """
    path, folder = results / f"{cell.key}.json", work / cell.key
    measures = load_study(cell.study, cell.home).measures(cell.scale, cell.row).values()
    root = data or data_root()
    work.mkdir(parents=True, exist_ok=True)
    with _alone(work / f"{cell.key}.lock"):
        result = cell.finished(results) or {}
        if result and not _to_do(cell, result, folder, root):
            return path
        missing = [measure for measure in measures if _is_missing(measure, result, root, folder)]
        recipe = _put_to_work(cell, work, root, watch, workers)
        clock = _Clock(folder, watch)
        results.mkdir(parents=True, exist_ok=True)
        try:
            done = _trained(cell, recipe, work, clock.watch)
        except Diverged as reason:
            result = _beginning(cell, folder, clock.seconds()) | {"diverged": str(reason)}
            write_atomically(path, [_lines(result).encode()])
            return path
        result = result or _beginning(cell, folder, clock.seconds())
        scored = "start" if any(measure.of == "start" for measure in missing) else cell.recipe.method["name"]
        own = headline(done.scores.get(scored, {"tar": {}}))
        _add_own(result, [measure for measure in missing if measure.protocol == TEST], own, folder)
        for measure in missing:
            if measure.protocol != TEST:
                _add(result, measure, folder, recipe, work / "data", root)
        searched = kept_weighting(folder)
        result |= {SEARCHED: searched} if searched else {}
        write_atomically(path, [_lines(result).encode()])
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return path


def is_finished(cell: Cell, work: Path, results: Path, data: Path | None = None) -> bool:
    """Whether there is nothing to train or to score; a damaged result is for `run_cell` to complain of."""
    try:
        result = cell.finished(results)
    except FedVisageError:
        return False
    return result is not None and not _to_do(cell, result, work / cell.key, data or data_root())


def _to_do(cell: Cell, result: Mapping[str, Any], folder: Path, root: Path) -> bool:
    """Whether a result lacks something that its study shows."""
    study = load_study(cell.study, cell.home)
    missing = [m for m in study.measures(cell.scale, cell.row).values() if _is_missing(m, result, root, folder)]
    return not result.get("diverged") and (bool(missing) or _lacks_weighting(study, cell, result))


def _put_to_work(cell: Cell, work: Path, root: Path, watch: Watch, workers: int) -> Recipe:
    """The cell's recipe on this machine, after the run of the cell that it begins with."""
    recipe = located(cell.recipe, work / "data", root)
    federation = recipe.federation.model_copy(update={"workers": workers or recipe.federation.workers})
    recipe = recipe.model_copy(update={"name": cell.key, "federation": federation})
    if cell.start is None:
        return recipe
    with _alone(work / f"{cell.start.key}.lock"):
        before = _put_to_work(cell.start, work, root, watch, workers)
        start = str(_trained(cell.start, before, work, watch).model_path)
    return recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": start})})


def _trained(cell: Cell, recipe: Recipe, work: Path, watch: Watch) -> RunResult:
    resume = (work / cell.key / "recipe.toml").exists()
    return run(recipe, out=work / cell.key, resume=resume, watch=watch, starts=work / "starts")


def _lines(result: Mapping[str, Any]) -> str:
    """JSON with a line for each part of a result, and for each score."""
    parts = []
    for name, value in result.items():
        if name in ("scores", "people"):
            inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items())
            parts.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _beginning(cell: Cell, folder: Path, seconds: float) -> dict[str, Any]:
    """A cell's result before it is scored."""
    return {
        "study": cell.study,
        "scale": cell.scale,
        "row": cell.row,
        "seed": cell.seed,
        "recipe": cell.key,
        "settings": cell.settings,
        "seconds": round(seconds, 1),
        "bytes": sum(row.get("bytes", 0) for row in read_ledger(folder / "ledger.jsonl")),
        "scores": {},
        "people": {},
        "rounds": _curve(folder),
        "test": json.loads((folder / EVALUATION).read_text())["test"] if (folder / EVALUATION).exists() else {},
        "environment": environment(),
    }


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process of this machine holds the file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Clock:
    """How long a run takes, with the tries before this one: noted after every round, so that a kill loses little."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        self._begin, self._path, self._watch = time.monotonic(), folder / CLOCK, watch
        self._before = float(self._path.read_text() or 0) if self._path.exists() else 0.0

    def seconds(self) -> float:
        """So far."""
        return self._before + time.monotonic() - self._begin

    def watch(self, event: Event) -> None:
        """Note the time and pass the event on."""
        if event.kind == "absorbed":
            self._path.write_text(f"{self.seconds():.1f}")
        self._watch(event)


def _is_missing(measure: Measure, result: Mapping[str, Any], data: Path, folder: Path) -> bool:
    """Whether a measure is still to be taken; one whose people were not kept is taken again while its run is there."""
    if not _is_at_hand(measure, data):
        return False
    known = result.get("scores", {})
    if measure.key not in known:
        return True
    kept = measure.key in result.get("people", {}) or not _tells_people(measure) or known[measure.key] is None
    return not kept and (folder / EVALUATION).exists()


def _lacks_weighting(study: Study, cell: Cell, result: Mapping[str, Any]) -> bool:
    """Whether the study draws a searched weighting that the result, made for another study, does not hold."""
    drawn = study.figure is not None and study.figure.kind in KINDS
    return drawn and cell.recipe.weighting.get("name") == "fv" and SEARCHED not in result


def _tells_people(measure: Measure) -> bool:
    return measure.protocol in (TEST, "all-pairs", "lfw", "rfw") or (
        measure.protocol == "personal" and measure.metric.startswith("TAR") and "clean" in measure.metric
    )


def absent_sets(cells: Iterable[Cell], results: Path, data: Path | None = None) -> list[str]:
    """Face sets that cells would train on and that are not at the data root; of finished cells none."""
    needed: set[str] = set()
    for cell in cells:
        sources = cell.recipe.faces.source
        names = {set_name(one) for one in ((sources,) if isinstance(sources, str) else sources)}
        absent = {name for name in names & PLANS.keys() if not ((data or data_root()) / name).is_dir()}
        if absent and cell.finished(results) is None:
            needed |= absent
    return sorted(needed)


def left_out(cells: Iterable[Cell], results: Path, data: Path | None = None) -> dict[str, str]:
    """By column: the face set that is not at hand, so that cells which are not scored on it yet leave it open."""
    found: dict[str, str] = {}
    for cell in cells:
        study = load_study(cell.study, cell.home)
        heads = {column.name: column.head(cell.scale) for column in study.measured(cell.scale)}
        for name, measure in study.measures(cell.scale, cell.row).items():
            if not _is_at_hand(measure, data or data_root()) and not _is_scored(cell, measure, results):
                found[heads[name]] = measure.data
    return found


def _is_scored(cell: Cell, measure: Measure, results: Path) -> bool:
    try:
        result = cell.finished(results)
    except FedVisageError:
        return False
    return result is not None and (bool(result.get("diverged")) or measure.key in result["scores"])


def _is_at_hand(measure: Measure, data: Path) -> bool:
    """Whether a column can be measured here; a face set that is not there leaves it open, to be measured later."""
    if not measure.data:
        return True
    name = measure.data.partition(":")[0].partition("+")[0]
    drawn = name.startswith(f"@{PREFIX}")
    return drawn or (data / name[1:] if name.startswith("@") else Path(measure.data)).exists()


def _add_own(
    result: dict[str, Any], measures: Sequence[Measure], own: Mapping[str, float | None], folder: Path
) -> None:
    """The run's own scores on its test people."""
    for measure in measures:
        result["scores"][measure.key] = _share(measure, own)
    told = [measure for measure in measures if result["scores"][measure.key] is not None]
    if told:
        found = test_influences(folder, [measure.metric for measure in told], told[0].of)
        result.setdefault("people", {}).update({measure.key: found[measure.metric] for measure in told})


def _add(result: dict[str, Any], measure: Measure, folder: Path, recipe: Recipe, imported: Path, root: Path) -> None:
    """A score by a protocol, or a loss."""
    if measure.protocol == TRAINING:
        result["scores"][measure.key] = _last_loss(folder, measure.metric)
        return
    on_run = PROTOCOLS[measure.protocol].needs_run
    data = Data(folder if on_run else Path(_located(measure.data, recipe.faces.size, imported, root)))
    subject = open_subject(str(folder))
    if measure.of == "start" and not on_run:
        subject = Subject(f"the start of {folder}", str(folder), _model=start_model(recipe, folder))
    found = evaluate(measure.protocol, data, subject, _options(measure))
    result["scores"][measure.key] = _share(measure, found.table()["metrics"])
    if measure.metric in found.influence:
        digest = people_digest(found.people or data.faces.names)
        result.setdefault("people", {})[measure.key] = pack(found.influence[measure.metric], digest)
    elif _tells_people(measure):
        result.setdefault("people", {})[measure.key] = NOBODY


def _last_loss(folder: Path, group: str) -> float | None:
    """The training loss of a group's parties, smoothed over the rounds; None where none of them trained."""
    smoothed: float | None = None
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        parties = row.get("parties", {}) if row["phase"] == "train" else {}
        losses = [own["loss"] for party, own in parties.items() if party.rpartition("-")[0] == group]
        if losses:
            loss = fmean(losses)
            smoothed = loss if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
    return None if smoothed is None else round(smoothed, 6)


def _options(measure: Measure) -> Options:
    """How a protocol comes to tell the metric, such as `TAR@0.001 (clean)`."""
    rate = re.match(r"(TAR|TPIR)@([0-9.e-]+)", measure.metric)
    wanted: dict[str, Any] = {"fars" if rate[1] == "TAR" else "fpirs": (float(rate[2]),)} if rate else {}
    pairs = Options().pairs if measure.metric == "accuracy" else 0
    return Options(pairs=pairs, influence=True, which=measure.of or "own", **wanted)  # type: ignore[arg-type]


def _share(measure: Measure, metrics: Mapping[str, float | None]) -> float | None:
    """A measure's share among some metrics; None where the data cannot tell."""
    if measure.metric not in metrics:
        raise FedVisageError(f"{measure.protocol} gives no '{measure.metric}': {nearest(measure.metric, metrics)}")
    value = metrics[measure.metric]
    return None if value is None else round(value, 6)


def _curve(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Scores while training, by the set of people they are on."""
    curve: dict[str, list[dict[str, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["phase"] in (TEST, "validation"):
            curve.setdefault(row.pop("phase"), []).append({name: round(value, 6) for name, value in row.items()})
    return curve


def data_root() -> Path:
    """Where real face sets are looked for."""
    return Path(os.environ.get("FEDVISAGE_DATA", "../shared/data"))


def located(recipe: Recipe, imported: Path, data: Path) -> Recipe:
    """The recipe with every face set `@name` replaced by a folder, imported from the data root unless it is there.

    What frozen stages make of the faces is kept beside them for the other cells.
    """
    sources = recipe.faces.source
    several = (sources,) if isinstance(sources, str) else sources
    folders = tuple(_located(source, recipe.faces.size, imported, data) for source in several)
    found = folders[0] if isinstance(sources, str) else folders
    kept = str(imported / "features") if recipe.backbone.train_from and recipe.backbone.cache else recipe.backbone.cache
    parts = {
        "faces": recipe.faces.model_copy(update={"source": found}),
        "backbone": recipe.backbone.model_copy(update={"cache": kept}),
    }
    return recipe.model_copy(update=parts)


def _located(source: str, size: int, imported: Path, data: Path) -> str:
    if not source.startswith("@"):
        return source
    who, _, own = source[1:].partition("@")
    size = int(own) if own.isdecimal() else size
    name, _, bounds = who.partition(":")
    name, _, standin = name.partition("+")
    drawn = name.startswith(PREFIX)
    name = name.removeprefix(PREFIX)
    folder = imported / ("drawn" if drawn else "") / str(size) / f"{standin}{bounds}" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f"{name}.lock")):
        if not (folder / "faces.json").exists():
            _import(data / name, size, bounds, folder, drawn)
        if standin and standin not in list_names(folder):
            add_lists(folder, standin)
    return str(folder)


def _import(source: Path, size: int, bounds: str, folder: Path, drawn: bool) -> None:
    least, _, most = bounds.partition("-")
    if source.name.startswith(SYNTHETIC):
        _make(source.name.removeprefix(SYNTHETIC), size, folder)
        return
    if drawn:
        draw_set(source.name, size, int(least or 1), int(most) if most else None, folder)
        return
    if not source.is_dir():
        where = f"{source.parent}: say where it is with --data, or in FEDVISAGE_DATA"
        raise FedVisageError(f"no face set '{source.name}' in {where}")
    kind, found = read_source(source, None, None, {})
    people = Selection(size, "array", int(least or 1), int(most) if most else None)
    write_source(found, folder, Report(source.name, kind), people)


def _make(domain: str, size: int, folder: Path) -> None:
    """Synthetic faces of a domain."""
    faces = SyntheticFaces(0, 120, 20, size, domain)
    names = tuple(f"person-{number:03d}" for number in range(120))
    write_faceset(folder, FaceSet(faces, np.asarray(faces.labels), names))
