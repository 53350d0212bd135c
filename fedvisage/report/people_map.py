"""The map of the parties' people: class embeddings by party, and the pairs across parties that look most alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from fedvisage.core.errors import FedVisageError
from fedvisage.report import charts
from fedvisage.report.results import Figure
from fedvisage.report.scatter import Cloud, scatter_chart
from fedvisage.report.words import decimal, plural

MAP = "map.json"
TONES = 12
LEGEND = [("one person", "genuine"), ("the two people", "impostor")]
Point = tuple[float, float]


class Classes(BaseModel):
    """Class embeddings on the plane."""

    of: int
    party: tuple[int, ...]
    points: tuple[Point, ...]


class Pair(BaseModel):
    """Two people of different parties, and the cosines of their images."""

    who: tuple[tuple[str, int], tuple[str, int]]
    cosine: float
    between: tuple[int, ...]
    within: tuple[int, ...]
    mean: float


class Alike(BaseModel):
    """The pairs, and their images on the plane."""

    pairs: tuple[Pair, ...]
    which: tuple[int, ...]
    points: tuple[Point, ...]


class PeopleMap(BaseModel):
    """map.json."""

    parties: tuple[str, ...]
    classes: Classes
    alike: Alike


def people_figures(folder: Path) -> list[Figure]:
    """The figures, where the run left a map."""
    if not (folder / MAP).exists():
        return []
    found = read_map(folder)
    return [_classes(found), *([_images(found.alike)] if found.alike.points else []), *_cosines(found.alike.pairs)]


def read_map(folder: Path) -> PeopleMap:
    """The map that a run left."""
    path = folder / MAP
    try:
        return PeopleMap.model_validate(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise FedVisageError(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def alike_figures(models: Mapping[str, Alike]) -> list[Figure]:
    """Of several models: the images of each one's most confusable pairs, then the cosines of all of them, to scale."""
    models = {name: alike for name, alike in models.items() if alike.pairs}
    sides = []
    for name, alike in models.items():
        caption = (
            f"{plural(len(alike.pairs), 'pair')} of people of different parties; class embeddings at "
            f"{decimal(fmean(pair.cosine for pair in alike.pairs))}, images of the two at "
            f"{decimal(fmean(pair.mean for pair in alike.pairs))} on average."
        )
        title = f"{name}: cosines of images of the most confusable pairs"
        sides.append(Sides(title, caption, _total(alike, "within"), _total(alike, "between")))
    return [_images(alike, f"{name}: ") for name, alike in models.items()] + _histograms(sides)


def _total(alike: Alike, part: Literal["within", "between"]) -> list[int]:
    return [sum(counts) for counts in zip(*(getattr(pair, part) for pair in alike.pairs), strict=True)]


def _classes(found: PeopleMap) -> Figure:
    """Every person a dot, coloured by party."""
    points: dict[int, list[Point]] = {}
    for party, point in zip(found.classes.party, found.classes.points, strict=True):
        points.setdefault(party, []).append(point)
    clouds = [
        Cloud(found.parties[party], f"tone-party-{party % TONES}", of, party % TONES >= TONES // 2)
        for party, of in sorted(points.items())
    ]
    shown = len(found.classes.points)
    caption = f"{plural(shown, 'person', 'people')}"
    caption += f" of {found.classes.of}" if found.classes.of > shown else ""
    caption += " of all parties by t-SNE of their class embeddings: those near each other look alike to the model."
    caption += " Parties with a broken line in the legend are squares." if any(c.square for c in clouds) else ""
    said = f"Map of the class embeddings of {plural(len(clouds), 'party', 'parties')}. {caption}"
    legend = [(cloud.label, cloud.tone) for cloud in clouds] if len(clouds) <= TONES else []
    return Figure("Class embeddings of all parties", scatter_chart(clouds, said), caption, legend)


def _images(alike: Alike, of: str = "") -> Figure:
    """The images of the pairs: a colour per pair, discs for the one person and squares for the other."""
    points: dict[int, list[Point]] = {}
    for which, point in zip(alike.which, alike.points, strict=True):
        points.setdefault(which, []).append(point)
    clouds = [
        Cloud(_name(alike.pairs[which // 2].who[which % 2]), f"tone-party-{which // 2 % TONES}", of, which % 2 == 1)
        for which, of in sorted(points.items())
    ]
    caption = (
        "Training images of the people of different parties whose class embeddings are most alike, by t-SNE of their "
        "features. A colour is a pair; discs are the one person, squares the other."
    )
    legend = [(f"pair {index + 1}", f"tone-party-{index % TONES}") for index in range(len(alike.pairs))]
    title = f"{of}images of the most confusable pairs" if of else "Images of the most confusable pairs"
    return Figure(title, scatter_chart(clouds, f"{title}. {caption}"), caption, legend)


def _name(who: tuple[str, int]) -> str:
    return f"{who[0]}, person {who[1] + 1}"


def _cosines(pairs: Sequence[Pair]) -> list[Figure]:
    """Per pair: cosines between images of the two people, and between images of one."""
    sides = []
    for number, pair in enumerate(pairs, 1):
        caption = (
            f"{_name(pair.who[0])} and {_name(pair.who[1])}; class embeddings at {decimal(pair.cosine)}, images of the "
            f"two at {decimal(pair.mean)} on average."
        )
        sides.append(Sides(f"Pair {number}: cosines of images", caption, pair.within, pair.between))
    return _histograms(sides)


class Sides(NamedTuple):
    """Histograms of cosines between images of one person, and of two, under a title."""

    title: str
    caption: str
    within: Sequence[int]
    between: Sequence[int]


def _histograms(drawn: Sequence[Sides]) -> list[Figure]:
    """All to one scale."""
    everything = [side for one in drawn for side in (one.within, one.between)]
    span = charts.occupied(everything)
    top = max((max(side) / sum(side) for side in everything if sum(side)), default=1.0)
    figures = []
    for title, caption, within, between in drawn:
        svg = charts.histogram_chart(within, between, span, top, f"{title}. {caption}")
        figures.append(Figure(title, svg, caption, LEGEND))
    return figures
