"""Studies: a paper's table or figure as a set of recipes, at several scales, with the paper's numbers beside ours.

A study is a TOML file below `studies/`: a recipe that all its rows share, what each scale changes of it (`laptop`,
`paper`, and `smoke` for a few steps), and the rows, each with what it changes and what the paper reports for it. A cell
is a row with a seed. It runs once, as an ordinary run; its scores are a small JSON file under the hash of its recipe:
a finished cell is not run again, and a cell that two studies share is trained once.

A face set written `@name` is the folder `name` below the data root, imported at the recipe's size when first used.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from pydantic import Field

from fedvisage.build import resolve
from fedvisage.config import Recipe, Section, read_toml, to_toml, validated
from fedvisage.core.codec import write_atomically
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.importing import Report, Selection, read_source, write_source
from fedvisage.federation import Event
from fedvisage.pipeline import EVALUATION, run
from fedvisage.privacy import read_ledger
from fedvisage.protocols import PROTOCOLS, Data, Options, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.runfolder import environment
from fedvisage.scoring import headline

TEST = "test"
SCALES = ("laptop", "paper", "smoke")
BASE = "_base.toml"
"""Beside the studies of a paper: what they have in common."""
MACHINE = {"workers": 0, "timeout": None}
"""Settings that say how a run uses its machine and are no part of what it computes."""


class Measure(Section):
    """What a column is measured by at some scale."""

    what: str
    """In words: on whom, and what it stands for."""
    metric: str = "accuracy"
    """`accuracy`, or a rate such as `tar@0.01`; a protocol's own name of it, such as `TAR@0.01`."""
    protocol: str = TEST
    """The run's own test people, or a protocol of `fedvisage evaluate`."""
    data: str = ""
    """The face set of the protocol: a folder, or `@name` at the data root."""

    @property
    def key(self) -> str:
        """Its name in a cell's result."""
        return " ".join(part for part in (self.protocol, self.data, self.metric) if part)


class Column(Section):
    """A number of the table: what the paper calls it, and what it is measured by at each scale."""

    name: str
    by: Mapping[str, Measure]


class Row(Section):
    """A line of the table."""

    name: str
    label: str
    group: str = ""
    """Rows of one group are compared with each other."""
    recipe: Mapping[str, Any] = Field(default_factory=dict)
    paper: Mapping[str, float] = Field(default_factory=dict)
    """The paper's numbers by column, in percent."""
    note: str = ""


class Study(Section):
    """A table or figure."""

    title: str
    source: str
    note: str = ""
    columns: tuple[Column, ...]
    recipe: Mapping[str, Any] = Field(default_factory=dict)
    scales: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Cell:
    """A row of a study at one scale under one seed."""

    study: str
    scale: str
    row: str
    seed: int
    recipe: Recipe
    home: Path

    @property
    def key(self) -> str:
        """What names the cell's result: everything that determines it."""
        federation = self.recipe.federation.model_copy(update=MACHINE)
        bare = self.recipe.model_copy(update={"name": "", "description": "", "federation": federation})
        return sha256(to_toml(bare).encode()).hexdigest()[:16]


def home() -> Path:
    """The folder of studies: beside the package in a source tree, inside it when installed."""
    package = Path(__file__).parent
    return next(place for place in (package.parent / "studies", package / "study_files") if place.is_dir())


def results_home() -> Path:
    """Where finished cells are kept: with the studies in a source tree, else with the runs."""
    return home() / "results" if home().name == "studies" else Path("runs/studies/results")


def list_studies(folder: Path | None = None) -> list[str]:
    """Names of the studies, such as `fedgc/table-5`."""
    folder = folder or home()
    paths = (path for path in folder.glob("*/*.toml") if path.name != BASE)
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in paths)


