"""Copies of people whom several parties hold, by hand and against a loop."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.people import follow_present


def test_absent_holders_follow_the_mean_of_those_who_answered() -> None:
    """Person 7 is held four times, and two copies came; nobody sent person 8; person 9 came from its only holder."""
    rows = torch.tensor([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0], [8.0, 8.0], [5.0, 5.0], [5.0, 5.0], [1.0, 1.0]])
    person = torch.tensor([7, 7, 7, 7, 8, 8, 9])
    present = torch.tensor([True, True, False, False, False, False, True])
    follow_present(rows, person, present)
    mean = [1.0, 2.0]
    assert rows.tolist() == [[2.0, 0.0], [0.0, 4.0], mean, mean, [5.0, 5.0], [5.0, 5.0], [1.0, 1.0]]


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12))
def test_it_equals_a_loop_over_people(held: list[tuple[int, bool]]) -> None:
    rows = torch.arange(2.0 * len(held)).reshape(-1, 2).square()
    person, present = (torch.tensor(values) for values in zip(*held, strict=True))
    wanted = rows.clone()
    for row in range(len(held)):
        told = rows[(person == person[row]) & present]
        if not present[row] and len(told):
            wanted[row] = told.mean(dim=0)
    follow_present(rows, person, present)
    assert torch.allclose(rows, wanted)
