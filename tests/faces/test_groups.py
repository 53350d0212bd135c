"""Parties by role, domain, fold and name; people whom several parties hold; and overlaps, which are refused."""

from __future__ import annotations

import gc
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.config import Faces as FacesSettings
from fedvisage.config import Partition as Settings
from fedvisage.config import Recipe, load_recipe, to_toml
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, FaceSet, open_faceset, write_faceset
from fedvisage.faces.lists import PairList, write_lists
from fedvisage.faces.opening import joined, open_source
from fedvisage.faces.partition import Partition, Share, make_partition, party_faces


def faceset(counts: list[int], names: list[str] | None = None) -> FaceSet:
    """Image i is filled with the number i."""
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.broadcast_to(np.arange(len(labels), dtype=np.uint8)[:, None, None, None], (len(labels), 16, 16, 3))
    return FaceSet(ArrayImages(pixels), labels, tuple(names or [f"p{person:02d}" for person in range(len(counts))]))


def make(faces: FaceSet, seed: int = 1, **settings: Any) -> Partition:
    return make_partition(faces, Settings.model_validate(settings), Streams(seed))


def people(faces: FaceSet, images: tuple[int, ...]) -> set[str]:
    return {faces.names[label] for label in faces.labels[list(images)]}


@pytest.fixture
def two(tmp_path: Path) -> FaceSet:
    """Eight people of lfw, six of actors, from two folders."""
    for name, count in (("lfw", 8), ("actors", 6)):
        write_faceset(tmp_path / name, faceset([4] * count))
    return open_source(FacesSettings(source=(str(tmp_path / "lfw"), str(tmp_path / "actors")), size=16), tmp_path / "c")


def test_folders_become_domains_and_their_people_keep_their_images(two: FaceSet) -> None:
    assert two.domains == ("lfw", "actors")
    assert two.names[:1] + two.names[-1:] == ("lfw/p00", "actors/p05")
    order = np.array([55, 0, 33, 31])
    assert two.images.read(order)[:, 0, 0, 0].tolist() == [23, 0, 1, 31]
    assert [two.names[label] for label in two.labels[order]] == ["actors/p05", "lfw/p00", "actors/p00", "lfw/p07"]
    with pytest.raises(FedVisageError, match="images go from 0 to 55"):
        two.images.read(np.array([56]))


def test_a_source_and_its_targets(two: FaceSet) -> None:
    groups = {
        "lfw": {"domain": "lfw", "role": "source"},
        "actors": {"domain": "actors", "role": "target", "parties": 2},
    }
    test = {"domain": "actors", "count": 2}
    partition = make(two, groups=groups, test=test)
    assert {name: share.role for name, share in partition.parties.items()} == {
        "lfw-00": "source",
        "actors-00": "target",
        "actors-01": "target",
    }
    assert len(people(two, partition.parties["lfw-00"].train)) == 8
    for name in ("actors-00", "actors-01"):
        assert len(people(two, partition.parties[name].train)) == 2
        assert partition.parties[name].held_out == ()
        assert people(two, partition.parties[name].train) <= set(two.names[8:])
    assert len(people(two, partition.test)) == 2


def reachable(thing: object) -> list[np.ndarray[Any, Any]]:
    """Every array that can be reached from an object of ours, whatever the way."""
    found, seen, todo = [], set(), [thing]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in ("module", "function"):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            found.append(one)
        todo += gc.get_referents(one)
    return found


@pytest.mark.parametrize(("role", "hidden"), [("target", True), ("source", False)])
def test_a_targets_labels_cannot_be_reached(role: str, hidden: bool) -> None:
    labels = np.repeat([0, 1, 900, 901, 902], 4)
    faces = FaceSet(ArrayImages(np.zeros((20, 16, 16, 3), np.uint8)), labels, tuple(f"p{n}" for n in range(903)))
    share = Share(role, tuple(range(8, 20)))
    got, own = party_faces(faces, Partition(tuple(range(8)), (), {"a": share}), "a")
    assert got == role
    assert own.public is not None
    assert (own.public.classes, own.public.names) == (2, ("p0", "p1"))
    assert (own.train.labels is None) == hidden
    assert own.train.names == (() if hidden else ("p900", "p901", "p902"))
    assert any((array >= 900).any() for array in reachable(own)) != hidden


