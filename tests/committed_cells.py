"""What the repository's finished cells lack of what their studies show."""

from __future__ import annotations

from collections.abc import Sequence

from fedvisage.studies import chosen_cells, load_study, results_home, tried_cells


def lacking(name: str, scale: str, seeds: Sequence[int]) -> dict[tuple[str, int, str], list[str]]:
    """By row, seed and variant: scores that are not there, of all tries and of what was chosen among them."""
    lost = {row.name for row in load_study(name).rows if row.diverges(scale)}
    asked = [*tried_cells(name, scale, seeds), *chosen_cells(name, scale, seeds, results_home())]
    found: dict[tuple[str, int, str], list[str]] = {}
    for cell in (cell for cell in asked if cell.row not in lost):
        result = cell.finished(results_home())
        wanted = {measure.key for measure in cell.measures}
        known = wanted if result and result.get("diverged") else (result or {}).get("scores", {}).keys()
        missing = ["all of them"] if result is None else sorted(wanted - known)
        if missing:
            found[cell.row, cell.seed, cell.variant] = missing
    return found
