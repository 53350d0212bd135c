"""Figures: round ticks around the data, marks inside the frame and where the numbers say."""

from __future__ import annotations

import re
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvisage.report.charts import Dot, Line, dot_chart, histogram_chart, line_chart, occupied
from fedvisage.report.drawing import Scale, log_ticks, nice_ticks
from fedvisage.report.words import listed, plural, size

numbers = st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))


@given(numbers, numbers)
def test_ticks_span_the_data_in_equal_round_steps(one, other):
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step
    assert ticks[-1] >= high - 1e-6 * step
    assert 2 <= len(ticks) <= 8
    assert f"{step:.0e}"[0] in "125"


def test_ticks_of_rounds_are_whole():
    assert nice_ticks(1, 3, 6, whole=True) == [1, 2, 3]
    assert nice_ticks(0, 0.4) == [0, 0.1, 0.2, 0.3, 0.4]
    assert log_ticks(1e-3, 1e-1) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert log_ticks(1e-2, 1e-2) == pytest.approx([1e-3, 1e-2])


def test_a_logarithmic_scale_puts_the_geometric_mean_in_the_middle():
    assert Scale(1e-4, 1, 0, 100, log=True)(1e-2) == pytest.approx(50)


def positions(svg):
    """All x and y of a drawing with the size of its view box."""
    root = fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    xs, ys = [], []
    for node in root.iter():
        for name, value in node.attrib.items():
            if name in ("x", "x1", "x2", "cx"):
                xs.append(float(value))
            elif name in ("y", "y1", "y2", "cy"):
                ys.append(float(value))
            elif name == "d":
                pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", value)
                xs += [float(x) for x, _ in pairs]
                ys += [float(y) for _, y in pairs]
    return xs, ys, width, height


shares = st.floats(0, 1).map(lambda value: round(value, 4))
losses = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(st.lists(st.builds(Dot, st.just("m"), st.just("t"), shares, st.none() | shares, st.lists(shares)), min_size=1))
def test_dots_whiskers_and_text_stay_in_the_frame(dots):
    inside(dot_chart(dots, "accuracy", "described", 0.5))


@given(st.lists(losses, min_size=1, max_size=4))
def test_lines_stay_in_the_frame(curves):
    lines = [Line("m", "t", [(float(place + 1), y) for place, y in enumerate(ys)]) for ys in curves]
    inside(line_chart(lines, "round", "described"))
    inside(line_chart(lines, "round", "described", shares=True))


@pytest.mark.parametrize(
    ("xs", "ticks"),
    [
        ((0.2, 0.24, 0.28, 0.32), ["0.2", "0.22", "0.24", "0.26", "0.28", "0.3", "0.32"]),
        ((0.0, 0.4, 0.6), ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]),
        ((1, 2, 3), ["1", "2", "3"]),
    ],
)
def test_the_horizontal_axis_has_ticks_whatever_the_setting(xs, ticks):
    root = fromstring(line_chart([Line("m", "t", [(x, 0.5) for x in xs])], "d", "described", True))
    assert [text.text for text in root.iter("text") if text.get("y") == "231"] == ticks


def test_a_long_label_takes_lines_of_its_own_beside_the_number():
    dots = [Dot("Federated, hard negatives and contrastive term", "t", 0.5, 0.1), Dot("FedFR", "t", 0.6)]
    root = fromstring(dot_chart(dots, "accuracy", "described", 0.5))
    names = [text.text for text in root.iter("text") if text.get("class") == "name"]
    assert names == ["Federated, hard negatives and", "contrastive term", "FedFR"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 1000), min_size=80, max_size=80), st.lists(st.integers(0, 9), min_size=80, max_size=80))
def test_histograms_stay_in_the_frame(genuine, impostor):
    top = max(max(counts) / max(1, sum(counts)) for counts in (genuine, impostor))
    inside(histogram_chart(genuine, impostor, occupied([genuine, impostor]), top, "described"))


def inside(svg):
    xs, ys, width, height = positions(svg)
    assert -0.1 <= min(xs) <= max(xs) <= width + 0.1
    assert -0.1 <= min(ys) <= max(ys) <= height + 0.1


def test_a_line_goes_through_its_points():
    svg = line_chart([Line("m", "t", [(1, 0.0), (2, 10.0), (3, 5.0)])], "round", "described")
    circles = [(float(node.attrib["cx"]), float(node.attrib["cy"])) for node in fromstring(svg).iter("circle")]
    (x1, low), (x2, high), (x3, middle) = circles
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert middle == pytest.approx((low + high) / 2)
    assert high < low  # y grows downwards


def test_words_for_numbers():
    assert [size(count) for count in (0, 999, 1000, 1_496_384, 123_456_789, 999_960)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.5 MB",
        "123 MB",
        "1.0 MB",
    ]
    assert plural(1, "party", "parties") == "1 party"
    assert plural(1200, "round") == "1,200 rounds"
    assert [listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
