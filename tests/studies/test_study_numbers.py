"""A study's numbers: means and spreads over seeds, and how surely the paper's orderings hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedvisage.studies import Claim, Column, Measure, Ordering, Row, Study, agreement, orderings, table, uneven
from fedvisage.studies.definition import Tries


def result(seed: int, score: float, validation: list[float], test: list[float]) -> dict[str, Any]:
    rounds = {"validation": validation, "test": test}
    curves = {name: [{"round": i, "accuracy": v} for i, v in enumerate(values)] for name, values in rounds.items()}
    return {"seed": seed, "scores": {"test accuracy": score}, "rounds": curves}


STUDY = Study(
    title="t",
    source="s",
    columns=(Column(name="LFW", by={"laptop": Measure(what="faces")}), Column(name="other", by={})),
    scales={},
    rows=(
        Row(name="a", label="A", paper={"LFW": 90.0}),
        Row(name="b", label="B", paper={"LFW": 95.0}),
        Row(name="c", label="C", paper={"LFW": 99.0}, group="other"),
    ),
)


def test_the_table_has_mean_spread_and_the_round_that_validation_people_chose() -> None:
    results = {
        "a": [result(1, 0.5, [0.1, 0.9, 0.2], [0.3, 0.4, 0.5]), result(2, 0.7, [0.9, 0.1, 0.1], [0.6, 0.5, 0.7])]
    }
    assert set(table(STUDY, "laptop", results)["a"]) == {"LFW"}
    entry = table(STUDY, "laptop", results)["a"]["LFW"]
    assert entry.seeds == 2
    assert entry.mean == pytest.approx(60.0)
    assert entry.spread == pytest.approx(math.sqrt(2) * 10)
    assert entry.chosen == pytest.approx((40 + 60) / 2)


def test_one_round_is_chosen_for_all_columns_where_the_study_says_by_what() -> None:
    """By hand: accuracy likes round 0 best, the rate that chooses round 1."""
    study = STUDY.model_copy(update={"tries": {"laptop": Tries(by="tar@0.1")}})
    own = result(1, 0.5, [0.9, 0.1], [0.3, 0.4])
    for row, rate in zip(own["rounds"]["validation"], (0.2, 0.8), strict=True):
        row["tar@0.1"] = rate
    assert table(STUDY, "laptop", {"a": [own]})["a"]["LFW"].chosen == pytest.approx(30)
    assert table(study, "laptop", {"a": [own]})["a"]["LFW"].chosen == pytest.approx(40)


def test_what_the_data_could_not_tell_in_some_seed_is_left_out_of_the_mean() -> None:
    known, unknown = cell("a", 1, 0.5), cell("a", 2, 0.5)
    unknown["scores"]["test accuracy"] = None
    results = {"a": [known, unknown], "b": [cell("b", 1, 0.4), cell("b", 2, 0.6)]}
    numbers = table(STUDY, "laptop", results)
    assert (numbers["a"]["LFW"].mean, numbers["a"]["LFW"].over) == (50.0, "1 seed")
    assert uneven(numbers, "LFW")
    nothing = table(STUDY, "laptop", {"a": [unknown]})["a"]["LFW"]
    assert (nothing.seeds, math.isnan(nothing.mean)) == (0, True)


def cell(row: str, seed: int, score: float, influence: list[int] | None = None, who: str = "people") -> dict[str, Any]:
    """A finished cell with influences in millionths."""
    kept = {"set": who, "influence": " ".join(map(str, influence))} if influence else None
    people = {"test accuracy": kept} if kept else {}
    return {"row": row, "seed": seed, "scores": {"test accuracy": score}, "people": people, "rounds": {}}


def noise() -> list[int]:
    """Influences of 100 people in millionths: mean nought, sum of squares 0.01 squared."""
    drawn = np.random.default_rng(7).normal(size=100)
    drawn -= drawn.mean()
    return [int(value) for value in drawn / np.linalg.norm(drawn) * 0.01 / 1e-6]


def compared(results: dict[str, list[dict[str, Any]]]) -> Ordering:
    (found,) = orderings(STUDY, "laptop", results, np.random.default_rng(1))
    return found


def test_orderings_are_compared_within_a_group_only() -> None:
    results = {row: [cell(row, 1, score)] for row, score in (("a", 0.80), ("b", 0.79), ("c", 0.50))}
    pair = compared(results)
    assert (pair.low, pair.high, pair.agrees) == ("a", "b", False)
    assert pair.ours == pytest.approx(-1.0)
    assert math.isnan(pair.confidence)
    assert not pair.clear
    assert pair.verdict == "disagrees, chance not known"
    assert pair.table()["confidence"] is None


def test_orderings_that_rest_on_seeds_alone_are_counted_by_themselves() -> None:
    seeds = range(1, 4)
    results = {row: [cell(row, seed, score + seed / 1000) for seed in seeds] for row, score in (("a", 0.5), ("b", 0.9))}
    pair = compared(results)
    assert (pair.clear, pair.people) == (True, 0)
    counts = agreement([pair])
    assert (counts["clear"] + counts["against"], counts["by_seeds"]) == (1, counts["clear"])


def test_two_rows_with_the_same_scores_are_level() -> None:
    turn = noise()
    results = {"a": [cell("a", 1, 0.9, turn)], "b": [cell("b", 1, 0.9, turn)]}
    pair = compared(results)
    assert (pair.verdict, pair.agrees, pair.clear) == ("level", False, False)
    counts = {"orderings": 1, "agree": 0, "level": 1, "clear": 0, "by_seeds": 0, "against": 0}
    assert agreement([pair]) == counts


def test_with_one_seed_the_confidence_is_that_of_the_people() -> None:
    """The difference has a standard deviation of 100 x sqrt(sum of squared influences) = 1 point."""
    turn = noise()
    results = {"a": [cell("a", 1, 0.90, [0] * 100)], "b": [cell("b", 1, 0.91, turn)]}
    pair = compared(results)
    assert pair.people == 100
    assert pair.confidence == pytest.approx(0.841, abs=0.03)  # one standard deviation above nought
    assert pair.verdict == "agrees, within chance"


def test_what_both_rows_find_hard_does_not_count() -> None:
    hard = noise()
    results = {"a": [cell("a", 1, 0.90, hard)], "b": [cell("b", 1, 0.901, hard)]}
    assert compared(results).confidence == 1.0


def test_with_several_seeds_their_spread_is_added() -> None:
    """Differences 1, 2 and 3 points without noise from people: t = 2 / (1 / sqrt(3)) = 3.46 with 2 degrees: 0.963."""
    scores = {"a": [0.90, 0.90, 0.90], "b": [0.91, 0.92, 0.93]}
    results = {row: [cell(row, i, s, [0, 0]) for i, s in enumerate(of, 1)] for row, of in scores.items()}
    pair = compared(results)
    assert pair.spread == pytest.approx(1.0)
    assert pair.confidence == pytest.approx(0.963, abs=0.02)


def test_people_are_drawn_alike_for_seeds_that_share_them() -> None:
    """The same people in both seeds do not average out; whom other sets share is not known, so neither do they."""
    turn = noise()
    one = [cell("a", seed, 0.90, [0] * 100) for seed in (1, 2)], [cell("b", seed, 0.91, turn) for seed in (1, 2)]
    same = compared({"a": one[0], "b": one[1]})
    other = [
        [cell("a", 1, 0.90, [0] * 100), cell("a", 2, 0.90, [0] * 100, "others")],
        [cell("b", 1, 0.91, turn), cell("b", 2, 0.91, turn, "others")],
    ]
    apart = compared({"a": other[0], "b": other[1]})
    assert (same.people, same.sets, apart.people, apart.sets) == (100, 1, 100, 2)
    assert same.confidence == pytest.approx(0.841, abs=0.03)
    assert apart.confidence == pytest.approx(0.841, abs=0.03)


def test_people_are_matched_one_by_one_where_sets_are_the_same() -> None:
    """Each seed is moved by other people of one set: 1 point each, so 1 / sqrt(2) points for their mean."""
    turn, still = noise(), [0] * 100
    results = {
        "a": [cell("a", seed, 0.90, [0] * 200) for seed in (1, 2)],
        "b": [cell("b", 1, 0.91, turn + still), cell("b", 2, 0.91, still + turn)],
    }
    pair = compared(results)
    assert (pair.people, pair.sets) == (200, 1)
    assert pair.confidence == pytest.approx(0.921, abs=0.03)  # sqrt(2) standard deviations


def test_only_people_who_move_a_score_are_counted_and_drawn() -> None:
    """20 of 82, as where a column is of one of two domains."""
    turn = noise()[:20] + [0] * 62
    pair = compared({"a": [cell("a", 1, 0.90, [0] * 82)], "b": [cell("b", 1, 0.91, turn)]})
    assert pair.people == 20


def test_the_spread_is_over_seeds_not_over_their_variants() -> None:
    """Differences of 0 and 2 points in one seed, 1 and 3 in the other: 1 and 2 by seed, a spread of 1 / sqrt(2)."""
    halves = {(1, "a"): 0.90, (1, "b"): 0.92, (2, "a"): 0.91, (2, "b"): 0.93}
    results = {
        row: [
            cell(row, seed, score if row == "b" else 0.90) | {"variant": half} for (seed, half), score in halves.items()
        ]
        for row in "ab"
    }
    pair = compared(results)
    assert (pair.ours, pair.seeds, pair.variants) == (pytest.approx(1.5), 2, 2)
    assert pair.spread == pytest.approx(math.sqrt(0.5))
    entry = table(STUDY, "laptop", results)["b"]["LFW"]
    assert (entry.seeds, entry.which) == (2, (1, 2))
    assert entry.values == pytest.approx((91.0, 92.0))
    assert entry.spread == pytest.approx(math.sqrt(0.5))


def test_cells_that_do_not_say_who_their_people_are_leave_the_seeds_alone() -> None:
    results = {"a": [cell("a", 1, 0.9), cell("a", 2, 0.9)], "b": [cell("b", 1, 0.95, [1, 2]), cell("b", 2, 0.96)]}
    pair = compared(results)
    assert pair.people == 0
    assert 0.9 < pair.confidence <= 1


def test_a_claim_without_a_number_is_an_ordering_too() -> None:
    claim = Claim(column="LFW", better="c", worse="a")
    study = STUDY.model_copy(update={"claims": (claim,), "rows": STUDY.rows[::2]})
    results = {"a": [cell("a", 1, 0.9)], "c": [cell("c", 1, 0.8)]}
    (pair,) = orderings(study, "laptop", results, np.random.default_rng(1))
    assert (pair.low, pair.high, pair.paper, pair.agrees) == ("a", "c", None, False)
