"""The files of a run folder as checked data. What is missing or damaged becomes one clear line."""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from fedvisage.core.errors import FedVisageError

LOG_TAIL = 8192
CHOSEN = "chosen/round.json"
WEIGHT = "weight/"
"""How the numbers that are parties' weights begin."""
JOIN, EVALUATE = "join", "evaluate"
KEPT = (JOIN, EVALUATE)
"""Phases whose numbers are kept party by party."""


class Named(BaseModel):
    """A section of the recipe that has a name."""

    name: str


class Network(Named):
    """The recipe's [backbone], as far as the page needs it."""

    start: str | None = None


class Rounds(BaseModel):
    """The recipe's [federation], as far as the page needs it."""

    rounds: int


class Epochs(BaseModel):
    """The recipe's [pretrain], as far as the page needs it."""

    epochs: int = 0


class Recipe(BaseModel):
    """The resolved recipe, as far as the page needs it."""

    name: str
    seed: int
    description: str = ""
    method: Named
    backbone: Network
    federation: Rounds
    pretrain: Epochs = Epochs()
    compare: tuple[str, ...] = ()


class Chosen(BaseModel):
    """The round whose models were kept beside the last."""

    round: int
    by: str
    score: float


class Histogram(BaseModel):
    """Counts of pairs per bin of cosine over [-1, 1]."""

    genuine: tuple[int, ...]
    impostor: tuple[int, ...]

    @model_validator(mode="after")
    def _same_bins(self) -> Histogram:
        if not self.genuine or len(self.genuine) != len(self.impostor):
            raise ValueError("genuine and impostor need the same bins")
        return self


class Score(BaseModel):
    """What one model scored on the test identities."""

    accuracy: float | None = None
    accuracy_std: float | None = None
    tar: dict[str, float] = {}
    histogram: Histogram | None = None
    roc: tuple[tuple[float, float], ...] = ()
    """(false accept rate, true accept rate), from strict to lenient."""
    thresholds: dict[str, float] = {}
    """By false accept rate: the cosine above which a pair is accepted."""
    domains: dict[str, Score] = {}
    parties: dict[str, Score] | None = None
    """Where every party has its own model; the numbers above are then means and spreads over the parties."""
    people: dict[str, Any] | None = None
    """The score that the run's answer rests on, by variant, and what each test person does to it."""


class Evaluation(BaseModel):
    """evaluation.json."""

    models: dict[str, Score]
    test: dict[str, int]
    answer: dict[str, Any] | None = None
    """Whether federating helped; runs of version 0.1 have none."""
    answers: dict[str, dict[str, Any]] = {}
    """The same domain by domain."""
    warnings: tuple[str, ...] = ()
    ended: dict[str, dict[str, Any]] = {}
    """By method, the round after which it ended before the last, and the reason."""


class Images(BaseModel):
    """People nobody or everybody may train on."""

    identities: tuple[str, ...]
    images: tuple[int, ...]


class Share(BaseModel):
    """One party's people and images."""

    role: str
    identities: tuple[str, ...]
    train: tuple[int, ...]
    held_out: tuple[int, ...] = ()


class Partition(BaseModel):
    """partition.json."""

    public: Images
    test: Images
    validation: Images = Images(identities=(), images=())
    parties: dict[str, Share]


class Row(BaseModel, extra="allow"):
    """A line of metrics.jsonl; averages over the parties are extra fields."""

    round: int
    phase: str
    parties: dict[str, dict[str, float]] = {}
    absent: dict[str, str] = {}
    refused: dict[str, str] = {}
    counted: dict[str, float] = {}

    def number(self, name: str) -> float | None:
        """An average of the row, if it has it."""
        value = (self.model_extra or {}).get(name)
        return float(value) if isinstance(value, int | float) else None

    def numbers(self) -> list[str]:
        """Names of the row's averages."""
        return list(self.model_extra or {})