def test_a_target_cannot_hold_images_out() -> None:
    with pytest.raises(FedVisageError, match=r"groups\.t: a target has no labels"):
        make(faceset([4] * 4), groups={"t": {"role": "target", "held_out": 0.5}})


def test_parties_by_domain(two: FaceSet) -> None:
    partition = make(two, parties=4, by="domain", held_out=0)
    sizes = {name: len(people(two, share.train)) for name, share in partition.parties.items()}
    assert sizes == {"lfw-00": 4, "lfw-01": 4, "actors-00": 3, "actors-01": 3}
    for name, share in partition.parties.items():
        assert {person.partition("/")[0] for person in people(two, share.train)} == {name.partition("-")[0]}
    with pytest.raises(FedVisageError, match="3 parties cannot be shared out evenly over 2 domains"):
        make(two, parties=3, by="domain")
    with pytest.raises(FedVisageError, match="these faces have no domains"):
        make(faceset([4] * 4), parties=2, by="domain")
    with pytest.raises(FedVisageError, match="no domain 'actor': did you mean 'actors'"):
        make(two, parties=1, test={"domain": "actor"})


def test_one_identity_per_party() -> None:
    faces = faceset([4] * 20)
    partition = make(faces, parties=15, identities_per_party=1, public=5, held_out=0)
    assert [len(people(faces, share.train)) for share in partition.parties.values()] == [1] * 15


