"""A run as data: what a recipe may say, what it may not, and that writing it out loses nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.build import resolve
from fedvisage.config import Recipe, load_recipe, parse_change, shipped_recipes, to_toml, validated
from fedvisage.core.errors import FedVisageError


def recipe(**sections: Any) -> Recipe:
    return validated(Recipe, sections, "recipe 'x'")


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_is_what_its_method_accepts(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.name == name
    assert resolve(loaded).weighting["name"]


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_resolved_recipe_read_back_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    resolved = resolve(load_recipe(name))
    (tmp_path / "recipe.toml").write_text(to_toml(resolved), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.toml")
    assert again == resolved
    assert resolve(again) == resolved


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
positive = st.floats(min_value=1e-300, max_value=1e300)
recipes = st.fixed_dictionaries(
    {},
    optional={
        "name": text,
        "description": text,
        "seed": st.integers(-(2**70), 2**70),
        "compare": st.lists(text, max_size=3).map(tuple),
        "track": st.sets(st.sampled_from(["tensorboard", "mlflow"])).map(tuple),
        "faces": st.fixed_dictionaries({}, optional={"source": text, "domain": text, "seed": st.integers()}),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "learning_rate": positive,
                "scale": positive,
                "steps": st.integers(1, 10**12),
                "milestones": st.lists(st.integers(1, 99), max_size=3).map(tuple),
                "flip": st.booleans(),
            },
        ),
        "federation": st.fixed_dictionaries(
            {},
            optional={
                "timeout": positive,
                "guard": st.fixed_dictionaries({}, optional={"norm_bound": positive}),
            },
        ),
        "evaluation": st.fixed_dictionaries(
            {}, optional={"fars": st.lists(st.floats(1e-12, 1), min_size=1, max_size=3).map(tuple)}
        ),
        "method": st.fixed_dictionaries({"name": text}, optional={"mu": positive, "classifier": text}),
    },
)


@given(recipes)
def test_any_recipe_written_as_toml_and_read_back_is_the_same(table: dict[str, Any]) -> None:
    before = recipe(**table)
    assert validated(Recipe, tomllib.loads(to_toml(before)), "again") == before


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("tranining", "unknown key 'tranining': did you mean 'training'?"),
        ("federation.round", "unknown key 'federation.round': did you mean 'rounds'?"),
        ("federation.guard.norm_bond", "unknown key 'federation.guard.norm_bond': did you mean 'norm_bound'?"),
        ("training.lr", "unknown key 'training.lr': known: batch_size, "),
        ("faces.identites", "did you mean 'identities'?"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(path: str, hint: str) -> None:
    with pytest.raises(FedVisageError) as caught:
        load_recipe("smoke", {path: 1})
    assert hint in str(caught.value)
    assert str(caught.value).startswith("recipe 'smoke': ")


def test_an_unknown_key_of_the_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(FedVisageError, match=r"\[method\]: unknown key 'nu': did you mean 'mu'\?"):
        resolve(load_recipe("smoke", {"method.name": "fedprox", "method.nu": 1}))


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(FedVisageError, match="unknown method 'fedprx': did you mean 'fedprox'"):
        resolve(load_recipe("smoke", {"method.name": "fedprx"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition.parties": 0}, "partition.parties: Input should be greater than or equal to 1"),
        ({"federation.rounds": 0}, "federation.rounds"),
        ({"federation.participation": 0.0}, "federation.participation"),
        ({"federation.participation": 1.1}, "federation.participation"),
        ({"federation.quorum": -0.5}, "federation.quorum"),
        ({"training.batch_size": 1}, "training.batch_size"),
        ({"training.learning_rate": 0}, "training.learning_rate"),
        ({"training.learning_rate": float("nan")}, "training.learning_rate"),
        ({"training.momentum": 1.0}, "training.momentum"),
        ({"training.epochs": 1, "training.steps": 5}, "training: give epochs or steps, not both"),
        (
            {"federation.aggregation": "trimmed-mean", "federation.trim": 0.2},
            'federation: aggregation is a table of its own: write [aggregation] with name = "trimmed-mean" and '
            "trim = 0.2 instead",
        ),
        ({"aggregation.trim": 0.2, "aggregation.name": 3}, "[aggregation] needs a name"),
        ({"faces.size": 8}, "faces.size"),
        ({"faces.images_per_identity": "many"}, "faces.images_per_identity"),
        ({"evaluation.fars": [0.0]}, "evaluation.fars.0"),
        ({"track": ["wandb"]}, "track.0"),
        ({"method": {"mu": 1}}, "[method] needs a name"),
        ({"method": {"name": 3}}, "[method] needs a name"),
        ({"name": 3}, "name: Input should be a valid string"),
        ({"faces.domain": []}, "faces.domain: Tuple should have at least 1 item"),
        ({"faces.domain": ["daylight", 3]}, "faces.domain.1: Input should be a valid string"),
        ({"faces.source": 3}, "faces.source: Input should be a valid string"),
        ({"partition.test": True}, "partition: test = true is not possible"),
        ({"federation.rounds": True}, "federation: rounds = true is not possible"),
        ({"partition.test": {"count": True}}, "partition.test: count = true is not possible"),
        ({"partition.groups": {"a": {"parties": True}}}, "partition.groups.a: parties = true is not possible"),
    ],
)
def test_a_wrong_value_is_one_line_that_says_where(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedVisageError) as caught:
        load_recipe("smoke", changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.loss": "cosfase"}, "did you mean 'cosface'"),
        ({"training.loss": "softmax", "training.margin": 0.2}, "loss 'softmax' has no option 'margin'"),
        ({"training.loss_options": {"form": "hing"}}, "cosface has no form 'hing': did you mean 'hinge'"),
        ({"training.loss_options": {"frm": "hinge"}}, "loss 'cosface' has no option 'frm': did you mean 'form'"),
        ({"training.loss_options": {"margin": 0.2}}, "loss_options.margin belongs in [training]"),
        ({"training.loss_options": {"reduction": "none"}}, "training takes the mean"),
        ({"weighting.name": "sample"}, "did you mean 'samples'"),
        ({"weighting.name": "equal", "weighting.power": 2}, "[weighting]: unknown key 'power'"),
        ({"regulariser.strength": 2}, "[regulariser] needs a name"),
        ({"regulariser.name": "spread"}, "unknown regulariser 'spread'"),
        ({"compare": ["alon"]}, "unknown method 'alon': did you mean 'alone'"),
        ({"method.name": "fedavg", "method.training": {}}, r"method.training belongs in [training]"),
        ({"method.name": "fedavg", "method.rounds": 3}, r"method.rounds belongs in [federation]"),
        ({"federation.batchnorm": "local"}, "leaves no generic model to test"),
        (
            {"federation.batchnorm": "local", "partition.test": 0, "partition.validation": 2},
            "leaves no generic model to test",
        ),
        (
            {
                "method.name": "feduda",
                "method.pretrain_rounds": 1,
                "federation.batchnorm": "local",
                "partition.test": 0,
            },
            "keeps what one party learns at the start",
        ),
        ({"method.name": "scaffold", "aggregation.name": "median"}, "'scaffold' needs plain averages"),
        ({"method.name": "pfm", "aggregation.name": "median"}, "'pfm' needs plain averages"),
        ({"compare": ["mimelite"], "aggregation.name": "median"}, "'mimelite' needs plain averages"),
        ({"aggregation.name": "medain"}, "unknown aggregation rule 'medain': did you mean 'median'"),
        ({"aggregation": {"name": "median", "trim": 0.1}}, "[aggregation]: unknown key 'trim'"),
        ({"aggregation": {"name": "trimmed-mean", "trim": 0.5}}, "[aggregation]: trim"),
        ({"aggregation": {"name": "norm-clipping"}}, "[aggregation]: clip: Field required"),
    ],
)
def test_what_only_the_parts_know_is_checked_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedVisageError) as caught:
        resolve(load_recipe("smoke", changes))
    assert message in str(caught.value)


def test_changes_go_on_top_of_the_file() -> None:
    changed = load_recipe("smoke", {"federation.rounds": 7, "method.name": "fedprox", "method.mu": 0.5})
    assert (changed.federation.rounds, changed.method) == (7, {"name": "fedprox", "mu": 0.5})


def test_a_change_of_the_method_alone_keeps_the_default_method() -> None:
    assert load_recipe("smoke", {"method.classifier": "shared"}).method["name"] == "fedavg"


def test_a_change_below_a_value_is_refused() -> None:
    with pytest.raises(FedVisageError, match=r"cannot set 'name\.first': 'name' is not a section"):
        load_recipe("smoke", {"name.first": 1})


@pytest.mark.parametrize(
    ("given_text", "wanted"),
    [
        ("federation.rounds=5", ("federation.rounds", 5)),
        ("training.learning_rate = 0.1", ("training.learning_rate", 0.1)),
        ("training.flip=false", ("training.flip", False)),
        ("method.name=fedprox", ("method.name", "fedprox")),
        ('name="with = sign"', ("name", "with = sign")),
        ("compare=[]", ("compare", [])),
        ('compare=["alone", "central"]', ("compare", ["alone", "central"])),
        ("faces.source=/data/faces", ("faces.source", "/data/faces")),
        ("description=", ("description", "")),
        ("name=1e", ("name", "1e")),
    ],
)
def test_a_change_on_the_command_line_is_toml_or_else_text(given_text: str, wanted: tuple[str, Any]) -> None:
    assert parse_change(given_text) == wanted


@pytest.mark.parametrize("given_text", ["federation.rounds", "=5", ""])
def test_a_change_without_key_or_value_says_how_to_write_it(given_text: str) -> None:
    with pytest.raises(FedVisageError, match=r"write it as section\.key=value"):
        parse_change(given_text)


def test_a_recipe_that_is_not_there_names_the_nearest_shipped_one() -> None:
    with pytest.raises(FedVisageError, match=r"no recipe 'smok'.*did you mean 'smoke'"):
        load_recipe("smok")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="neither a file nor a shipped recipe"):
        load_recipe(tmp_path)


def test_a_name_too_long_for_any_file_is_no_recipe() -> None:
    with pytest.raises(FedVisageError, match="no recipe"):
        load_recipe("x" * 5000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = \xff", "cannot read recipe"),
        (b"name = ", "is not valid TOML"),
        (b"[a\n", "is not valid TOML"),
        (b"name = 'x'\nname = 'y'", "is not valid TOML"),
        (b"\x00\x01\x02", "is not valid TOML"),
        ("﻿name = 'x'".encode(), "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_line_that_names_it(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    with pytest.raises(FedVisageError) as caught:
        load_recipe(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_empty_file_is_the_default_recipe(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    assert load_recipe(tmp_path / "empty.toml") == Recipe()


def test_a_recipe_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("smoke").seed = 3  # type: ignore[misc]


def test_changes_are_left_as_they_were_given() -> None:
    changes = {"weighting": {"name": "fv"}, "weighting.overlap": True}
    assert load_recipe("smoke", changes).weighting == {"name": "fv", "overlap": True}
    assert changes == {"weighting": {"name": "fv"}, "weighting.overlap": True}
