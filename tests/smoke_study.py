"""A study at its smallest scale: its cells, and its page made of their files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from page_reader import Page

from fedvisage.studies import cells, run_cell, write_study


def ran(name: str, folder: Path, seeds: tuple[int, ...] = (1,)) -> tuple[list[dict[str, Any]], Page]:
    """The smallest cells of a study, and its page made of their files alone."""
    found = [
        json.loads(run_cell(cell, folder / "work", folder / "results").read_text())
        for cell in cells(name, "smoke", seeds)
    ]
    return found, Page.read(write_study(name, "smoke", folder / "results", folder / "page.html"))


def labels(page: Page) -> list[str]:
    return [str(attributes["aria-label"]) for tag, attributes in page.tags if tag == "svg"]
