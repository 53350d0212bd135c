from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import Diverged, FedVisageError, nearest


@given(st.text())
def test_an_error_is_one_line_whatever_is_in_it(words: str) -> None:
    error = FedVisageError(f"no column '{words}'")
    assert len(str(error).splitlines()) == 1
    assert str(error).startswith("no column '")


@pytest.mark.parametrize("kind", [FedVisageError, Diverged])
def test_an_error_comes_back_from_another_process_as_it_was(kind: type[FedVisageError]) -> None:
    again = pickle.loads(pickle.dumps(kind("a\nb")))
    assert type(again) is kind
    assert str(again) == "a b"


def test_the_nearest_word_is_named_or_all_of_them() -> None:
    assert nearest("fedvg", ["fedavg", "pfm"]) == "did you mean 'fedavg'?"
    assert "fedavg, pfm" in nearest("zzz", ["pfm", "fedavg"])
