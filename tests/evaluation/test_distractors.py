"""Probes among distractors, against the plain count over a dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import among_distractors, replace_noisy_probes, streaming, tar_at_far
from fedvisage.evaluation import distractors as module
from tests.evaluation.test_identification import whole_numbers


@st.composite
def trials(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probes, distractors = draw(st.integers(2, 20)), draw(st.integers(1, 60))
    ids = rng.integers(0, draw(st.integers(1, 8)), probes)
    ids[0] = ids[1]
    noisy = rng.random(distractors) < draw(st.sampled_from([0, 0.3, 1]))
    return whole_numbers(rng, probes), ids, whole_numbers(rng, distractors), noisy


def cosines(a, b):
    return a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)


@cases(300)
@given(trials(), st.integers(1, 30), st.integers(0, 40), st.sampled_from([np.float32, np.float64]))
def test_blocks_give_the_plain_count(case, block, pending, dtype):
    probes, ids, distractors, noisy = case
    among, own = cosines(probes, distractors), cosines(probes, probes)
    among[:, noisy] = -np.inf
    ordered = [(i, j) for i in range(len(ids)) for j in range(len(ids)) if i != j and ids[i] == ids[j]]
    fars = [1.0, 0.5, 0.1, 0.01, 1e-4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PENDING", pending)
        patch.setattr(streaming, "SLACK", 0)
        result = among_distractors(
            probes, ids, distractors, ranks=[1, 2, 5, 100], fars=fars, noisy_distractors=noisy, block=block, dtype=dtype
        )
    for k in (1, 2, 5, 100):
        hits = [np.count_nonzero(among[i] >= own[i, j]) < k for i, j in ordered]
        assert result.ranks[k] == np.mean(hits)
    assert (result.trials, result.genuine, result.impostor) == (len(ordered), len(ordered) // 2, among.size)
    assert result.without_mate == len(ids) - len({i for i, _ in ordered})
    # Noisy distractors are compared and never alike: the lowest of all scores stands for them.
    genuine = [own[i, j] for i, j in ordered if i < j]
    for far, rate in zip(fars, result.rates, strict=True):
        reference = tar_at_far(genuine, np.maximum(among, -2).ravel(), far)
        if reference.reason:
            assert (np.isnan(rate), rate.reason) == (True, reference.reason)
        else:
            assert (rate.value, rate.threshold) == (reference.value, rate.threshold)
            if rate.threshold > -2 and np.isfinite(rate.threshold):
                assert (rate.threshold, rate.measured_far) == (reference.threshold, reference.measured_far)


class Repeated:
    """Distractors that are never all in memory: a few, over and over."""

    def __init__(self, some, times):
        self.some, self.shape, self.largest = some, (len(some) * times, some.shape[1]), 0

    def __getitem__(self, part, /):
        self.largest = max(self.largest, part.stop - part.start)
        return self.some[np.arange(part.start, part.stop) % len(self.some)]


def test_distractors_are_read_a_block_at_a_time():
    rng = np.random.default_rng(0)
    probes, ids = rng.normal(size=(30, 8)), np.arange(30) // 3
    probes += 2 * rng.normal(size=(10, 8))[ids]
    some = rng.normal(size=(50, 8))
    source = Repeated(some, 40)
    streamed = among_distractors(probes, ids, source, ranks=[1, 41], fars=[1e-2], block=64)
    once = among_distractors(probes, ids, some, ranks=[1, 2], fars=[1e-2])
    assert source.largest == 64
    assert streamed.ranks == {1: once.ranks[1], 41: once.ranks[2]}
    assert streamed.rates[0].value == once.rates[0].value
    assert streamed.impostor == 40 * once.impostor


def test_a_noisy_probe_becomes_its_persons_centre():
    probes = np.array([[1.0, 0], [0, 2.0], [-5.0, 0], [1.0, 1.0]])
    replaced = replace_noisy_probes(probes, [0, 0, 0, 1], [False, False, True, False], np.random.default_rng(0))
    assert np.allclose(replaced[[0, 1, 3]], [[1, 0], [0, 1], [0.5**0.5, 0.5**0.5]])
    assert np.allclose(replaced[2], 0.5**0.5, atol=2e-3)
    assert not np.allclose(replaced[2], 0.5**0.5, atol=1e-7)
    with pytest.raises(FedVisageError, match="1 people have noisy images only, first '1'"):
        replace_noisy_probes(probes, [0, 0, 0, 1], [False, False, True, True], np.random.default_rng(0))


def test_bad_input_is_named_with_counts():
    good, broken = np.eye(4), np.eye(4)
    broken[1, 1] = np.nan
    for probes, ids, others, options, words in [
        (good, [0, 1, 2, 3], good, {}, "0 genuine pairs among 4 probes"),
        (broken, [0, 0, 1, 1], good, {}, "1 of 4 embeddings in probes hold NaN"),
        (good, [0, 0, 1, 1], broken, {}, "1 of 4 embeddings in distractors hold NaN"),
        (good, [0, 0, 1, 1], 0 * good, {}, "4 of 4 embeddings in distractors are zero"),
        (good, [0, 0, 1], good, {}, "3 labels for 4 embeddings"),
        (good, [0, 0, 1, 1], np.eye(3), {}, "probes have 4 dimensions and distractors 3"),
        (good, [0, 0, 1, 1], good, {"ranks": [0]}, "ranks"),
        (good, [0, 0, 1, 1], good, {"noisy_distractors": [True]}, "noisy must be 4 true or false"),
        (good, [0, 0, 1, 1], good[:0], {}, "at least one embedding"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            among_distractors(probes, ids, others, **options)
