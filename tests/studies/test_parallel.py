"""Cells in several processes: the same results, one run for cells that are alike, and a kill in the middle survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.studies import Cell, News, Place, cells, default_jobs, home, run_cells
from fedvisage.studies.parallel import cores

ROUNDS = 6
SCRIPT = """
import sys
from pathlib import Path
from fedvisage.studies import Place, cells, run_cells
if __name__ == "__main__":
    place = Path(sys.argv[1])
    run_cells(cells("fedgc/long", "smoke", [1], place / "studies"), Place(place / "work", place / "results"), jobs=2)
"""


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """A study of three rows with enough rounds to be interrupted."""
    base = (home() / "fedgc" / "_base.toml").read_text()
    folder = tmp_path / "studies" / "fedgc"
    folder.mkdir(parents=True)
    rows = "".join(
        f'[[rows]]\nname = "{name}"\nlabel = "{name}"\n[rows.recipe.training]\nloss = "{name}"\n'
        f"[rows.recipe.federation]\nrounds = {ROUNDS}\n"
        for name in ("softmax", "cosface", "arcface")
    )
    (folder / "long.toml").write_text(f'title = "t"\nsource = "s"\n{rows}{base}')
    return tmp_path


def chosen(place: Path) -> list[Cell]:
    return cells("fedgc/long", "smoke", [1], place / "studies")


def outcome(path: Path) -> dict[str, Any]:
    """What a cell found, without how long it took."""
    found = json.loads(path.read_text())
    return {name: found[name] for name in ("row", "seed", "recipe", "scores", "people", "rounds")}


def test_several_processes_find_what_one_finds_and_alike_cells_run_once(studies: Path) -> None:
    heard: list[News] = []
    several = run_cells([*chosen(studies), *chosen(studies)], Place(studies / "a", studies / "b"), 2, heard.append)
    one = run_cells(chosen(studies), Place(studies / "c", studies / "d"), 1)
    assert [outcome(path) for path in several] == [outcome(path) for path in one]
    assert [news.kind for news in heard if news.kind != "step"].count("started") == 3
    assert [news.cell.row for news in heard if news.kind == "done"] != []
    assert {news.share for news in heard if news.kind == "step"} == {i / ROUNDS for i in range(ROUNDS + 1)}


@pytest.mark.parametrize("order", [1, -1])
def test_rows_that_share_a_recipe_are_trained_once_and_each_is_measured(tmp_path: Path, order: int) -> None:
    """FedFace's start is a row of its own, scored from the same run."""
    rows = [cell for cell in cells("fedface/table-1", "smoke", [1]) if cell.row in ("pre-trained", "fedface")]
    heard: list[News] = []
    (path,) = run_cells(rows[::order], Place(tmp_path / "work", tmp_path / "results"), 1, heard.append)
    scores = json.loads(path.read_text())["scores"]
    assert {key.endswith("of start") for key in scores} == {True, False}
    assert len({news.cell.row for news in heard if news.kind == "done"}) == 2
    assert sum(news.share == 0.5 and news.phase == "train" for news in heard) == 1


def test_failures_are_counted_among_all_that_were_to_be_measured(tmp_path: Path) -> None:
    """Rows that share a recipe fail one by one."""
    rows = [cell for cell in cells("fedface/table-1", "smoke", [1]) if cell.row in ("pre-trained", "fedface")]
    for cell in rows:
        (tmp_path / f"{cell.key}.json").write_text("{")
    with pytest.raises(FedVisageError, match="2 of 2 cells failed"):
        run_cells(rows, Place(tmp_path / "work", tmp_path), 1)


def test_a_study_killed_in_the_middle_goes_on_to_the_same_numbers(studies: Path) -> None:
    (studies / "script.py").write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(studies / "script.py"), str(studies)], cwd=Path.cwd())
    try:
        _wait(lambda: _rounds(studies) >= 3, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _wait(lambda: not _working(studies))
    finished = {path: path.stat().st_mtime_ns for path in (studies / "results").glob("*.json")}
    assert len(finished) < 3
    assert _rounds(studies) >= 3
    resumed = run_cells(chosen(studies), Place(studies / "work", studies / "results"), 2)
    assert all(path.stat().st_mtime_ns == before for path, before in finished.items())
    whole = run_cells(chosen(studies), Place(studies / "c", studies / "d"), 1)
    assert [outcome(path) for path in resumed] == [outcome(path) for path in whole]


def _rounds(place: Path) -> int:
    """Rounds that are on disk, of all cells."""
    files = (place / "work").glob("*/metrics.jsonl")
    return sum(path.read_bytes().count(b'"phase":"train"') for path in files)


def _working(place: Path) -> list[int]:
    """Processes that still hold a file of a cell open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(link).startswith(str(place / "work")) for link in (entry / "fd").iterdir()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _wait(until: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + 120
    while not until():
        assert time.monotonic() < end, "it took too long"
        assert process is None or process.poll() is None, "the study ended before it could be killed"
        time.sleep(0.02)


def test_a_cell_that_fails_leaves_the_others_their_results(studies: Path) -> None:
    path = studies / "studies" / "fedgc" / "long.toml"
    nowhere = '[rows.recipe.faces]\nsource = "nowhere"\n'
    path.write_text(path.read_text().replace('[[rows]]\nname = "arc', nowhere + '[[rows]]\nname = "arc', 1))
    with pytest.raises(FedVisageError, match="1 of 3 cells failed: cosface, seed 1: "):
        run_cells(chosen(studies), Place(studies / "work", studies / "results"), 2)
    assert len(list((studies / "results").glob("*.json"))) == 2


def test_at_paper_scale_cells_run_one_by_one() -> None:
    assert default_jobs(cells("fedgc/table-5", "paper", [1])) == 1
    assert default_jobs(cells("fedgc/table-5", "laptop", [1])) == min(12, cores())
