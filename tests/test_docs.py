"""What the documents say is what is there."""

from __future__ import annotations

from pathlib import Path

from fedvisage.cli.listings import crossing_page
from fedvisage.config import shipped_recipes

ROOT = Path(__file__).parents[1]


def test_the_page_of_what_leaves_a_party_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "what-leaves-a-party.md").read_text("utf-8")
    assert page == crossing_page(), "run: fedvisage methods --markdown > docs/what-leaves-a-party.md"


def test_the_readme_shows_both_commands_and_every_shipped_recipe() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for words in ("make demo", "make test", *shipped_recipes()):
        assert words in readme
