"""FedGC's Figure 3 in a study: the people whom each row's model takes for most alike, kept with a cell and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvisage.report.people_map import MAP, Alike, alike_figures, read_map
from fedvisage.report.results import Figure
from fedvisage.studies.definition import Study

ALIKE = "alike"
"""The kind of the figure, and its place in a cell's result."""


def kept_alike(folder: Path) -> dict[str, Any] | None:
    """What a cell keeps of a run's map: the pairs, and their images on the plane; None of a run without a map."""
    return read_map(folder).alike.model_dump(mode="json") if (folder / MAP).exists() else None


def drawn_alike(study: Study, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Row by row, from the first seed that kept it: pairs of different seeds are of different people."""
    found: dict[str, Alike] = {}
    for row in study.rows:
        kept = [cell[ALIKE] for cell in results.get(row.name, ()) if cell.get(ALIKE)]
        if kept:
            found[row.label] = Alike.model_validate(kept[0])
    return alike_figures(found)
