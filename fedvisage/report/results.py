"""The scored models of a run: how the page names them, compares them and draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedvisage.report import charts
from fedvisage.report.folder import Histogram, Metrics, RunFiles, Score
from fedvisage.report.words import Model, decimal, listed, number, percent, plural

START, ALONE, CENTRAL = "start", "alone", "central"
RANKS = {"global_rank1": "Global model", "local_rank1": "Local model", "personal_rank1": "Personal model"}
RANK_TONES = {"global_rank1": "tone-method", "local_rank1": "tone-other-0", "personal_rank1": "tone-other-1"}
OTHER_TONES = 3
SINGLE_PARTIES = 200
"""At most this many parties are drawn one by one behind their mean."""


@dataclass(frozen=True)
class Figure:
    """A drawing with what belongs around it."""

    title: str
    svg: str
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """Labels with their tones."""


@dataclass(frozen=True)
class ComparedRow:
    """A line of the comparison table."""

    model: Model
    own: bool
    accuracy: str
    spread: str
    tars: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """The comparison table and its figures."""

    fars: Sequence[str]
    rows: Sequence[ComparedRow]
    figures: Sequence[Figure]
    over_parties: bool
    """Some ± is over parties rather than folds."""
    has_accuracy: bool
    impostors: str
    unresolved: bool


def scored_models(run: RunFiles) -> list[Model]:
    """Every model of evaluation.json, in its order."""
    others = [name for name in run.evaluation.models if name not in (START, run.recipe.method.name, ALONE, CENTRAL)]
    return [_model(run, name, score, others) for name, score in run.evaluation.models.items()]


def subject(method: str) -> str:
    """The run's own model at the beginning of a sentence."""
    known = {ALONE: "A party training alone", CENTRAL: "The model trained on all images pooled"}
    return known.get(method, "The federated model")


def _model(run: RunFiles, name: str, score: Score, others: Sequence[str]) -> Model:
    if name == START:
        public = len(run.partition.public.identities)
        note = f"begins as {run.recipe.backbone.start}" if run.recipe.backbone.start else "untrained"
        if run.recipe.pretrain.epochs and public:
            note = f"trained on {plural(public, 'public identity', 'public identities')}"
        return Model(name, "Start model", note, "tone-start", score, "the start model")
    means = f"mean of {plural(len(score.parties), 'party', 'parties')}, each its own model" if score.parties else ""
    own = name == run.recipe.method.name
    if name in (ALONE, CENTRAL):
        labels = {
            ALONE: ("A party alone", means or "no sharing", "a party alone"),
            CENTRAL: ("All images pooled", "every party's images in one place", "pooling all images"),
        }
        label, note, versus = labels[name]
        return Model(name, label, note, "tone-method" if own else f"tone-{name}", score, versus)
    if own:
        return Model(name, f"Federated: {name}", means or "this run's model", "tone-method", score, name)
    tone = f"tone-other-{others.index(name) % OTHER_TONES}"
    return Model(name, f"Federated: {name}", means or "for comparison", tone, score, name)


def compare(run: RunFiles, models: Sequence[Model]) -> Comparison | None:
    """Models by accuracy and TAR at each FAR; None where nothing was tested."""
    if not models:
        return None
    fars = sorted({far for model in models for far in model.score.tar}, key=float, reverse=True)
    rows = [
        ComparedRow(
            model,
            model.name == run.recipe.method.name,
            percent(model.score.accuracy),
            "" if model.score.accuracy_std is None else f"± {100 * model.score.accuracy_std:.2f}",
            [percent(model.score.tar.get(far)) for far in fars],
        )
        for model in models
    ]
    rates = None if any(model.score.roc for model in models) else _rates(models)
    figures = [figure for figure in (_accuracies(models), rates) if figure]
    return Comparison(
        fars,
        rows,
        figures,
        any(model.score.parties for model in models),
        any(model.score.accuracy is not None for model in models),
        number(run.evaluation.test.get("all_impostor", 0)),
        any(math.isnan(tar) for model in models for tar in model.score.tar.values()),
    )


def _accuracies(models: Sequence[Model]) -> Figure | None:
    dots = []
    for model in models:
        score = model.score
        if score.accuracy is None or not math.isfinite(score.accuracy):
            continue
        single = [party.accuracy for party in (score.parties or {}).values() if party.accuracy is not None]
        shown = single if len(single) <= SINGLE_PARTIES else []
        dots.append(charts.Dot(model.label, model.tone, score.accuracy, score.accuracy_std, shown))
    if not dots:
        return None
    caption = "Whiskers: one standard deviation."
    caption += " Faint dots: single parties." if any(dot.others for dot in dots) else ""
    caption += " Dotted line, where in sight: chance, 50%."
    said = listed([f"{dot.label} {percent(dot.value, 1)}" for dot in dots])
    svg = charts.dot_chart(dots, "verification accuracy", f"Accuracy with its spread. {said}.", 0.5)
    return Figure("Accuracy and its spread", svg, caption)


def _rates(models: Sequence[Model]) -> Figure | None:
    lines = []
    for model in models:
        points = sorted((float(far), tar) for far, tar in model.score.tar.items() if math.isfinite(tar))
        lines.append(charts.Line(model.label, model.tone, [point for point in points if point[0] > 0]))
    lines = [line for line in lines if line.points]
    if len({far for line in lines for far, _ in line.points}) < 2:
        return None
    said = listed([f"{line.label} {percent(line.points[0][1], 1)} at {line.points[0][0]:g}" for line in lines])
    svg = charts.line_chart(lines, "false accept rate", f"True accept rate over false accept rate. {said}.", True, True)
    return Figure("True accept rate at each false accept rate", svg, "Over all pairs of test images.", legend_of(lines))


