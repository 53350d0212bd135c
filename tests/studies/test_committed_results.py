"""The finished cells of the repository: all of them are some study's, and none that a page shows is missing."""

from __future__ import annotations

import numpy as np
import pytest
from committed_cells import lacking

from fedvisage.studies import (
    cells,
    chosen_cells,
    list_studies,
    load_results,
    load_study,
    orderings,
    results_home,
    tried_cells,
)

MAIN = ("fedfr/table-1", "fedgc/table-5", "fedface/table-1", "feduda/table-2", "feduda/table-3", "pfm-fv/figure-4a")
SEEDS = (1, 2, 3)
STUDIES = [
    (name, scale) for name in list_studies() for scale in ("laptop", "trained") if scale in load_study(name).scales
]


@pytest.mark.parametrize(("name", "scale"), STUDIES, ids=lambda part: part)
def test_every_study_has_results_on_real_faces(name: str, scale: str) -> None:
    """Main tables over three seeds with all their tries, the others over one at least."""
    assert lacking(name, scale, SEEDS if name in MAIN else SEEDS[:1]) == {}


SILENT = [
    (name, scale)
    for name, scale in STUDIES
    if not load_study(name).is_ours and not load_study(name).disagreements.get(scale)
]


@pytest.mark.parametrize(("name", "scale"), SILENT, ids=lambda part: part)
def test_a_study_that_says_nothing_of_disagreements_reverses_no_order_clearly(name: str, scale: str) -> None:
    """Where a paper's order is clearly reversed, a study says what is known about why."""
    study = load_study(name).at_scale(scale)
    found = orderings(study, scale, load_results(name, scale, results_home()), np.random.default_rng(0))
    assert [f"{one.column}: {one.high} below {one.low}" for one in found if one.clear and not one.agrees] == []


def test_every_result_is_a_cell_of_some_study() -> None:
    known = {cell.key for name, scale in STUDIES for cell in cells(name, scale, SEEDS)}
    known |= {cell.key for name, scale in STUDIES for cell in tried_cells(name, scale, SEEDS)}
    known |= {cell.key for name, scale in STUDIES for cell in chosen_cells(name, scale, SEEDS, results_home())}
    assert {path.stem for path in results_home().glob("*.json")} - known == set()
