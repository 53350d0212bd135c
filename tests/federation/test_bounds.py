"""How large an update may be: by hand, and as invariants over histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.config import Guard as Rules
from fedvisage.federation.bounds import KEPT, OWN, SHARE, History, Sender, bound

NORM = st.floats(1e-6, 1e6)
STEPS = st.integers(1, 10_000)
MODEL = 1e9
"""So large that no bound comes from the model."""
RULES = Rules(norm_floor=0.0)


def sender(party: str = "ann", steps: int = 1, role: str = "trainer", alone: bool = False, rate: float = 1.0) -> Sender:
    return Sender(party, role, steps, rate, alone)


def history(*rounds: dict[str, tuple[float, int]], role: str = "trainer", floor: float = 0.0) -> History:
    """Rounds of norms and local steps by party."""
    made = History()
    for told in rounds:
        norms = {party: norm for party, (norm, _) in told.items()}
        made.add(role, norms, {party: steps for party, (_, steps) in told.items()}, floor)
    return made


def test_the_first_round_is_bounded_by_ten_times_the_model() -> None:
    assert bound(Rules(), History(), sender(), 3.0) == (30.0, "10 times the model that went down")


def test_a_number_of_the_recipe_takes_the_place_of_all_comparisons() -> None:
    assert bound(Rules(norm_bound=5.0), history({"ann": (1.0, 1)}), sender(), 1e4)[0] == 5.0


def test_a_party_is_compared_with_its_own_updates_within_what_is_usual_in_its_role() -> None:
    """Norms 1, 2 and 3 of parties with 1, 2 and 3 steps: usual are 2 an update and 1 a step."""
    usual = history({"ann": (1.0, 1), "bob": (2.0, 2), "cat": (3.0, 3)})
    assert bound(RULES, usual, sender("ann", 1), MODEL) == (8.0, "8 times its own earlier updates")
    assert bound(RULES, usual, sender("cat", 3), MODEL)[0] == 24.0
    assert bound(RULES, usual, sender("cat", 3, rate=0.1), MODEL)[0] == pytest.approx(2.4)
    new = bound(RULES, usual, sender("new", 10), MODEL)
    assert new == (200.0, "20 times what is usual for a trainer of 10 local steps")
    assert bound(RULES, usual, sender("new", 1), MODEL)[0] == 40.0


def test_own_updates_count_neither_above_nor_far_below_what_is_usual() -> None:
    others = {f"p{n}": (1.0, 1) for n in range(9)}
    large, small = history({**others, "ann": (50.0, 1)}), history({**others, "ann": (1e-3, 1)})
    assert bound(RULES, large, sender(), MODEL) == (20.0, "20 times what is usual for a trainer of 1 local steps")
    assert bound(RULES, small, sender(), MODEL)[0] == 20.0 * SHARE


def test_parties_without_any_loss_do_not_say_what_is_usual() -> None:
    """Seven of ten do next to nothing; where all do, the floor itself is usual."""
    idle = {f"p{n}": (1e-3, 1) for n in range(7)}
    some = history({**idle, "ann": (4.0, 1), "bob": (5.0, 1), "cat": (6.0, 1)}, floor=0.5)
    assert bound(RULES, some, sender("cat"), MODEL)[0] == 48.0
    assert bound(RULES, some, sender("p0"), MODEL)[0] == 100.0 * SHARE
    assert bound(RULES, history(idle, floor=0.5), sender("new"), MODEL)[0] == 10.0


def test_roles_are_not_compared_with_each_other() -> None:
    """A source of 200 steps beside targets of 2, and the other way round."""
    both = history({"s": (200.0, 200)}, role="source")
    both.add("target", {"t0": 2.0, "t1": 2.0}, {"t0": 2, "t1": 2}, 0.0)
    alone = sender("s", 200, "source", alone=True)
    assert bound(RULES, both, alone, MODEL) == (1600.0, "8 times its own earlier updates")
    assert bound(RULES, both, alone, 100.0)[0] == 1000.0
    assert bound(RULES, both, sender("t0", 2, "target"), MODEL)[0] == 16.0


def test_what_is_tiny_beside_the_model_always_passes() -> None:
    assert bound(Rules(), history({"ann": (1e-6, 1)}), sender(alone=True), 50.0)[0] == pytest.approx(0.5)


def test_only_the_last_exchanges_are_remembered() -> None:
    made = history(*({"ann": (float(10**n), 1)} for n in range(6)))
    assert made.parties["ann"] == [1e3, 1e4, 1e5]
    assert len(made.roles["trainer"]) == KEPT
    assert bound(RULES, made, sender(alone=True), MODEL)[0] == 8e4, "with nobody to compare with, the median"
    assert bound(RULES, made, sender(), MODEL)[0] == 5e4, "the least, which is less than what is usual: half of that"


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(NORM, STEPS), min_size=2),
    st.floats(0.26, 1.0),
    st.floats(0.0, 1.0),
)
def test_whoever_grows_with_its_steps_by_any_power_is_never_refused(
    told: dict[str, tuple[float, int]], wobble: float, power: float
) -> None:
    """Norms in proportion to steps**power, each within a factor of four: nobody is beyond the bound the next time."""
    norms = {party: (steps**power * (1 + wobble * (ord(party) % 3)), steps) for party, (_, steps) in told.items()}
    made = history(norms)
    for party, (norm, steps) in norms.items():
        assert norm <= bound(RULES, made, sender(party, steps), MODEL)[0]
        assert norm <= bound(RULES, made, sender("new", steps), MODEL)[0]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(NORM, STEPS), min_size=2))
def test_nobody_is_accepted_at_more_than_8_times_its_own_or_5_times_what_is_usual(
    told: dict[str, tuple[float, int]],
) -> None:
    made = history(told)
    for party, (norm, steps) in told.items():
        usual = made.usual("trainer", steps)
        assert usual is not None
        assert bound(RULES, made, sender(party, steps), MODEL)[0] <= 20 * max(OWN * norm, SHARE * usual[0]) * (1 + 1e-9)
