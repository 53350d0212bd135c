"""Influences of test people: derivatives of a score by how often somebody counts, and what resampling makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import (
    among_distractors,
    bootstrap_accuracy,
    bootstrap_tar,
    kfold_accuracy,
    make_pairs,
    search,
)
from fedvisage.evaluation.influence import (
    accuracy_influence,
    alarms,
    every_pair,
    listed_pairs,
    pairs_among,
    pairs_with,
    searched_pairs,
    share_influence,
    tar_influence,
)

Floats = NDArray[np.float64]


def faces(seed: int, people: int = 120, images: int = 4, noise: float = 1.1) -> tuple[Floats, NDArray[np.int64]]:
    """Embeddings (people x images, 16) around a centre per person, and the labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(people), images)
    return rng.normal(size=(people, 16))[labels] + noise * rng.normal(size=(len(labels), 16)), labels


def resampled(influence: Floats, draws: int = 4000) -> Floats:
    """What the influences say of scores with people drawn anew."""
    people = len(influence)
    weights = np.random.default_rng(3).multinomial(people, np.full(people, 1 / people), draws)
    return (weights - 1) @ influence


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=30))
def test_a_shares_influence_is_its_derivative(trials: list[tuple[bool, int]]) -> None:
    right, person = (np.array(part) for part in zip(*trials, strict=True))
    found = share_influence(right, person, 5)
    step = 1e-6
    for who in range(5):
        weight = np.where(person == who, 1 + step, 1.0)
        slope = ((weight * right).sum() / weight.sum() - right.mean()) / step
        assert found[who] == pytest.approx(slope, abs=1e-5)
    assert found.sum() == pytest.approx(0)


def test_the_influence_on_accuracy_is_its_derivative_at_kept_thresholds() -> None:
    embeddings, labels = faces(1, people=40)
    left, right, same = make_pairs(labels, 200, np.random.default_rng(2))
    found = accuracy_influence(embeddings[left], embeddings[right], labels[left], labels[right], 40)
    assert found.sum() != 0  # an impostor pair has two people: twice everybody is four times the impostors
    first, second = labels[left], labels[right]
    correct = _correct(embeddings[left], embeddings[right], same)
    step = 1e-6
    for who in (0, 7, 39):
        weight = np.where(first == who, 1 + step, 1.0) * np.where((second == who) & ~same, 1 + step, 1.0)
        slope = ((weight * correct).sum() / weight.sum() - correct.mean()) / step
        assert found[who] == pytest.approx(slope, abs=1e-5)


