"""A round of one-person parties, their steps computed together or one by one: `python -m benchmarks.together`.

Not among the benchmarks that `make bench` runs: ten thousand parties take minutes.
"""

from __future__ import annotations

import sys
from statistics import median

import torch

from benchmarks.common import Clock, federation
from benchmarks.one_person import recipe_for
from fedvisage.build import build_parts

PARTIES, GROUP, ROUNDS = 10_000, 64, 3
"""Parties, how many take their step at once, and rounds that count."""


def main() -> None:
    """Print the seconds of a round, one by one and together, and their ratio."""
    parties = int(sys.argv[1]) if len(sys.argv) > 1 else PARTIES
    torch.set_num_threads(1)
    taken = {}
    for together in (1, GROUP):
        recipe = recipe_for(parties, ROUNDS + 1)
        settings = recipe.federation.model_copy(update={"together": together})
        recipe = recipe.model_copy(update={"federation": settings})
        clock = Clock()
        with federation(recipe, build_parts(recipe), clock) as run:
            run.run()
        taken[together] = median(clock.rounds[1:])
        print(f"together = {together}: {taken[together]:.1f} s a round of {parties:,} parties", flush=True)
    print(f"ratio: {taken[1] / taken[GROUP]:.2f}")


if __name__ == "__main__":
    main()
