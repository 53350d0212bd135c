"""The personal protocol in blocks is the plain enumeration of pairs and searches, in both variants."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import macro_average, personal_protocol, streaming, tar_at_far, tpir_at_fpir
from fedvisage.evaluation import personal as module
from fedvisage.evaluation.personal import _count
from tests.evaluation.test_identification import whole_numbers


@st.composite
def parties(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    people, local = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    labels = np.concatenate([[0, 0, 1], rng.integers(0, people, draw(st.integers(0, 40)))])
    labels = rng.permutation(labels)
    train = np.concatenate([np.arange(min(local, people)), rng.integers(0, min(local, people), 5)])
    return whole_numbers(rng, len(labels)), labels, abs(whole_numbers(rng, len(train))), train


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@cases(250)
@given(parties(), st.integers(1, 50), st.sampled_from([np.float32, np.float64]))
def test_both_variants_are_the_plain_enumeration(case, columns, dtype):
    test, labels, train, train_labels = case
    fars, fpirs = [0.5, 0.1, 0.03, 1e-6], [0.5, 0.1, 0.02]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COLUMNS", columns)
        patch.setattr(streaming, "SLACK", 0)
        result = personal_protocol(test, labels, train, train_labels, fars=fars, fpirs=fpirs, dtype=dtype)
    local = set(train_labels.tolist())
    cosine = unit(test) @ unit(test).T
    pairs = [(i, j) for i, j in combinations(range(len(labels)), 2) if {labels[i], labels[j]} & local]
    genuine = [cosine[i, j] for i, j in pairs if labels[i] == labels[j]]
    impostor = [cosine[i, j] for i, j in pairs if labels[i] != labels[j]]
    assert (result.counts.genuine, result.counts.impostor) == (len(genuine), len(impostor))
    for far, clean, parity in zip(fars, result.clean_verification, result.parity_verification, strict=True):
        assert repr(clean) == repr(tar_at_far(genuine, impostor, far))
        if clean.reason is None:
            assert parity.value == tar_at_far(genuine, impostor, far, "histogram").value
    people = sorted(local)
    means = np.stack([unit(train)[train_labels == person].mean(axis=0) for person in people])
    for fpir, clean, parity in zip(fpirs, result.clean_identification, result.parity_identification, strict=True):
        same = {"dtype": dtype}
        assert repr(clean) == repr(tpir_at_fpir(test, labels, means, people, fpir, "nist", **same))
        reference = tpir_at_fpir(test, labels, means, people, fpir, "pair-count", normalise_gallery=False, **same)
        assert repr(parity) == repr(reference)


def test_the_papers_pair_counts():
    # 4,000 people with 40 test images each, 100 of them the party's: the counts of the published protocol.
    labels = np.repeat(np.arange(4000), 40)
    counts = _count(labels, labels < 100, 100)
    assert counts.genuine == 78_000
    assert (counts.impostor_local, counts.impostor_others) == (7_920_000, 624_000_000)
    assert counts.impostor == 631_920_000
    assert (counts.mated, counts.non_mated) == (4_000, 156_000)


def faces(seed=0, people=30, each=8, width=16):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(people), each)
    return rng.normal(size=(people, width))[labels] + 0.9 * rng.normal(size=(len(labels), width)), labels


def test_parties_count_once_each_in_the_average():
    test, labels = faces()
    train, train_labels = faces(1)
    each = [
        personal_protocol(test, labels, train[own], train_labels[own], fars=[1e-2], fpirs=[0.1])
        for own in (train_labels < 3, (train_labels >= 3) & (train_labels < 20))
    ]
    assert [party.counts.people for party in each] == [3, 17]
    for variant in ("parity", "clean"):
        average = macro_average(each, variant)
        assert set(average) == {"tar@0.01", "tpir@0.1"}
        for name, value in average.items():
            assert value == pytest.approx(sum(party.rates(variant)[name] for party in each) / 2)


def test_below_the_resolution_the_reason_is_given():
    test, labels = faces()
    train, train_labels = faces(1)
    result = personal_protocol(test, labels, train, train_labels)
    assert math.isnan(result.rates("clean")["tar@1e-06"])
    assert any("impostor scores is less than one false accept" in reason for reason in result.reasons)
    assert any("fpir 1e-05 of 240 probes is less than one false positive" in reason for reason in result.reasons)


def test_bad_input_is_named_with_counts():
    test, labels = faces(people=4, each=2)
    broken = test.copy()
    broken[[0, 5]] = np.nan
    for embeddings, names, gallery, gallery_names, words in [
        (broken, labels, test[:4], labels[:4], r"1 of 4 embeddings in test \(the party's people\) hold NaN"),
        (broken, labels, test[2:4], labels[2:4], r"2 of 6 embeddings in test \(other people\) hold NaN"),
        (test, labels[:5], test[:2], labels[:2], "5 labels for 8 test embeddings"),
        (test, labels, test[:3], labels[:2], "2 labels for 3 gallery embeddings"),
        (test, labels, test[:2], [77, 78], "none of the 2 people in the gallery is among the test images"),
        (test, np.arange(8), test[:2], [0, 1], "0 genuine pairs among 2 test images"),
        (test, labels, test[:2], ["0", "1"], "identities are int64 among the test images and <U1"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            personal_protocol(embeddings, names, gallery, gallery_names)
    with pytest.raises(FedVisageError, match="unknown variant 'paper'; known: parity, clean"):
        personal_protocol(test, labels, test, labels).rates("paper")
