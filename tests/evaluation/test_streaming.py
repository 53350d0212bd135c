"""The largest of a stream, and embeddings that come in blocks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import streaming
from fedvisage.evaluation.streaming import Largest, UnitBlocks

blocks = st.lists(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0]) | st.floats(-1, 1), max_size=12), max_size=12
)


@cases(200)
@given(blocks, st.integers(0, 20), st.integers(0, 3))
def test_the_largest_of_a_stream_are_those_of_the_whole(parts, size, slack):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "SLACK", slack)
        largest = Largest(size)
        for part in parts:
            largest.add(np.array(part))
            assert largest.held <= 2 * size + slack
    assert largest.descending().tolist() == sorted(chain(*parts), reverse=True)[:size]


@cases(200)
@given(blocks, st.integers(1, 20), st.integers(0, 3))
def test_more_can_be_kept_down_to_a_bound_of_the_callers(parts, size, slack):
    """Asked for: everything with the same first decimal as the size-th largest, and the largest value below that."""

    def decimal(values):
        return np.floor(np.asarray(values) * 10)

    def bound(held, least):
        lower = held[decimal(held) < decimal(least)]
        return lower.max() if lower.size else -np.inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "SLACK", slack)
        largest = Largest(size, bound)
        for part in parts:
            largest.add(np.array(part))
    everything = sorted(chain(*parts), reverse=True)
    if len(everything) > size:
        least = everything[size - 1]
        below = [v for v in everything if decimal(v) < decimal(least)]
        wanted = [v for v in everything if decimal(v) >= decimal(least)]
        held = largest.descending().tolist()
        assert held[: len(wanted)] == wanted
        assert set(held[len(wanted) :]) == set(below[:1])
    else:
        assert largest.descending().tolist() == everything


@given(st.integers(1, 30), st.integers(1, 40), st.sampled_from([np.float32, np.float64]))
def test_blocks_of_unit_length_cover_everything_once(count, block, dtype):
    vectors = np.random.default_rng(count).normal(size=(count, 3))
    unit = UnitBlocks("vectors", vectors, block, dtype).all()
    assert unit.dtype == dtype
    assert np.allclose(unit, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-6)


def test_broken_embeddings_are_counted_over_all_blocks():
    vectors = np.ones((10, 2))
    vectors[[1, 8]] = np.nan
    with pytest.raises(FedVisageError, match="2 of 10 embeddings in faces hold NaN"):
        UnitBlocks("faces", vectors, 3, np.float32).all()
    vectors[[1, 8]] = 0
    with pytest.raises(FedVisageError, match="2 of 10 embeddings in faces are zero"):
        UnitBlocks("faces", vectors, 3, np.float32).all()
    with pytest.raises(FedVisageError, match="block must be at least 1"):
        UnitBlocks("faces", vectors, 0, np.float32)
    with pytest.raises(FedVisageError, match="float16"):
        UnitBlocks("faces", vectors, 3, np.float16)