@pytest.fixture
def folded(tmp_path: Path) -> FaceSet:
    """Twelve people; those with numbers 4 to 7 are in fold 1 of the pairs, 8 to 11 in fold 2."""
    write_faceset(tmp_path, faceset([3] * 12))
    image = np.arange(12, 35, 2)
    write_lists(tmp_path, {"pairs": PairList(image, image + 1, image % 2, 1 + image // 24)})
    return open_faceset(tmp_path)


def test_a_part_by_folds_takes_everybody_in_them(folded: FaceSet) -> None:
    partition = make(folded, parties=2, test={"folds": [2]}, held_out=0)
    assert people(folded, partition.test) == {"p08", "p09", "p10", "p11"}
    trained = set.union(*(people(folded, share.train) for share in partition.parties.values()))
    assert trained == {f"p{number:02d}" for number in range(8)}
    groups = {"party": {"folds": [1], "parties": 2}}
    partition = make(folded, groups=groups, test={"folds": [2]}, public=2)
    trained = set.union(*(people(folded, share.train) for share in partition.parties.values()))
    assert trained == {"p04", "p05", "p06", "p07"}
    assert people(folded, partition.public) <= {"p00", "p01", "p02", "p03"}
    with pytest.raises(FedVisageError, match=r"no pairs of fold 9: known folds are \[1, 2\]"):
        make(folded, parties=1, test={"folds": [9]})


def test_a_part_can_be_put_together_from_several_tables(two: FaceSet, folded: FaceSet) -> None:
    test = [{"domain": "actors", "count": 1}, {"domain": "lfw", "count": 2}]
    partition = make(two, parties=1, test=test, held_out=0)
    domains = [name.partition("/")[0] for name in people(two, partition.test)]
    assert sorted(domains) == ["actors", "lfw", "lfw"]
    partition = make(folded, parties=1, test=[{"folds": [2]}, {"names": ["p01"]}], validation=2, held_out=0)
    assert people(folded, partition.test) == {"p01", "p08", "p09", "p10", "p11"}
    with pytest.raises(FedVisageError, match=r"'p08' is in partition.test and in partition.test"):
        make(folded, parties=1, test=[{"folds": [2]}, {"names": ["p08"]}])


def test_parts_by_name_from_a_list_or_a_file(folded: FaceSet, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("# nobody may train on these\np01\n\n  p05 \n")
    partition = make(folded, parties=2, test={"names": str(tmp_path / "names.txt")}, validation={"names": ["p02"]})
    assert people(folded, partition.test) == {"p01", "p05"}
    assert people(folded, partition.validation) == {"p02"}
    with pytest.raises(FedVisageError, match="names people who are not in these faces: nobody"):
        make(folded, parties=1, test={"names": ["p01", "nobody"]})
    with pytest.raises(FedVisageError, match=r"'p08' is in partition.public and in partition.test"):
        make(folded, parties=1, public={"names": ["p08"]}, test={"folds": [2]})
    with pytest.raises(FedVisageError, match=r"cannot read the names in absent\.txt"):
        make(folded, parties=1, exclude="absent.txt")


def test_people_are_left_out_by_name_and_by_number_of_images() -> None:
    faces = faceset([2, 3, 4, 5, 6, 7])
    partition = make(faces, parties=1, min_images=4, max_images=5, exclude=["p03", "stranger"], held_out=0)
    (share,) = partition.parties.values()
    assert people(faces, share.train) == {"p02", "p04", "p05"}
    assert sorted(np.bincount(faces.labels[list(share.train)])[[2, 4, 5]].tolist()) == [4, 5, 5]
    partition = make(faces, parties=1, min_images=4, test={"names": ["p00"], "min_images": 1}, max_images=2)
    assert len(partition.test) == 2
    with pytest.raises(FedVisageError, match="asks for people, but only 0"):
        make(faces, parties=1, min_images=4, test={"names": ["p00"]})


def test_namesakes_of_two_folders_are_refused_until_one_is_left_out(tmp_path: Path) -> None:
    sets = {}
    for folder, names in (("lfw", ["Priyanka_Chopra", "n01"]), ("actors", ["priyanka chopra", "n01"])):
        write_faceset(tmp_path / folder, faceset([4, 4], names))
        sets[folder] = open_faceset(tmp_path / folder)
    both = joined(sets)
    with pytest.raises(FedVisageError, match="'actors/priyanka chopra' and 'lfw/Priyanka_Chopra' may be one person"):
        make(both, parties=1)
    partition = make(both, parties=1, exclude=["Priyanka_Chopra"])
    (share,) = partition.parties.values()
    assert people(both, share.train) == {"actors/priyanka chopra", "lfw/n01", "actors/n01"}


@given(
    counts=st.lists(st.integers(9, 12), min_size=8, max_size=16),
    parties=st.integers(3, 4),
    shared=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    holders=st.integers(2, 3),
    held_out=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_shared_people_are_dealt_out_whole_and_no_image_twice(
    counts: list[int], parties: int, shared: float, holders: int, held_out: float, seed: int
) -> None:
    faces = faceset(counts)
    settings = {"parties": parties, "sizes": "log-normal", "test": 2, "validation": 1, "held_out": held_out}
    partition = make(faces, seed, shared=shared, holders=holders, **settings)
    images = [i for share in partition.parties.values() for i in share.train + share.held_out]
    images += partition.test + partition.validation
    assert sorted(images) == list(range(len(faces)))
    holding = {
        label: sum(label in faces.labels[list(s.train)] for s in partition.parties.values())
        for label in np.unique(faces.labels)
    }
    several = [label for label, count in holding.items() if count > 1]
    assert len(several) == round(shared * (len(counts) - 3))
    assert {holding[label] for label in several} <= {holders}


def test_sharing_needs_images_and_parties() -> None:
    with pytest.raises(FedVisageError, match="3 holders of a person, but 2 parties"):
        make(faceset([9] * 4), parties=2, shared=0.5, holders=3)
    with pytest.raises(FedVisageError, match="2 people are to be shared, but only 0 have the 4 images that 2 holders"):
        make(faceset([3] * 4), parties=2, shared=0.5)


def test_probes_are_test_images_and_the_others_their_gallery() -> None:
    faces = faceset([1, 3, 4, 5, 6])
    partition = make(faces, parties=1, test={"names": ["p00", "p01", "p02"]}, probes=1)
    assert sorted(faces.labels[list(partition.probes)].tolist()) == [1, 2], (
        "one image is no probe: nothing to find it in"
    )
    assert sorted(partition.probes + partition.gallery) == sorted(partition.test)
    assert people(faces, partition.gallery) == {"p00", "p01", "p02"}


def test_everything_of_a_partition_is_read_back(two: FaceSet, tmp_path: Path) -> None:
    partition = make(two, parties=2, test=2, validation=3, probes=1, public=2, validators=1, identities_per_validator=2)
    path = tmp_path / "partition.json"
    partition.save(path, two.names, two.labels)
    assert Partition.load(path) == partition
    assert make(two, file=str(path)) == partition


T, H = (0, 1, 2, 3), (4, 5)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition((), (3,), {"a": Share("trainer", T)}), "1 people are in training and in the test"),
        (Partition((0, 1), (2, 3), {"a": Share("trainer", (8, 9))}), "1 people are in training and in the test"),
        (Partition((), (), {"a": Share("trainer", T, (3,))}), "1 images are in training and in a party's held-out"),
        (Partition((), (), {"a": Share("trainer", T, (4, 8))}), "party 'a' holds images out of people it does not"),
        (Partition((), (8, 9), {"a": Share("trainer", T)}, (10,)), "1 people are in the test and in the validation"),
        (Partition((), (8, 9), {"v": Share("validator", (10,))}), "1 people are in the test and in the validators"),
        (
            Partition((), (), {"a": Share("trainer", T), "v": Share("validator", H)}),
            "in training and in the validators",
        ),
        (Partition((), (12,), {}), "images beyond the 12 of the face set"),
        (Partition((), (-1,), {}), "images beyond the 12 of the face set"),
        (Partition((), (8, 9), {}, probes=(0,)), "probes are not among its test images"),
    ],
)
def test_overlap_of_training_and_evaluation_is_refused(partition: Partition, message: str, tmp_path: Path) -> None:
    """Person 0 has images 0 to 7 and person 1 has 8 to 11."""
    faces = faceset([8, 4])
    path = tmp_path / "partition.json"
    partition.save(path, faces.names, faces.labels % 2) if "beyond" not in message else None
    with pytest.raises(FedVisageError, match=message):
        partition.check(faces.labels)
    if path.exists():
        with pytest.raises(FedVisageError, match=message):
            make(faces, file=str(path))


def test_a_partys_own_held_out_images_are_of_its_own_people() -> None:
    Partition((), (8,), {"a": Share("trainer", T, H), "b": Share("trainer", (6,), (7,))}).check(faceset([8, 4]).labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition.test": {"fold": [6]}}, "unknown key 'partition.test.fold': did you mean 'folds'"),
        ({"partition.test": [{"fold": [6]}]}, r"unknown key 'partition.test.0.fold': did you mean 'folds'"),
        ({"partition.test": -1}, "partition.test: Input should be greater than or equal to 0"),
        ({"partition.public": {"count": 0}}, "partition.public.count: Input should be greater than"),
        ({"partition.groups": {"a": {"rol": "x"}}}, "unknown key 'partition.groups.a.rol': did you mean 'role'"),
        ({"partition.groups": {"a": {"role": "boss"}}}, "partition.groups.a.role: Input should be 'trainer'"),
        ({"partition.groups": {"../a": {}}}, r"partition.groups.\.\./a: String should match pattern"),
        ({"partition.groups": 3}, "partition.groups: Input should be a valid dictionary"),
        ({"faces.source": []}, "faces.source"),
    ],
)
def test_a_recipe_that_asks_for_nonsense_is_told_where(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        load_recipe("smoke", changes)


def test_groups_survive_being_written_as_toml() -> None:
    groups = {"lfw": {"domain": "lfw", "role": "source"}, "actors": {"role": "target", "parties": 4}}
    several = [{"folds": [5], "domain": "lfw"}, {"names": ["Ann"]}]
    parts = {"partition.test": {"folds": [6, 7]}, "partition.validation": several}
    recipe = load_recipe("smoke", {"partition.groups": groups, **parts})
    assert recipe.partition.parties == 5
    assert Recipe.model_validate(tomllib.loads(to_toml(recipe))) == recipe


def test_synthetic_domains_have_people_of_their_own(tmp_path: Path) -> None:
    settings = FacesSettings(domain=("daylight", "infrared"), identities=5, images_per_identity=2, size=16)
    faces = open_source(settings, tmp_path / "cache")
    assert faces.domains == ("daylight", "infrared")
    assert [name.partition("/")[0] for name in faces.names] == ["daylight"] * 3 + ["infrared"] * 2
    assert faces.domain is not None
    assert faces.domain.tolist() == [0] * 6 + [1] * 4
    infrared = faces.images.read(np.arange(6, 10))
    assert np.ptp(infrared.astype(int), axis=3).max() <= 2, "one channel"
    with pytest.raises(FedVisageError, match="names a domain twice"):
        open_source(FacesSettings(domain=("webcam", "webcam")), tmp_path / "other")


def test_a_folder_of_another_size_is_refused_or_scaled(tmp_path: Path) -> None:
    write_faceset(tmp_path / "faces", faceset([2, 2]))
    settings = FacesSettings(source=str(tmp_path / "faces"), size=24)
    with pytest.raises(FedVisageError, match=r"are 16x16, but faces.size is 24: set faces.size = 16, or let them be"):
        open_source(settings, tmp_path)
    scaled = open_source(settings.model_copy(update={"resize": True}), tmp_path)
    images = scaled.images.read(np.array([3, 0]))
    assert images.shape == (2, 24, 24, 3)
    assert images[:, 5, 5, 0].tolist() == [3, 0]


def test_folders_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        write_faceset(tmp_path / parent / "faces", faceset([2]))
    sources = tuple(str(tmp_path / parent / "faces") for parent in ("a", "b"))
    with pytest.raises(FedVisageError, match="told apart by their names, and these are faces, faces"):
        open_source(FacesSettings(source=sources, size=16), tmp_path)


def test_swapped_the_validators_people_and_the_test_change_places_domain_by_domain(two: FaceSet) -> None:
    table: dict[str, Any] = {
        "test": [{"domain": "lfw", "count": 3}, {"domain": "actors", "count": 2}],
        "groups": {
            "a": {"domain": "lfw", "count": 2},
            "judge-a": {"domain": "lfw", "count": 3, "role": "validator"},
            "judge-b": {"domain": "actors", "count": 2, "role": "validator"},
        },
    }
    plain, swapped = make(two, **table), make(two, **table, swapped=True)
    judges = [people(two, plain.parties[name].train) for name in ("judge-a-00", "judge-b-00")]
    assert people(two, swapped.test) == judges[0] | judges[1]
    assert people(two, swapped.parties["judge-a-00"].train) == {n for n in people(two, plain.test) if "lfw" in n}
    assert people(two, swapped.parties["judge-b-00"].train) == {n for n in people(two, plain.test) if "actors" in n}
    assert swapped.parties["a-00"] == plain.parties["a-00"], "who trains stays"
    with pytest.raises(FedVisageError, match="in the same domains"):
        make(two, **table | {"test": {"domain": "lfw", "count": 3}}, swapped=True)
    with pytest.raises(FedVisageError, match="in the same domains"):
        make(two, test=3, parties=2, swapped=True)
    drawn = make(faceset([2] * 12), test=4, validators=2, identities_per_validator=3, parties=2, swapped=True)
    assert sorted(len(share.train) for share in drawn.parties.values() if share.role == "validator") == [4, 4]