def load_study(name: str, folder: Path | None = None) -> Study:
    """The study `name`."""
    folder = folder or home()
    known = list_studies(folder)
    if name not in known:
        raise FedVisageError(f"no study '{name}': {nearest(name, known)}")
    path = folder / f"{name}.toml"
    base = path.with_name(BASE)
    table = merged(read_toml(base) if base.exists() else {}, read_toml(path))
    study = validated(Study, table, f"study '{name}'")
    unknown = [scale for scale in study.scales if scale not in SCALES]
    if unknown:
        raise FedVisageError(f"study '{name}': unknown scale '{unknown[0]}': {nearest(unknown[0], SCALES)}")
    return study


def cells(name: str, scale: str, seeds: Iterable[int], folder: Path | None = None) -> list[Cell]:
    """All cells of a study: every row under every seed."""
    folder = folder or home()
    study = load_study(name, folder)
    if scale not in study.scales:
        raise FedVisageError(f"study '{name}' has no scale '{scale}': {nearest(scale, study.scales)}")
    found = []
    for seed in seeds:
        for row in study.rows:
            table = merged(study.recipe, study.scales[scale], row.recipe, {"seed": seed, "name": f"{name}/{row.name}"})
            recipe = resolve(validated(Recipe, table, f"study '{name}', row '{row.name}'"))
            found.append(Cell(name, scale, row.name, seed, recipe, folder))
    return found


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, the later ones on top; a part that is named anew is replaced whole."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            below = result.get(key)
            whole = key in ("method", "weighting", "regulariser") and "name" in value
            result[key] = merged(below, value) if isinstance(below, dict) and not whole else value
    return result


def run_cell(
    cell: Cell, work: Path, results: Path, data: Path | None = None, watch: Callable[[Event], None] = lambda event: None
) -> Path:
    """Run and score a cell as far as that is not done, going on where an earlier try was interrupted; the result."""
    path, folder = results / f"{cell.key}.json", work / cell.key
    study = load_study(cell.study, cell.home)
    measures = [column.by[cell.scale] for column in study.columns if cell.scale in column.by]
    result = json.loads(path.read_text("utf-8")) if path.exists() else {}
    root = data or data_root()
    known = result.get("scores", {})
    missing = [measure for measure in measures if measure.key not in known and _is_at_hand(measure, root)]
    if result and not missing:
        return path
    begin = time.monotonic()
    recipe = located(cell.recipe, work / "data", root).model_copy(update={"name": cell.key})
    done = run(recipe, out=folder, resume=(folder / "recipe.toml").exists(), watch=watch)
    result = result or {
        "study": cell.study,
        "scale": cell.scale,
        "row": cell.row,
        "seed": cell.seed,
        "recipe": cell.key,
        "seconds": round(time.monotonic() - begin, 1),
        "bytes": sum(row.get("bytes", 0) for row in read_ledger(folder / "ledger.jsonl")),
        "scores": {},
        "rounds": _curve(folder),
        "test": json.loads((folder / EVALUATION).read_text())["test"],
        "environment": environment(),
    }
    own = headline(done.scores.get(cell.recipe.method["name"], {"tar": {}}))
    for measure in missing:
        result["scores"][measure.key] = _measured(measure, own, folder, recipe.faces.size, work / "data", root)
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [(json.dumps(result, indent=1) + "\n").encode()])
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return path


def _is_at_hand(measure: Measure, data: Path) -> bool:
    """Whether a column can be measured here; a face set that is not there leaves it open, to be measured later."""
    if not measure.data:
        return True
    return (data / measure.data[1:] if measure.data.startswith("@") else Path(measure.data)).exists()


def _measured(
    measure: Measure, own: Mapping[str, float], folder: Path, size: int, imported: Path, data: Path
) -> float | None:
    """A share, from the run's own scores or by a protocol; None where the data cannot tell."""
    if measure.protocol == TEST:
        metrics: Mapping[str, float | None] = own
    else:
        place = folder if PROTOCOLS[measure.protocol].needs_run else Path(_located(measure.data, size, imported, data))
        options = Options() if measure.metric == "accuracy" else Options(pairs=0)
        metrics = evaluate(measure.protocol, Data(place), open_subject(str(folder)), options).table()["metrics"]
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
    """The recipe with every face set `@name` replaced by a folder, imported from the data root unless it is there."""
    sources = recipe.faces.source
    several = (sources,) if isinstance(sources, str) else sources
    folders = tuple(_located(source, recipe.faces.size, imported, data) for source in several)
    found = folders[0] if isinstance(sources, str) else folders
    return recipe.model_copy(update={"faces": recipe.faces.model_copy(update={"source": found})})