def learning_curves(run: RunFiles, models: Sequence[Model]) -> list[Figure]:
    """Training loss, test accuracy where it was followed, and rank 1 at the parties."""
    method = run.recipe.method.name
    known = {model.name: model for model in models}
    followed = {method: run.metrics} | run.compared
    names = {name: _model(run, name, Score(), [other for other in followed if other != method]) for name in followed}
    names |= {name: model for name, model in known.items() if name in followed}
    figures = []
    losses = _lines((names[name], metrics.curves.get(("train", "loss"), ())) for name, metrics in followed.items())
    if losses:
        caption = "Average over the parties that took part, weighted as the method weights them."
        if CENTRAL in run.compared:
            caption += " Pooled training tells more people apart at once, so its loss is on another scale."
        figures.append(over_rounds("Training loss", losses, caption, False))
    tested = _test_curves(names, followed, known)
    if tested:
        figures.append(over_rounds(*tested, "On the test identities; round 0 is the start model.", True))
    ranks = _rank_curves(run.metrics)
    if ranks:
        caption = "Share of held-out images whose best match is the right person; weighted average over the parties."
        figures.append(over_rounds("Rank 1 at the parties", ranks, caption, True))
    return figures


def _test_curves(
    names: dict[str, Model], followed: dict[str, Metrics], known: dict[str, Model]
) -> tuple[str, list[charts.Line]] | None:
    """Accuracy (or else TAR) of every global model by round, from the start model on."""
    followed = {name: m for name, m in followed.items() if not (name in known and known[name].score.parties)}
    curves = {key for metrics in followed.values() for phase, key in metrics.curves if phase == "test"}
    measured = sorted(key for key in curves if " " not in key)  # the others are of one domain only
    if not measured:
        return None
    what = "accuracy" if "accuracy" in measured else measured[0]
    start = known[START].score if START in known else Score()
    begin = start.accuracy if what == "accuracy" else start.tar.get(what.removeprefix("tar@"))
    first = [(0, begin)] if begin is not None else []
    lines = _lines(
        (names[name], [*first, *metrics.curves[("test", what)]])
        for name, metrics in followed.items()
        if ("test", what) in metrics.curves
    )
    return ("Test accuracy" if what == "accuracy" else f"True accept rate at {what[4:]}", lines) if lines else None


def _rank_curves(metrics: Metrics) -> list[charts.Line]:
    curves = {name: charts.finite(metrics.curves.get(("evaluate", name), ())) for name in RANKS}
    if max(map(len, curves.values())) < 2:
        return []
    return [charts.Line(RANKS[name], RANK_TONES[name], points) for name, points in curves.items() if points]


def _lines(curves: Iterable[tuple[Model, Sequence[tuple[float, float]]]]) -> list[charts.Line]:
    lines = [charts.Line(model.label, model.tone, charts.finite(points)) for model, points in curves]
    return [line for line in lines if line.points]


def over_rounds(title: str, lines: Sequence[charts.Line], caption: str, shares: bool) -> Figure:
    """Lines over rounds, with what they say in words for those who cannot see them."""

    def say(value: float) -> str:
        return percent(value, 1) if shares else f"{value:.3g}"

    parts = [
        f"{line.label} from {say(line.points[0][1])} in round {line.points[0][0]:g} "
        f"to {say(line.points[-1][1])} in round {line.points[-1][0]:g}"
        for line in lines
    ]
    svg = charts.line_chart(lines, "round", f"{title} per round. {'; '.join(parts)}.", shares)
    return Figure(f"{title} per round", svg, caption, legend_of(lines))


def legend_of(lines: Sequence[charts.Line]) -> list[tuple[str, str]]:
    """Labels with their tones."""
    return [(line.label, line.tone) for line in lines]


def score_histograms(run: RunFiles, models: Sequence[Model]) -> list[Figure]:
    """Cosines of genuine and impostor pairs under the start model and the run's own, on the same axes."""
    shown = [
        (model, model.score.histogram)
        for model in models
        if model.score.histogram and model.name in (START, run.recipe.method.name)
    ]
    shown = [(model, histogram) for model, histogram in shown if sum(histogram.genuine) and sum(histogram.impostor)]
    if len({len(histogram.genuine) for _, histogram in shown}) != 1:
        return []
    sides = [side for _, histogram in shown for side in (histogram.genuine, histogram.impostor)]
    top = max(max(side) / sum(side) for side in sides)
    span = charts.occupied(sides)
    return [_histogram(model, histogram, span, top) for model, histogram in shown]


def _histogram(model: Model, histogram: Histogram, span: tuple[int, int], top: float) -> Figure:
    means = [_mean_cosine(side) for side in (histogram.genuine, histogram.impostor)]
    said = f"{decimal(means[0])} for genuine pairs, {decimal(means[1])} for impostor pairs"
    description = f"Cosines of test pairs, {model.label}. Mean: {said}."
    svg = charts.histogram_chart(histogram.genuine, histogram.impostor, span, top, description)
    return Figure(model.label, svg, f"Mean cosine: {said}.", [("Genuine", "genuine"), ("Impostor", "impostor")])


def _mean_cosine(counts: Sequence[int]) -> float:
    middles = [-1 + (2 * index + 1) / len(counts) for index in range(len(counts))]
    return sum(count * middle for count, middle in zip(counts, middles, strict=True)) / sum(counts)
