"""Folds that lists do not say: whatever the list, a fold holds both kinds of pairs or there are no folds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.folds import PairRows, assign_folds, one_kind, published

runs = st.lists(st.integers(1, 40), min_size=1, max_size=24)


def in_runs(lengths: list[int], first: bool) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.repeat((np.arange(len(lengths)) % 2 == 0) == first, lengths)


@given(runs | st.lists(st.sampled_from([5, 10, 300]), min_size=1, max_size=20), st.booleans())
def test_no_list_is_cut_into_a_fold_of_one_kind(lengths: list[int], first: bool) -> None:
    same = in_runs(lengths, first)
    fold, _ = assign_folds(same)
    assert fold.shape == same.shape
    assert one_kind(fold, same) is None
    assert (fold > 0).all() or not fold.any()


@given(st.integers(2, 20), st.integers(5, 30), st.integers(5, 30))
def test_blocks_of_one_size_are_the_folds(folds: int, same: int, different: int) -> None:
    fold, rule = assign_folds(in_runs([same, different] * folds, True))
    assert fold.tolist() == [1 + n // (same + different) for n in range(folds * (same + different))]
    assert rule == ""


@given(st.integers(1, 30), st.booleans())
def test_tenths_of_either_kind_where_one_comes_first(each: int, first: bool) -> None:
    """Fold k is pairs (k - 1) n + 1 to k n of the first kind with the same places of the second."""
    fold, rule = assign_folds(in_runs([10 * each, 10 * each], first))
    assert fold.tolist() == [1 + place // each for place in range(10 * each)] * 2
    assert f"the k-th {each} of these" in rule


@pytest.mark.parametrize("lengths", [[500, 490], [52, 91], [300, 300, 300], [300, 300, 300, 200], [5]])
def test_other_blocks_have_no_folds(lengths: list[int]) -> None:
    assert not assign_folds(in_runs(lengths, True))[0].any()


def test_folds_that_a_list_says_are_refused_where_one_is_of_one_kind() -> None:
    none = np.zeros(4, np.int64)
    says = "pairs.txt: fold 2 holds 2 different pairs and no same one"
    with pytest.raises(FedVisageError, match=says):
        PairRows("pairs.txt", none, none, np.array([True, False, False, False]), np.array([1, 1, 2, 2]))
    with pytest.raises(FedVisageError, match=r"pairs.txt holds 4 same pairs and no different one"):
        PairRows("pairs.txt", none, none, np.ones(4, bool), none)


NAMES = {"pairs_CPLFW": "CPLFW", "lfw112-dev": "LFW", "agedb_30": "AgeDB-30", "cfp_fp": "CFP-FP", "cfp-ff": "CFP-FF"}
NAMES |= {"vgg2_fp": "VGG2-FP", "pair_SLLFW": "SLLFW", "pairsDevTest": "LFW's View 1, test", "mlfw_pairs": ""}


@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_are_known_by_their_lists_names(name: str) -> None:
    assert getattr(published(name), "name", "") == NAMES[name]