def _located(source: str, size: int, imported: Path, data: Path) -> str:
    if not source.startswith("@"):
        return source
    name = source[1:]
    folder = imported / str(size) / name
    if (folder / "faces.json").exists():
        return str(folder)
    if not (data / name).is_dir():
        raise FedVisageError(f"no face set '{name}' in {data}: say where it is with --data, or in FEDVISAGE_DATA")
    kind, found = read_source(data / name, None, None, {})
    write_source(found, folder, Report(name, kind), Selection(size=size, store="array"))
    return str(folder)


def load_results(name: str, scale: str, results: Path, seeds: Iterable[int] = range(1, 100)) -> dict[str, list[Any]]:
    """The finished cells of a study by row."""
    found: dict[str, list[Any]] = {}
    if not results.is_dir():
        return found
    for cell in cells(name, scale, seeds):
        path = results / f"{cell.key}.json"
        if path.exists():
            found.setdefault(cell.row, []).append(json.loads(path.read_text("utf-8")))
    return found


class Entry(NamedTuple):
    """Our number for a row and column, in percent: mean and spread over seeds, last round and chosen round."""

    seeds: int
    mean: float
    spread: float
    chosen: float
    """Mean at the rounds that were best on the validation people; NaN where there were none."""


def table(study: Study, scale: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Entry]]:
    """Our numbers by row and column, as far as cells are finished."""
    measures = {column.name: column.by[scale] for column in study.columns if scale in column.by}
    return {
        row: {column: _entry(finished, measure) for column, measure in measures.items()}
        for row, finished in results.items()
    }


def _entry(results: Sequence[Mapping[str, Any]], measure: Measure) -> Entry:
    scores = [result["scores"].get(measure.key) for result in results]
    last = [math.nan if score is None else 100 * score for score in scores]
    metric = measure.metric if measure.protocol == TEST else ""
    chosen = [best for result in results if (best := _at_best(result, metric)) is not None]
    spread = stdev(last) if len(last) > 1 else math.nan
    return Entry(len(last), mean(last), spread, mean(chosen) if len(chosen) == len(last) else math.nan)


def _at_best(result: Mapping[str, Any], metric: str) -> float | None:
    """The test score of the round that the validation people liked best."""
    curves = result["rounds"]
    if not metric or not curves.get("validation") or not curves.get(TEST):
        return None
    best = max(curves["validation"], key=lambda row: row.get(metric, -math.inf))
    return next((100 * row[metric] for row in curves[TEST] if row["round"] == best["round"]), None)


def orderings(study: Study, numbers: Mapping[str, Mapping[str, Entry]]) -> list[dict[str, Any]]:
    """Each pair of rows of a group that the paper orders, column by column, and whether ours are in that order.

    `clear` says whether the difference of the means exceeds the spread over seeds of both rows together.
    """
    found = []
    for column in study.columns:
        rows = [
            row
            for row in study.rows
            if column.name in row.paper
            and column.name in numbers.get(row.name, {})
            and not math.isnan(numbers[row.name][column.name].mean)
        ]
        for i, one in enumerate(rows):
            for other in rows[i + 1 :]:
                theirs = one.paper[column.name] - other.paper[column.name]
                if one.group != other.group or not theirs:
                    continue
                a, b = numbers[one.name][column.name], numbers[other.name][column.name]
                low, high = (one, other) if theirs < 0 else (other, one)
                ours = (a.mean - b.mean) * (1 if theirs > 0 else -1)
                spread = math.hypot(a.spread, b.spread)
                found.append(
                    {
                        "column": column.name,
                        "low": low.name,
                        "high": high.name,
                        "paper": abs(theirs),
                        "ours": ours,
                        "spread": spread,
                        "agrees": ours > 0,
                        "clear": abs(ours) > spread,
                    }
                )
    return found