@dataclass
class Metrics:
    """What the page keeps of metrics.jsonl: averages per round, who joined, and the parties' last evaluation."""

    curves: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)
    """By phase and number: (round, value), one point per round."""
    joined: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluated: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluated_round: int = 0
    evaluated_mean: dict[str, float] = field(default_factory=dict)
    maps: dict[int, list[tuple[dict[str, float], float]]] = field(default_factory=dict)
    """By round: weightings of the parties with their validation scores."""
    absent: dict[tuple[int, str, str], list[str]] = field(default_factory=dict)
    """Why answers are missing, by round, phase and party; more than one where a phase repeats in a round."""
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many answers counted, by phase and party."""
    kinds: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    """Kinds of refusals, by phase and party."""

    def add(self, row: Row) -> None:
        """Take one more row."""
        for name in row.numbers():
            value = row.number(name)
            if value is not None:
                points = self.curves.setdefault((row.phase, name), [])
                if points and points[-1][0] == row.round:
                    points.pop()
                points.append((row.round, value))
        score = row.number("score")
        if row.phase == "survey" and score is not None:
            weights = {name: row.number(name) or 0.0 for name in row.numbers() if name.startswith(WEIGHT)}
            mixed = {name.removeprefix(WEIGHT): weight for name, weight in weights.items()}
            self.maps.setdefault(row.round, []).append((mixed, score))
        for party, reason in row.absent.items():
            self.absent.setdefault((row.round, row.phase, party), []).append(reason)
        for party, kind in row.refused.items():
            self.kinds.setdefault((row.phase, party), Counter())[kind] += 1
        if row.phase == JOIN:
            self.joined |= row.parties
        if row.phase == EVALUATE:
            self.evaluated, self.evaluated_round = row.parties, row.round
            means = {name: row.number(name) for name in row.numbers() if name.endswith("_rank1")}
            self.evaluated_mean = {name: value for name, value in means.items() if value is not None}


@dataclass(frozen=True)
class RunFiles:
    """Everything the page is made of, except the ledger, which is streamed."""

    folder: Path
    recipe: Recipe
    recipe_text: str
    environment: dict[str, Any]
    partition: Partition
    metrics: Metrics
    evaluation: Evaluation
    compared: dict[str, Metrics]
    failures: str
    """The end of failures.log."""
    chosen: Chosen | None
    """Where validation people chose a round."""


def read_run(folder: Path) -> RunFiles:
    """Read a run folder; a FedVisageError names the file that is missing or damaged."""
    text = _text(folder, "recipe.toml")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedVisageError(f"{folder / 'recipe.toml'} is damaged: {error}") from None
    recipe = _checked(Recipe, table, folder / "recipe.toml")
    environment = _json(folder, "environment.json")
    if not isinstance(environment, dict):
        raise FedVisageError(f"{folder / 'environment.json'} is damaged: a table was expected")
    return RunFiles(
        folder=folder,
        recipe=recipe,
        recipe_text=text,
        environment=environment,
        partition=_checked(Partition, _json(folder, "partition.json"), folder / "partition.json"),
        metrics=read_metrics(existing(folder, "metrics.jsonl")),
        evaluation=_checked(Evaluation, _json(folder, "evaluation.json"), folder / "evaluation.json"),
        compared={path.parent.name: read_metrics(path) for path in _compared(folder, recipe.compare)},
        failures=_tail(folder / "failures.log"),
        chosen=_checked(Chosen, _json(folder, CHOSEN), folder / CHOSEN) if (folder / CHOSEN).exists() else None,
    )


def existing(folder: Path, name: str) -> Path:
    """The path of a file that every finished run has."""
    path = folder / name
    if path.is_file():
        return path
    if name == "recipe.toml" or not (folder / "recipe.toml").is_file():
        raise FedVisageError(f"no run in {folder}: recipe.toml is missing")
    raise FedVisageError(f"the run in {folder} is not finished: {name} is missing; go on with it by --resume")


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers, one at a time."""
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("a table was expected")
                yield number, row
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise damaged_line(path, number, error) from None


def damaged_line(path: Path, number: int, error: Exception) -> FedVisageError:
    """What to say of a line that is not as a run writes it."""
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return FedVisageError(f"{path} is damaged: line {number}: {why}")


def read_metrics(path: Path) -> Metrics:
    """Stream a metrics.jsonl."""
    metrics = Metrics()
    for number, table in read_lines(path):
        phase, parties = table.get("phase"), table.get("parties")
        if isinstance(parties, dict):
            metrics.counted.update((str(phase), party) for party in parties)
        if phase not in KEPT:
            table.pop("parties", None)
        metrics.add(_checked(Row, table, path, f"line {number}: "))
    return metrics


Model = TypeVar("Model", bound=BaseModel)


def _checked(model: type[Model], table: Any, path: Path, where: str = "") -> Model:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FedVisageError(f"{path} is damaged: {where}{place + ': ' if place else ''}{first['msg']}") from None


def _text(folder: Path, name: str) -> str:
    path = existing(folder, name)
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FedVisageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FedVisageError(f"{path} is damaged: {error}") from None


def _json(folder: Path, name: str) -> Any:
    text = _text(folder, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FedVisageError(f"{folder / name} is damaged: {error}") from None


def _compared(folder: Path, order: Sequence[str]) -> list[Path]:
    """The metrics of the comparisons that are there, in the recipe's order."""
    found = [path for path in sorted((folder / "compare").glob("*/metrics.jsonl")) if path.parent.name in order]
    return sorted(found, key=lambda path: order.index(path.parent.name))


def _tail(path: Path) -> str:
    """The last lines of a log, nothing where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if size <= LOG_TAIL else "…\n" + text.split("\n", 1)[-1]
