"""Every identity has one home, whatever the order of the files; sizes and errors as the recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.config import Partition as Settings
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, FaceSet
from fedvisage.faces.inspection import describe_partition
from fedvisage.faces.partition import Partition, make_partition, party_faces


def faceset(counts: list[int], order: list[int] | None = None) -> FaceSet:
    """Person n is called `person-n` and has counts[n] images; `order` renumbers people and so mixes the files."""
    order = list(range(len(counts))) if order is None else order
    labels = np.concatenate([np.full(counts[person], place) for place, person in enumerate(order)]) if counts else []
    names = tuple(f"person-{person:03d}" for person in order)
    images = ArrayImages(np.zeros((len(labels), 2, 2, 3), np.uint8))
    return FaceSet(images, np.asarray(labels, dtype=np.int64), names)


def make(faces: FaceSet, seed: int = 1, **settings: Any) -> Partition:
    return make_partition(faces, Settings(**settings), Streams(seed, "partition"))


def people(faces: FaceSet, images: tuple[int, ...]) -> set[str]:
    return {faces.names[label] for label in faces.labels[list(images)]}


settings_and_counts = st.tuples(
    st.lists(st.integers(2, 6), min_size=12, max_size=20),
    st.fixed_dictionaries(
        {
            "public": st.integers(0, 3),
            "test": st.integers(0, 3),
            "parties": st.integers(1, 4),
            "sizes": st.sampled_from(["equal", "log-normal"]),
            "held_out": st.sampled_from([0.0, 0.2, 0.5]),
            "validators": st.integers(0, 1),
            "identities_per_validator": st.just(2),
        }
    ),
)


@given(settings_and_counts)
def test_no_image_is_used_twice_and_no_person_has_two_homes(case: tuple[list[int], dict[str, Any]]) -> None:
    counts, settings = case
    counts = [count + 2 for count in counts]
    faces = faceset(counts)
    partition = make(faces, **settings)
    trained = [share.train + share.held_out for share in partition.parties.values()]
    everything = [*partition.public, *partition.test, *(index for images in trained for index in images)]
    assert len(everything) == len(set(everything))
    homes = [people(faces, images) for images in (partition.public, partition.test, *trained)]
    assert sum(map(len, homes)) == len(set.union(*homes))
    assert (len(homes[0]), len(homes[1])) == (settings["public"], settings["test"])
    left = len(counts) - settings["public"] - settings["test"] - 2 * settings["validators"]
    unused = describe_partition(partition, faces).get("unused", {"identities": 0})["identities"]
    assert sum(map(len, homes)) + unused == len(counts)
    assert unused == (left % settings["parties"] if settings["sizes"] == "equal" else 0)
    for share in partition.parties.values():
        assert people(faces, share.held_out) <= people(faces, share.train)
        for person in people(faces, share.train):
            number = faces.names.index(person)
            assert sum(faces.labels[index] == number for index in share.train + share.held_out) == counts[number]


@given(settings_and_counts, st.randoms(use_true_random=False))
def test_who_belongs_where_does_not_depend_on_the_order_of_files(
    case: tuple[list[int], dict[str, Any]], chance: Any
) -> None:
    counts, settings = [count + 2 for count in case[0]], case[1]
    order = list(range(len(counts)))
    chance.shuffle(order)
    one, other = faceset(counts), faceset(counts, order)
    before, after = make(one, **settings), make(other, **settings)

    def described(faces: FaceSet, images: tuple[int, ...]) -> set[tuple[str, int]]:
        first = {label: int(np.flatnonzero(faces.labels == label)[0]) for label in np.unique(faces.labels)}
        return {(faces.names[faces.labels[i]], i - first[faces.labels[i]]) for i in images}

    for ours, theirs in ((before.public, after.public), (before.test, after.test)):
        assert described(one, ours) == described(other, theirs)
    assert before.parties.keys() == after.parties.keys()
    for name, share in before.parties.items():
        assert described(one, share.train) == described(other, after.parties[name].train)
        assert described(one, share.held_out) == described(other, after.parties[name].held_out)


@given(st.integers(1, 12), st.integers(0, 60), st.integers(0, 1000))
def test_log_normal_sizes_use_everybody_and_leave_no_party_empty(parties: int, more: int, seed: int) -> None:
    faces = faceset([3] * (parties + more))
    partition = make(faces, seed=seed, parties=parties, sizes="log-normal", held_out=0.0)
    sizes = [len(people(faces, share.train)) for share in partition.parties.values()]
    assert sum(sizes) == parties + more
    assert min(sizes) >= 1


def test_log_normal_sizes_differ_and_equal_sizes_do_not() -> None:
    faces = faceset([3] * 100)
    uneven = make(faces, parties=8, sizes="log-normal", held_out=0.0)
    sizes = [len(share.train) // 3 for share in uneven.parties.values()]
    assert max(sizes) > 3 * min(sizes)
    even = make(faces, parties=8, held_out=0.0)
    assert {len(share.train) // 3 for share in even.parties.values()} == {12}


def test_another_seed_is_another_partition() -> None:
    faces = faceset([4] * 20)
    assert make(faces, seed=1, parties=2) != make(faces, seed=2, parties=2)
    assert make(faces, seed=1, parties=2) == make(faces, seed=1, parties=2)


@pytest.mark.parametrize(("held_out", "kept"), [(0.0, 0), (0.2, 2), (0.5, 5), (0.99, 9)])
def test_the_held_out_share_is_of_each_person_and_leaves_one_to_train_on(held_out: float, kept: int) -> None:
    faces = faceset([10] * 4)
    partition = make(faces, parties=2, held_out=held_out)
    for share in partition.parties.values():
        assert [
            sum(faces.labels[i] == label for i in share.held_out)
            for label in np.unique(faces.labels[list(share.train)])
        ] == [kept, kept]


def test_each_persons_held_out_images_are_drawn_for_that_person() -> None:
    faces = faceset([10] * 20)
    (share,) = make(faces, parties=1, held_out=0.2).parties.values()
    places = {tuple(index % 10 for index in share.held_out if index // 10 == person) for person in range(20)}
    assert len(places) > 10, "of 45 possible pairs, twenty draws give 16 different ones on average"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parties": 9}, "partition.parties: 9 parties, but 8 people are left"),
        ({"parties": 2, "public": 7}, "partition.parties: 2 parties, but 1 people are left"),
        ({"parties": 1, "public": 30}, "partition.public asks for 30 people, but only 8 are left"),
        (
            {"parties": 1, "validators": 1, "identities_per_validator": 8},
            "partition.parties asks for people, but only 0",
        ),
        ({"parties": 3, "identities_per_party": 3}, "partition.parties asks for 9 people, but only 8 are left"),
        ({"parties": 8, "held_out": 0.6}, "party 'party-00' has 1 training image; training needs at least 2"),
    ],
)
def test_what_cannot_be_shared_out_is_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedVisageError) as caught:
        make(faceset([3] * 8), **settings)
    assert message in str(caught.value)


def test_a_set_without_people_is_refused() -> None:
    with pytest.raises(FedVisageError, match="asks for people, but only 0 are left"):
        make(faceset([]), parties=1)


def test_validators_are_parties_of_their_own_role() -> None:
    faces = faceset([3] * 10)
    partition = make(faces, parties=2, validators=2, identities_per_validator=2)
    roles = {name: share.role for name, share in partition.parties.items()}
    assert roles == {
        "validator-00": "validator",
        "validator-01": "validator",
        "party-00": "trainer",
        "party-01": "trainer",
    }


def test_pooling_joins_the_trainers_and_leaves_validators_out() -> None:
    faces = faceset([4] * 10)
    partition = make(faces, parties=3, test=2, validators=1, identities_per_validator=2)
    pooled = partition.pooled()
    (share,) = pooled.parties.values()
    trainers = [s for s in partition.parties.values() if s.role == "trainer"]
    assert sorted(share.train) == sorted(i for s in trainers for i in s.train)
    assert sorted(share.held_out) == sorted(i for s in trainers for i in s.held_out)
    assert pooled.test == partition.test


def test_a_saved_partition_reads_back_equal_and_names_people(tmp_path: Path) -> None:
    faces = faceset([4] * 10)
    partition = make(faces, parties=3, test=2, public=1)
    partition.save(tmp_path / "partition.json", faces.names, faces.labels)
    assert Partition.load(tmp_path / "partition.json") == partition
    text = (tmp_path / "partition.json").read_text()
    assert all(name in text for name in people(faces, partition.test))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parties": 3}', '{"parties": {"a": {}}}', "\x00"])
def test_a_damaged_partition_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "partition.json").write_text(content)
    with pytest.raises(FedVisageError, match=r"cannot read the partition .*partition\.json"):
        Partition.load(tmp_path / "partition.json")


def test_a_party_sees_its_own_people_under_labels_of_its_own() -> None:
    faces = faceset([5] * 6)
    partition = make(faces, parties=2, public=2)
    role, own = party_faces(faces, partition, "party-01")
    assert role == "trainer"
    assert own.train.classes == 2
    assert own.train.labels is not None
    assert sorted(set(own.train.labels.tolist())) == [0, 1]
    assert own.held_out is not None
    assert own.held_out.labels is not None
    assert own.held_out.labels.tolist() == [0, 1]
    assert own.public is not None
    assert own.public.classes == 2


def test_the_first_images_are_held_out_where_the_recipe_says_how_many_and_one_is_left_to_train_on() -> None:
    faces = faceset([2, 5, 9])
    share = make(faces, parties=1, held_out_first=4).parties["party-00"]
    assert share.held_out == (0, 2, 3, 4, 5, 7, 8, 9, 10)
    assert share.train == (1, 6, 11, 12, 13, 14, 15)


def test_people_with_more_images_than_asked_for_are_not_taken() -> None:
    faces = faceset([3, 4, 5, 6, 7, 8])
    partition = make(faces, public={"min_images": 4, "most_images": 6}, parties=1)
    assert people(faces, partition.public) == {"person-001", "person-002", "person-003"}
    with pytest.raises(FedVisageError, match=r"partition\.public asks for people, but only 0 are left"):
        make(faces, public={"min_images": 6, "most_images": 5}, parties=1)
