"""The figures of a server regulariser: cosines and steps over rounds, and none without one."""

from __future__ import annotations

from run_folder import RunFolder


def test_without_a_regulariser_there_is_no_such_section(folder: RunFolder) -> None:
    assert "separation" not in folder.page().ids


def test_cosines_and_steps_are_lines_over_rounds_and_said_in_words(folder: RunFolder) -> None:
    numbers = {"across_cosine": 0.1, "across_cosine_p99": 0.4, "within_cosine": 0.05, "relative_step": 0.04}
    for row in folder.metrics:
        if row["phase"] == "train":
            row |= {name: value / row["round"] for name, value in numbers.items()}
    page = folder.page()
    assert "separation" in page.ids
    labels = " ".join(attributes.get("aria-label") or "" for tag, attributes in page.tags if tag == "svg")
    assert "The closest hundredth, across parties from 0.4 in round 1" in labels
    assert "Length of the step from 4.0% in round 1" in labels
