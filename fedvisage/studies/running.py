"""A cell put to work: an ordinary run, its scores by every column's measure, and a small JSON file."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedvisage.build import build_parts, start_model
from fedvisage.chosen import CHOSEN, chosen_round
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import Diverged, FedVisageError, nearest
from fedvisage.federation import Event
from fedvisage.methods.central import loss_of_domain
from fedvisage.pipeline import EVALUATION, run
from fedvisage.privacy import read_ledger
from fedvisage.protocols import PROTOCOLS, Data, Options, Result, Subject, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.report import run_absences
from fedvisage.runfolder import RunResult, environment
from fedvisage.scoring import headline
from fedvisage.studies.alike import ALIKE, kept_alike
from fedvisage.studies.cells import Cell
from fedvisage.studies.definition import TEST, TRAINING, Measure, load_study
from fedvisage.studies.people import NOBODY, pack, people_digest, test_influences
from fedvisage.studies.sets import alone, data_root, is_at_hand, located, located_set
from fedvisage.studies.weightings import KINDS, SEARCHED, kept_weighting
from fedvisage.training import threads

CLOCK = "seconds"
"""In a cell's run folder: how long earlier, interrupted tries took."""
RULE = "insightface"
"""Studies measure accuracy as the papers do, also where a recipe of its own would take an exact threshold."""
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
    root = data or data_root()
    work.mkdir(parents=True, exist_ok=True)
    with alone(work / f"{cell.key}.lock"):
        result = cell.finished(results) or {}
        if result and not _to_do(cell, result, folder, root):
            return path
        recipe = _put_to_work(cell, work, root, watch, workers)
        clock = _Clock(folder, watch)
        results.mkdir(parents=True, exist_ok=True)
        try:
            done = _trained(cell, recipe, work, clock.watch)
        except Diverged as reason:
            result = _beginning(cell, folder, clock.seconds()) | {"diverged": str(reason)}
            write_atomically(path, [_lines(result).encode()])
            return path
        if not result or not _is_of(result, done, cell):
            result = _beginning(cell, folder, clock.seconds())
        with threads(recipe.federation.threads):
            _score(cell, result, done, _Place(recipe, work / "data", root))
        searched = kept_weighting(folder)
        result |= {SEARCHED: searched} if searched else {}
        result |= {ALIKE: kept_alike(folder)} if _draws(cell) == ALIKE else {}
        write_atomically(path, [_lines(result).encode()])
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return path


def _is_of(result: Mapping[str, Any], done: RunResult, cell: Cell) -> bool:
    """Whether a result is of this run: trained again on another machine, a run may come out otherwise."""
    own = headline(done.scores.get(cell.recipe.method["name"], {"tar": {}}))
    known = result["scores"]
    same = all(known.get(f"{TEST} {name}") in (None, round(value, 6)) for name, value in own.items())
    return same and result["rounds"] == _curve(done.folder)


def _score(cell: Cell, result: dict[str, Any], done: RunResult, place: _Place) -> None:
    """Take all measures that are missing."""
    folder = done.folder
    missing = [measure for measure in cell.measures if _is_missing(measure, result, place.root, folder)]
    scored = "start" if any(measure.of == "start" for measure in missing) else cell.recipe.method["name"]
    own = headline(done.scores.get(scored, {"tar": {}}))
    _add_own(result, [measure for measure in missing if measure.protocol == TEST], own, folder)
    for some in _together(missing):
        _add(result, some, folder, place)
    _add_chosen(result, cell.measures, folder, place)


def is_finished(cell: Cell, work: Path, results: Path, data: Path | None = None) -> bool:
    """Whether there is nothing to train or to score; a damaged result is for `run_cell` to complain of."""
    try:
        result = cell.finished(results)
    except FedVisageError:
        return False
    return result is not None and not _to_do(cell, result, work / cell.key, data or data_root())


def _to_do(cell: Cell, result: Mapping[str, Any], folder: Path, root: Path) -> bool:
    """Whether a result lacks something that its study shows."""
    missing = any(_is_missing(measure, result, root, folder) for measure in cell.measures)
    left = missing or _lacks_figure(cell, result) or _lacks_chosen(cell, result, folder, root)
    return left and not result.get("diverged")


