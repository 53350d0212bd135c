"""Studies: a paper's table or figure as a set of recipes, at several scales, with the paper's numbers beside ours.

A study is a TOML file below `studies/`: a recipe that all its rows share, what each scale changes of it (`laptop`,
`paper`, `smoke` for a few steps, and for some `trained`: a laptop's scale from a network trained elsewhere), and the
rows, each with what it changes and what the paper reports for it. A cell is a row with a seed. It runs once, as an
ordinary run; its scores are a small JSON file under the hash of its recipe: a finished cell is not run again, and a
cell that two studies share is trained once.
"""

from __future__ import annotations

from fedvisage.studies.cells import Cell, cells, differences, results_home
from fedvisage.studies.definition import (
    SCALES,
    Claim,
    Column,
    Figure,
    Measure,
    Row,
    Study,
    home,
    list_studies,
    load_study,
    merged,
)
from fedvisage.studies.numbers import Entry, Ordering, agreement, orderings, table, uneven
from fedvisage.studies.page import explained, rate_words, summary, unchosen, write_study
from fedvisage.studies.parallel import News, Place, default_jobs, run_cells
from fedvisage.studies.results import diverging, load_results, seeds_of
from fedvisage.studies.running import run_cell
from fedvisage.studies.sets import data_root, located
from fedvisage.studies.tries import Choice, choices, chosen_cells, tried_cells

__all__ = [
    "SCALES",
    "Cell",
    "Choice",
    "Claim",
    "Column",
    "Entry",
    "Figure",
    "Measure",
    "News",
    "Ordering",
    "Place",
    "Row",
    "Study",
    "agreement",
    "cells",
    "choices",
    "chosen_cells",
    "data_root",
    "default_jobs",
    "differences",
    "diverging",
    "explained",
    "home",
    "list_studies",
    "load_results",
    "load_study",
    "located",
    "merged",
    "orderings",
    "rate_words",
    "results_home",
    "run_cell",
    "run_cells",
    "seeds_of",
    "summary",
    "table",
    "tried_cells",
    "unchosen",
    "uneven",
    "write_study",
]
