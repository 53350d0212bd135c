"""What the finished cells of a study say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.core.errors import FedVisageError
from fedvisage.studies.cells import read_result
from fedvisage.studies.definition import Study, load_study, of_model
from fedvisage.studies.tries import chosen_cells

CELL = re.compile("[0-9a-f]{16}")
"""What the file of a cell is called; other files may lie beside them."""


def load_results(
    name: str, scale: str, results: Path, seeds: Iterable[int] | None = None, folder: Path | None = None
) -> dict[str, list[Any]]:
    """The finished cells of a study by row, in the order of their seeds; of all seeds that there are by default."""
    if not results.is_dir():
        raise FedVisageError(
            f"no folder of finished cells {results}: run the study, or say where they are with --results"
        )
    if seeds is None:
        seeds = sorted(
            {read_result(path)["seed"] for path in sorted(results.glob("*.json")) if CELL.fullmatch(path.stem)}
        )
    found: dict[str, list[Any]] = {}
    of = {row.name: row.of for row in load_study(name, folder).rows}
    for cell in chosen_cells(name, scale, seeds, results, folder):
        result = cell.finished(results)
        if result is not None:
            result |= {"scores": {}, "rounds": {}} if result.get("diverged") else {}
            own = _seen_as(result, of[cell.row]) if of[cell.row] else result
            found.setdefault(cell.row, []).append({**own, "variant": cell.variant})
    return found


def seeds_of(finished: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[int]:
    """The seeds that there are results of; the first where there are none yet."""
    return sorted({result["seed"] for of in finished.values() for result in of}) or [1]


def diverging(study: Study, scale: str, finished: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    """Rows without a model at the end: the study says so, or their runs found out."""
    known = {row.name for row in study.rows if row.diverges(scale)}
    return known | {row for row, of in finished.items() if any(result.get("diverged") for result in of)}


def _seen_as(result: Mapping[str, Any], of: str) -> dict[str, Any]:
    """A result with the scores of another of the run's models in the place of its own; curves are of the latter."""
    end = f" {of_model(of)}"

    def of_it(part: Mapping[str, Any]) -> dict[str, Any]:
        return {key.removesuffix(end): value for key, value in part.items() if key.endswith(end)}

    chosen = result.get("chosen") or {}
    parts: dict[str, Any] = {part: of_it(result.get(part, {})) for part in ("scores", "people")}
    own = {**chosen, "scores": of_it(chosen.get("scores", {}))}
    return {**result, **parts, "chosen": own, "rounds": {}, "of": of}
