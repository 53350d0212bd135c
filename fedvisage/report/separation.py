"""The figures of a server regulariser: how far apart the class embeddings of different parties' people are."""

from __future__ import annotations

from fedvisage.report import charts
from fedvisage.report.folder import RunFiles
from fedvisage.report.results import Figure, over_rounds

COSINES = {
    "across_cosine_p99": ("The closest hundredth, across parties", "tone-method"),
    "across_cosine": ("Mean across parties", "tone-other-0"),
    "within_cosine": ("Mean within parties", "tone-other-1"),
}
STEP = {"relative_step": ("Length of the step", "tone-method")}


def separation_figures(run: RunFiles) -> list[Figure]:
    """Cosines and the length of the server's step over rounds; nothing where no class embeddings were moved."""
    cosines, steps = _lines(run, COSINES), _lines(run, STEP)
    figures = []
    if cosines:
        caption = (
            "Of pairs of people, after the server's step. High cosines across parties are people who look alike to it."
        )
        figures.append(over_rounds("Cosines of class embeddings", cosines, caption, False))
    if steps:
        caption = "How far the server moved all class embeddings together, as a share of their length."
        figures.append(over_rounds("The server's step", steps, caption, True))
    return figures


def _lines(run: RunFiles, names: dict[str, tuple[str, str]]) -> list[charts.Line]:
    curves = {name: charts.finite(run.metrics.curves.get(("train", name), ())) for name in names}
    return [charts.Line(*names[name], points) for name, points in curves.items() if len(points) > 1]