def _put_to_work(cell: Cell, work: Path, root: Path, watch: Watch, workers: int) -> Recipe:
    """The cell's recipe on this machine, after the run of the cell that it begins with."""
    recipe = located(cell.recipe, work / "data", root)
    federation = recipe.federation.model_copy(update={"workers": workers or recipe.federation.workers})
    evaluation = recipe.evaluation.model_copy(update={"choose": _choice(cell, work), "rule": RULE})
    recipe = recipe.model_copy(update={"name": cell.key, "federation": federation, "evaluation": evaluation})
    if cell.start is None:
        return recipe
    with alone(work / f"{cell.start.key}.lock"):
        before = _put_to_work(cell.start, work, root, watch, workers)
        start = str(_trained(cell.start, before, work, watch).model_path)
    return recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": start})})


def _choice(cell: Cell, work: Path) -> str:
    """What the round whose models are kept is chosen by: as a run was begun with, or as the study says."""
    begun = work / cell.key / "recipe.toml"
    if begun.exists():
        return load_recipe(begun).evaluation.choose
    settings = cell.recipe.evaluation
    if not settings.every or build_parts(cell.recipe).method.has_no_global_model:
        return settings.choose
    return settings.choose or load_study(cell.study, cell.home).chooses_by(cell.scale)


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
    missing = [one.table() for one in run_absences(folder)] if (folder / "metrics.jsonl").exists() else []
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
        **({"absences": missing} if missing else {}),
    }


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
    if not is_at_hand(measure, data):
        return False
    known = result.get("scores", {})
    if measure.key not in known:
        return True
    kept = measure.key in result.get("people", {}) or not _tells_people(measure) or known[measure.key] is None
    return not kept and (folder / EVALUATION).exists()


def _lacks_chosen(cell: Cell, result: Mapping[str, Any], folder: Path, root: Path) -> bool:
    """Whether models of a chosen round are at hand that were not scored by all protocols."""
    kept = chosen_round(folder)
    wanted = [measure for measure in cell.measures if _chooses(measure) and is_at_hand(measure, root)]
    return kept is not None and any(measure.key not in _chosen_scores(result, kept) for measure in wanted)


def _chosen_scores(result: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, float | None]:
    """What a result says of the round that a run keeps; nothing where it is of another round."""
    known = result.get(CHOSEN) or {}
    same = all(known.get(name) == kept[name] for name in ("round", "by"))
    return dict(known["scores"]) if same else {}


def _lacks_figure(cell: Cell, result: Mapping[str, Any]) -> bool:
    """Whether the study draws what the result, made for another study, does not hold: a weighting, or a map."""
    drawn = _draws(cell)
    if drawn == ALIKE:
        return ALIKE not in result
    return drawn in KINDS and cell.recipe.weighting.get("name") == "fv" and SEARCHED not in result


def _draws(cell: Cell) -> str:
    """The kind of the study's figure."""
    return load_study(cell.study, cell.home).draws


def _tells_people(measure: Measure) -> bool:
    """Whether a cell can keep what each person did to a score."""
    if measure.protocol == "personal":
        return "clean" in measure.metric
    return measure.protocol in (TEST, "all-pairs", "lfw", "rfw", "own-statistics", "ijb", "megaface")


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


class _Place(NamedTuple):
    """Where a run's recipe finds face sets."""

    recipe: Recipe
    imported: Path
    root: Path


def _together(measures: Iterable[Measure]) -> list[list[Measure]]:
    """Measures by protocols, those together that one evaluation tells; losses one by one."""
    found: dict[tuple[str, ...], list[Measure]] = {}
    for measure in measures:
        if measure.protocol != TEST:
            which = (measure.metric,) if measure.protocol == TRAINING else (measure.data, measure.of)
            found.setdefault((measure.protocol, *which), []).append(measure)
    return list(found.values())


