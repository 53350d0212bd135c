"""Cells: a row of a study at one scale under one seed, and where the results of finished cells are kept.

A cell is named by the hash of what its recipe says beyond the defaults, so that a setting added later does not orphan
finished cells. Its result holds the whole recipe: where a default has changed since, the cell no longer counts.
With `backbone.start = "@row"` a cell begins with the model of another row under the same seed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedvisage.build import resolve
from fedvisage.config import Recipe, validated
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.method import METHODS, REGULARISERS, WEIGHTINGS, Component
from fedvisage.core.rule import RULES
from fedvisage.report.people_map import Alike
from fedvisage.studies.definition import Measure, home, load_study, merged

MACHINE = {"workers": 0, "timeout": None}
"""Settings that say how a run uses its machine and are no part of what it computes."""
Run = tuple[str, int, str]
"""A row, a seed and a variant."""
NOTHING: Mapping[Run, float] = MappingProxyType({})
NAMES = {"name": "", "description": ""}
PARTS: dict[str, Mapping[str, type[Component]]] = {
    "method": METHODS,
    "weighting": WEIGHTINGS,
    "regulariser": REGULARISERS,
    "aggregation": RULES,
}


class _Part(BaseModel):
    """A part of a cell's file: what must be there and of which kind; there may be more."""

    model_config = ConfigDict(strict=True)


class _People(_Part):
    set: str
    influence: Annotated[str, Field(pattern=r"^(-?\d+( |$))*$")]


class _Weighting(_Part):
    parties: list[str]
    rounds: dict[Annotated[str, Field(pattern=r"^\d+$")], list[float | None]]
    maps: dict[Annotated[str, Field(pattern=r"^\d+$")], list[list[float]]]


class _Chosen(_Part):
    round: int
    by: str
    scores: dict[str, float | None]


class _Environment(_Part):
    processor: str
    cores: int
    python: str
    packages: dict[str, str | None]


class _Result(_Part):
    recipe: str
    seed: int
    settings: dict[str, Any]
    seconds: float
    bytes: float
    scores: dict[str, float | None]
    people: dict[str, _People] = {}
    rounds: dict[str, list[dict[str, float | None]]]
    chosen: _Chosen | None = None
    weighting: _Weighting | None = None
    alike: Alike | None = None
    diverged: str = ""
    environment: _Environment


@dataclass(frozen=True)
class Cell:
    """A row of a study at one scale under one seed."""

    study: str
    scale: str
    row: str
    seed: int
    recipe: Recipe
    home: Path
    variant: str = ""
    start: Cell | None = None
    """The cell whose model it begins with."""
    tried: bool = False
    """One of several tries: the score on validation people is all that is asked of it, until it is chosen."""

    @property
    def measures(self) -> list[Measure]:
        """What its study asks of it, column by column."""
        return [] if self.tried else list(load_study(self.study, self.home).measures(self.scale, self.row).values())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the result."""
        return self._bare().model_dump(mode="json", exclude_none=True)

    @cached_property
    def key(self) -> str:
        """What names the cell's result: the settings that are not the defaults."""
        said = self._bare().model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for part, registry in PARTS.items():
            if part == "aggregation" and part not in said:
                continue  # cells from before there were rules have none
            table = dict(said.get(part, {}))
            if table.get("name") in registry:
                fields = registry[table["name"]].model_fields
                known = {name: _plain(field.default) for name, field in fields.items()}
                table = {name: value for name, value in table.items() if name == "name" or known.get(name) != value}
            said[part] = table
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def _bare(self) -> Recipe:
        federation = self.recipe.federation.model_copy(update=MACHINE)
        evaluation = self.recipe.evaluation.model_copy(update={"choose": ""})  # what is kept beside the result
        bare = self.recipe.model_copy(update=NAMES | {"federation": federation, "evaluation": evaluation})
        return _with_start(bare, f"@{self.start.key}") if self.start else bare

    def finished(self, results: Path) -> dict[str, Any] | None:
        """The cell's result, unless it is missing or was made under other defaults."""
        path = results / f"{self.key}.json"
        found = read_result(path) if path.exists() else None
        return found if found and not differences(found.get("settings", {}), self.settings) else None


def _plain(default: Any) -> Any:
    """A default as JSON has it."""
    return list(default) if isinstance(default, tuple) else default


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """Settings that both tables have, with different values."""
    found = []
    for name in before.keys() & now.keys():
        one, other = before[name], now[name]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{path}{name}.")
        elif one != other:
            found.append(path + name)
    return sorted(found)


def results_home() -> Path:
    """Where finished cells are kept: with the studies in a source tree, else with the runs."""
    return home() / "results" if home().name == "studies" else Path("runs/studies/results")


def cells(
    name: str,
    scale: str,
    seeds: Iterable[int],
    folder: Path | None = None,
    rates: Mapping[Run, float] = NOTHING,
) -> list[Cell]:
    """All cells of a study: every row in every variant under every seed; `rates` multiplies learning rates by run."""
    folder = folder or home()
    study = load_study(name, folder)
    if scale not in study.scales:
        raise FedVisageError(f"study '{name}' has no scale '{scale}': {nearest(scale, study.scales)}")
    found = []
    for seed, variant in itertools.product(seeds, study.variants):
        made: dict[str, Cell] = {}
        for row in study.rows:
            own = (row.recipe, row.at.get(scale, {}), {"seed": seed, "name": f"{name}/{row.name}"})
            table = merged(study.recipe, study.scales[scale], variant.recipe, *own)
            recipe = resolve(validated(Recipe, table, f"study '{name}', row '{row.name}'"))
            recipe = _at_rate(recipe, rates.get((row.name, seed, variant.name), 1.0))
            made[row.name] = Cell(name, scale, row.name, seed, recipe, folder, variant.name)
        found += [_started(cell, made) for cell in made.values()]
    return found


def _started(cell: Cell, others: Mapping[str, Cell]) -> Cell:
    """The cell with the row that `backbone.start = "@row"` names; that row itself begins with nothing."""
    start = cell.recipe.backbone.start or ""
    if not start.startswith("@"):
        return cell
    if start[1:] == cell.row:
        return replace(cell, recipe=_with_start(cell.recipe, None))
    if start[1:] not in others:
        hint = nearest(start[1:], others)
        raise FedVisageError(f"study '{cell.study}', row '{cell.row}' starts from no row of it: {hint}")
    return replace(cell, start=_started(others[start[1:]], others))


def _at_rate(recipe: Recipe, factor: float) -> Recipe:
    rate = float(f"{factor * recipe.training.learning_rate:.6g}")
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"learning_rate": rate})})


def _with_start(recipe: Recipe, start: str | None) -> Recipe:
    return recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": start})})


def read_result(path: Path) -> dict[str, Any]:
    """A finished cell's result."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _Result.model_validate(found)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
    except (OSError, ValueError) as error:
        what = str(error)
    raise FedVisageError(f"{path} is damaged ({what}): remove it and run the study again")