def _correct(a: Floats, b: Floats, same: NDArray[np.bool_]) -> NDArray[np.bool_]:
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (a, b)]
    distance = ((unit[0] - unit[1]) ** 2).sum(axis=1)
    thresholds = np.repeat(kfold_accuracy(a, b, same).thresholds, len(same) // 10)
    return (distance < thresholds) == same


def test_the_spread_of_accuracy_is_the_bootstraps() -> None:
    embeddings, labels = faces(1)
    left, right, _ = make_pairs(labels, 600, np.random.default_rng(2))
    sides = embeddings[left], embeddings[right], labels[left], labels[right]
    exact = bootstrap_accuracy(*sides, np.random.default_rng(5), resamples=2000)
    ours = resampled(accuracy_influence(*sides, people=120))
    low, high = exact.value + np.quantile(ours, [0.025, 0.975])
    assert high - low == pytest.approx(exact.high - exact.low, rel=0.15)


@pytest.mark.parametrize("far", [0.1, 0.01])
def test_the_spread_of_tar_is_that_of_a_bootstrap_that_sets_its_threshold_anew(far: float) -> None:
    embeddings, labels = faces(1)
    exact = bootstrap_tar(embeddings, labels, far, np.random.default_rng(5), resamples=1000)
    influence = tar_influence(every_pair(embeddings, labels, far), far)
    ours = resampled(influence)
    low, high = exact.value + np.quantile(ours, [0.025, 0.975])
    assert high - low == pytest.approx(exact.high - exact.low, rel=0.2)
    assert influence.sum() == pytest.approx(0, abs=1e-3)


def test_two_models_on_the_same_people_differ_by_less_than_their_spreads_suggest() -> None:
    """What pairing is for: the second model is the first with a little noise, so both find the same people hard."""
    embeddings, labels = faces(1)
    other = embeddings + 0.3 * np.random.default_rng(8).normal(size=embeddings.shape)
    one, two = (tar_influence(every_pair(part, labels, 0.1), 0.1) for part in (embeddings, other))
    assert resampled(one - two).std() < 0.6 * np.hypot(resampled(one).std(), resampled(two).std())


def test_all_pairs_as_a_list_have_the_same_influences() -> None:
    embeddings, labels = faces(4, people=20)
    left, right = np.triu_indices(len(labels), 1)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = (unit @ unit.T)[left, right]
    listed = listed_pairs(scores, labels[left], labels[right], 20)
    every = every_pair(embeddings, labels, 0.05, np.float64)
    assert np.array_equal(listed.touching, every.touching)
    assert tar_influence(listed, 0.05) == pytest.approx(tar_influence(every, 0.05))


def test_a_rate_below_the_resolution_has_no_influence() -> None:
    embeddings, labels = faces(4, people=5)
    with pytest.raises(FedVisageError, match="cannot show a false accept rate"):
        tar_influence(every_pair(embeddings, labels, 1e-6), 1e-6)


def test_pairs_with_local_images_are_those_of_the_slow_way() -> None:
    embeddings, labels = faces(4, people=12, images=3)
    local = labels < 4
    left, right = np.triu_indices(len(labels), 1)
    wanted = local[left] | local[right]
    left, right = left[wanted], right[wanted]
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    slow = listed_pairs((unit @ unit.T)[left, right], labels[left], labels[right], 12)
    fast = pairs_with(embeddings, labels, local, 12)
    assert np.array_equal(fast.touching, slow.touching)
    assert np.sort(fast.genuine) == pytest.approx(np.sort(slow.genuine), abs=1e-5)
    assert fast.impostor == pytest.approx(slow.impostor, abs=1e-5)
    assert tar_influence(fast, 0.1) == pytest.approx(tar_influence(slow, 0.1), abs=1e-6)


def test_pairs_among_distractors_are_those_of_the_slow_way() -> None:
    embeddings, labels = faces(4, people=12, images=3)
    probe = labels < 5
    left, right = np.triu_indices(len(labels), 1)
    wanted = np.where(labels[left] == labels[right], probe[left], probe[left] != probe[right])
    left, right = left[wanted], right[wanted]
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    slow = listed_pairs((unit @ unit.T)[left, right], labels[left], labels[right], 12)
    fast = pairs_among(embeddings[probe], labels[probe], embeddings[~probe], labels[~probe], 12)
    assert np.array_equal(fast.touching, slow.touching)
    assert np.sort(fast.genuine) == pytest.approx(np.sort(slow.genuine), abs=1e-5)
    assert tar_influence(fast, 0.1) == pytest.approx(tar_influence(slow, 0.1), abs=1e-6)


def test_distractors_are_impostors_whoever_they_are() -> None:
    """As the protocol counts them: a distractor of a probe's person is no mate."""
    embeddings, _ = faces(5, people=3, images=3)
    probes, others, theirs = embeddings[:4], embeddings[4:], np.array([0, 1, 2, 2, 2])
    found = pairs_among(probes, [0, 0, 1, 1], others, theirs, 3)
    told = among_distractors(probes, [0, 0, 1, 1], others, fars=(0.05,))
    assert (len(found.genuine), found.impostors) == (told.genuine, told.impostor) == (2, 20)
    assert found.touching.tolist() == [2 * 5 + 4, 2 * 5 + 4, 3 * 4]
    assert tar_influence(found, 0.05).sum() == pytest.approx(0, abs=1e-9)


def weighted_tpir(found: Floats, weight: Floats, false: Floats, counts: Floats, allowed: float) -> float:
    """The weighted share of `found` above the highest threshold that lets no more than `allowed` of `false` by."""
    order = np.argsort(-false)
    by = np.cumsum(counts[order])
    threshold = false[order][min(np.searchsorted(by, allowed, side="right"), len(order) - 1)]
    return float((weight * (found > threshold)).sum() / weight.sum())


@pytest.mark.parametrize("convention", ["nist", "pair-count"])
@pytest.mark.parametrize("fpir", [0.1, 0.3])
def test_the_spread_of_a_search_is_that_of_one_that_draws_its_probes_people_anew(convention: str, fpir: float) -> None:
    """The slow way: probes weigh as often as their person is drawn, and the threshold is set anew each time."""
    embeddings, labels = faces(6, people=160, images=3)
    enrolled = (np.arange(len(labels)) % 3 == 0) & (labels < 110)
    probe = np.arange(len(labels)) % 3 > 0
    who, known = labels[probe], labels[enrolled]
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = unit[probe] @ unit[enrolled].T
    mates = who[:, None] == known
    mated = mates.any(axis=1)
    mate, other = np.where(mates, scores, -np.inf).max(axis=1), np.where(mates, -np.inf, scores)
    if convention == "nist":
        trials = alarms(search(embeddings[probe], who, embeddings[enrolled], known), who, 160)
        found = np.where(mate > other.max(axis=1), mate, -np.inf)
        false, whose = other[~mated].max(axis=1), who[~mated]
    else:
        sides = (embeddings[probe], who), (embeddings[enrolled], known)
        trials = searched_pairs(*sides, who, 160, fpir)
        found, false, whose = mate, other[~mates], np.repeat(who, len(known))[~mates.ravel()]
    influence = tar_influence(trials, fpir)
    assert influence.sum() == pytest.approx(0, abs=1e-9)
    drawn = np.random.default_rng(5).multinomial(160, np.full(160, 1 / 160), 1000).astype(np.float64)
    slow = []
    for weight in drawn:
        of = weight[who]
        base = of[~mated].sum() if convention == "nist" else of.sum()
        slow.append(weighted_tpir(found[mated], of[mated], false, weight[whose], fpir * base))
    assert resampled(influence).std() == pytest.approx(np.std(slow), rel=0.2)