def _add(result: dict[str, Any], measures: Sequence[Measure], folder: Path, place: _Place) -> None:
    """Scores by a protocol, or a loss."""
    if measures[0].protocol == TRAINING:
        result["scores"][measures[0].key] = _last_loss(folder, place.recipe, measures[0].metric)
        return
    data, found = _evaluated(measures, folder, place, influence=True)
    for measure in measures:
        result["scores"][measure.key] = _share(measure, found.table()["metrics"])
        if measure.metric in found.influence:
            digest = people_digest(found.people or data.faces.names)
            result.setdefault("people", {})[measure.key] = pack(found.influence[measure.metric], digest)
        elif _tells_people(measure):
            result.setdefault("people", {})[measure.key] = NOBODY


def _evaluated(measures: Sequence[Measure], models: Path, place: _Place, influence: bool) -> tuple[Data, Result]:
    """Measures by one protocol, of the models in a run's folder or in that of its chosen round."""
    first, recipe = measures[0], place.recipe
    on_run = PROTOCOLS[first.protocol].needs_run
    data = Data(models if on_run else Path(located_set(first.data, recipe.faces.size, place.imported, place.root)))
    subject = open_subject(str(models))
    if first.of == "start" and not on_run:
        subject = Subject(f"the start of {models}", str(models), _model=start_model(recipe, models))
    return data, evaluate(first.protocol, data, subject, options_of(measures, influence))


def _add_chosen(result: dict[str, Any], measures: Iterable[Measure], folder: Path, place: _Place) -> None:
    """Scores by protocols of the models of the round that validation people chose, where they are kept.

    Parties' own models that are trained after the last round have no earlier round.
    """
    kept = chosen_round(folder)
    if kept is None:
        return
    chosen = result[CHOSEN] = {"round": kept["round"], "by": kept["by"], "scores": _chosen_scores(result, kept)}
    later = any(phase.when == "end" for phase in build_parts(place.recipe).method.phases())
    wanted = [measure for measure in measures if _chooses(measure) and is_at_hand(measure, place.root)]
    for some in _together(measure for measure in wanted if measure.key not in chosen["scores"]):
        if later and some[0].protocol == "personal" and some[0].of in ("", "local"):
            chosen["scores"] |= {measure.key: None for measure in some}
        else:
            metrics = _evaluated(some, folder / CHOSEN, place, influence=False)[1].table()["metrics"]
            chosen["scores"] |= {measure.key: _share(measure, metrics) for measure in some}


def _chooses(measure: Measure) -> bool:
    """Whether a measure tells rounds apart, and the learning curve does not have it."""
    return measure.protocol != TEST and measure.of != "start" and is_of_a_round(measure)


def is_of_a_round(measure: Measure) -> bool:
    """Whether a measure is of a model that some round ended with, not of training as a whole."""
    return measure.protocol == TEST or (measure.protocol != TRAINING and PROTOCOLS[measure.protocol].by_round)


def _last_loss(folder: Path, recipe: Recipe, group: str) -> float | None:
    """The training loss of a group's parties, smoothed over the rounds; None where none of them trained.

    Where all are pooled, that of the images of the group's domain.
    """
    own = recipe.partition.groups.get(group)
    domain = loss_of_domain(own.domain if own and own.domain else "")
    smoothed: float | None = None
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        parties = row.get("parties", {}) if row["phase"] == "train" else {}
        losses = [own["loss"] for party, own in parties.items() if party.rpartition("-")[0] == group]
        losses += [own[domain] for own in parties.values() if domain in own]
        if losses:
            loss = fmean(losses)
            smoothed = loss if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
    return None if smoothed is None else round(smoothed, 6)


def options_of(measures: Sequence[Measure], influence: bool = False) -> Options:
    """How a protocol comes to tell some metrics, such as `TAR@0.001 (clean)`."""
    rates = [rate for measure in measures if (rate := re.match(r"(TAR|TPIR)@([0-9.e-]+)", measure.metric))]
    fars, fpirs = (
        tuple(dict.fromkeys(float(rate[2]) for rate in rates if rate[1] == kind)) for kind in ("TAR", "TPIR")
    )
    pairs = Options().pairs if any(measure.metric == "accuracy" for measure in measures) else 0
    which: Any = measures[0].of or "own"
    return Options(fars=fars or None, fpirs=fpirs or None, pairs=pairs, influence=influence, which=which)


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
