"""What the documents say is what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvisage.cli.listings import crossing_page, read_measured
from fedvisage.comparison import COMBINED, ROUNDS, compared, comparison_page, recipe_for
from fedvisage.config import shipped_recipes
from fedvisage.planning import make_plan

ROOT = Path(__file__).parents[1]


def test_the_page_of_what_leaves_a_party_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "what-leaves-a-party.md").read_text("utf-8")
    assert page == crossing_page(), "run: fedvisage methods --markdown > docs/what-leaves-a-party.md"


def test_the_readme_shows_both_commands_and_every_shipped_recipe() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for words in ("make demo", "make test", *shipped_recipes()):
        assert words in readme


def measured() -> dict[str, dict[str, float]]:
    return read_measured(ROOT / "docs" / "measured-methods.json")


def test_the_comparison_of_methods_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
    command = "fedvisage methods --comparison docs/measured-methods.json > docs/comparison.md"
    assert page == comparison_page(measured()), f"run: {command}"


@pytest.mark.parametrize("name", compared())
def test_what_was_measured_is_what_the_method_sends_today(name: str) -> None:
    """The plan of the same federation: what it sends each round, as far as the plan can know it."""
    plan = make_plan(recipe_for(name))
    parties = plan["participants"]
    for way in ("down", "up"):
        planned = plan["totals"][way] * parties * ROUNDS
        # Besides: the start model to whoever joins, people whom clustering finds, and nothing yet in the first round.
        first = [row for row in plan["wire"] if row["when"] != "round" and row["direction"] == way]
        once = sum(row["bytes"] for row in first if row["who"] == "parties") * parties
        assert measured()[name][way] >= 0.995 * planned, f"measure again: {way}"
        assert measured()[name][way] <= planned + once + 0.01 * planned + 4096, f"measure again: {way}"


@pytest.mark.parametrize("name", COMBINED)
def test_what_a_validator_was_measured_to_get_is_what_the_plan_says(name: str) -> None:
    plan = make_plan(recipe_for(name))
    rows = [row for row in plan["wire"] if row["who"] == "validators"]
    for way in ("down", "up"):
        planned = {
            row["phase"]: row["bytes"] * row["repeats"] * (ROUNDS if row["when"] == "round" else 1)
            for row in rows
            if row["direction"] == way and row["group"] in ("backbone", "statistics")
        }
        assert planned
        assert measured()[name][f"validator {way}"] == pytest.approx(sum(planned.values()), rel=0.02)
