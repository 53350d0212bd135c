"""The figures of a searched weighting: lines over rounds, and a triangle of scores."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from run_folder import RunFolder

from fedvisage.methods.fv import grid
from fedvisage.report.simplex import NAME, Point, place, simplex_chart
from fedvisage.report.weighting import MOST_LINES, weighting_figures


def searched(round: int, **weights: float) -> dict[str, Any]:
    """The metrics row that ends a search."""
    row = {"round": round, "phase": "validate", "repeat": 2, "score": 80.0, "chosen": 1.0, "parties": {}, "absent": {}}
    return row | {f"weight/{name}": weight for name, weight in weights.items()}


def surveyed(round: int, weights: tuple[float, float, float], score: float) -> dict[str, Any]:
    """One point of a map."""
    row = {"round": round, "phase": "survey", "repeat": 0, "score": score, "parties": {}, "absent": {}}
    return row | {f"weight/{name}": weight for name, weight in zip(("ann", "bob", "cat"), weights, strict=True)}


def test_without_a_search_there_is_no_such_section(folder: RunFolder) -> None:
    assert "weighting" not in folder.page().ids


def test_the_weights_are_lines_over_rounds_and_said_in_words(folder: RunFolder) -> None:
    folder.metrics += [searched(1, ann=0.3, bob=0.3, cat=0.4), searched(2, ann=0.2, bob=0.3, cat=0.5)]
    page = folder.page()
    assert "weighting" in page.ids
    assert "How much each party counts" in page.text
    label = "Weights of the parties per round. In the end: ann 20.0%, bob 30.0% and cat 50.0%."
    assert label in [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]


def test_validators_are_no_parties_that_train(folder: RunFolder) -> None:
    before = folder.page().text
    share = {"role": "validator", "identities": ["v", "w"], "train": list(range(900, 950)), "held_out": []}
    folder.partition["parties"]["judge"] = share
    after = folder.page().text
    assert "Validators 1" in after
    for fact in ("Parties", "Private training images"):
        (first,), (second,) = (re.findall(rf"{fact} ([\d,]+)", text) for text in (before, after))
        assert first == second


def test_of_many_parties_those_that_count_most_are_drawn(folder: RunFolder) -> None:
    many = {f"party-{n:02d}": n / 190 for n in range(20)}
    folder.metrics += [searched(1, **many)]
    page = folder.page()
    assert "The 12 of 20 parties that count most in the end." in page.text
    (label,) = [a["aria-label"] for t, a in page.tags if t == "svg" and "Weights of" in str(a.get("aria-label"))]
    assert "party-08 " in str(label)
    assert "party-07 " not in str(label)
    assert MOST_LINES == 12


def test_a_map_says_its_range_and_its_best_weighting(folder: RunFolder) -> None:
    folder.metrics += [surveyed(2, weights, 70 + 10 * weights[1] * weights[2]) for weights in grid(4)]
    page = folder.page()
    assert "Every weighting after round 2" in page.text
    assert "from 70.0 (pale) to 72.5 (strong)" in page.text
    assert "Best, ringed: ann 0%, bob 50% and cat 50%." in page.text


def test_of_many_maps_a_few_are_drawn_and_the_last_among_them(folder: RunFolder) -> None:
    folder.metrics += [surveyed(round, weights, 70.0) for round in range(1, 11) for weights in grid(1)]
    from fedvisage.report.folder import read_run

    titles = [figure.title for figure in weighting_figures(read_run(folder.save().path))]
    assert titles == [f"Every weighting after round {round}" for round in (1, 4, 7, 10)]


def test_weightings_lie_where_their_parties_pull_them() -> None:
    corners = [place(weights, 30) for weights in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))]
    sides = [math.dist(corners[a], corners[b]) for a, b in ((0, 1), (1, 2), (2, 0))]
    assert sides == pytest.approx([sides[0]] * 3), "the triangle is equilateral"
    middle = place((1 / 3, 1 / 3, 1 / 3), 30)
    assert [math.dist(middle, corner) for corner in corners] == pytest.approx([math.dist(middle, corners[0])] * 3)
    assert place((0.5, 0.5, 0.0), 30) == pytest.approx(tuple(sum(axis) / 2 for axis in zip(*corners[:2], strict=True)))


def test_every_cell_says_its_weighting_and_the_best_is_ringed_and_strongest() -> None:
    points = [Point(weights, ("a<b", "bob", "cat"), 60 + 40 * weights[0]) for weights in grid(3)]
    root = ElementTree.fromstring(simplex_chart(points, "map"))
    cells = {str(cell.findtext("title")): float(cell.get("fill-opacity", "nan")) for cell in root.iter("path")}
    assert len(cells) == 10
    assert cells["a<b 100%, bob 0%, cat 0%: 100.00"] == 1.0 == max(cells.values())
    assert cells["a<b 0%, bob 100%, cat 0%: 60.00"] == min(cells.values()) > 0
    (ring,) = [circle for circle in root.iter("circle") if circle.get("class") == "ring"]
    centre = place((1.0, 0.0, 0.0), 40 + NAME)  # the largest radius, and the name above it
    assert (float(ring.get("cx", 0)), float(ring.get("cy", 0))) == pytest.approx(centre, abs=0.06)
    heights = [float(text.get("y", "nan")) for text in root.iter("text")]
    assert min(heights) > 12, "a line below the upper edge"
    assert max(heights) < float(str(root.get("viewBox")).split()[3])


def test_a_flat_map_is_drawn_all_the_same() -> None:
    root = ElementTree.fromstring(simplex_chart([Point(w, ("a", "b", "c"), 50.0) for w in grid(2)], "map"))
    assert {cell.get("fill-opacity") for cell in root.iter("path")} == {"1.000"}
