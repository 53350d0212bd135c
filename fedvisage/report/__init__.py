"""The self-contained page of a run."""

from pathlib import Path


def write_report(folder: Path) -> Path:
    """Write report.html from the files of a run folder."""
    return folder / "report.html"
