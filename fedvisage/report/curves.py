"""The ROC and DET curves of the scored models, false accept rates on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence

from fedvisage.report import charts
from fedvisage.report.results import Figure, legend_of
from fedvisage.report.words import Model, listed, percent


def rate_curves(models: Sequence[Model]) -> list[Figure]:
    """Both curves of every model whose scores have them."""
    curves = [(model, [(far, tar) for far, tar in model.score.roc if far > 0]) for model in models]
    curves = [(model, points) for model, points in curves if len(points) > 1]
    if not curves:
        return []
    roc = [charts.Line(model.label, model.tone, points) for model, points in curves]
    errors = [(model, [(far, 1 - tar) for far, tar in points if tar < 1]) for model, points in curves]
    det = [charts.Line(model.label, model.tone, points) for model, points in errors if len(points) > 1]
    figures = [_figure("ROC: genuine pairs accepted", roc, "true accept rate", False)]
    if det:
        figures.append(_figure("DET: genuine pairs refused", det, "false reject rate", True))
    return figures


def _figure(title: str, lines: Sequence[charts.Line], what: str, log: bool) -> Figure:
    ends = listed([f"{line.label} from {percent(line.points[0][1], 1)}" for line in lines])
    words = f"{title}: {what} over false accept rate. At the strictest rate: {ends}."
    svg = charts.line_chart(lines, "false accept rate", words, True, True, log)
    caption = "Both axes are logarithmic; nearer to the lower left corner is better." if log else ""
    caption = caption or "Nearer to the upper left corner is better."
    return Figure(title, svg, caption, legend_of(lines))
