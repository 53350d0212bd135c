"""The example in the contract's own words runs."""

from __future__ import annotations

import doctest

from fedvisage.core import method


def test_the_contracts_example_runs() -> None:
    tried = doctest.testmod(method)
    assert tried.attempted > 10
    assert tried.failed == 0
