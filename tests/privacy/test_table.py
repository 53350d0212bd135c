"""What leaves a party, from declarations alone."""

from __future__ import annotations

import pytest

from fedvisage.core.method import METHODS, Component
from fedvisage.core.parcel import BACKBONE, GROUPS, IDENTITY_TOKENS, PERSONAL, PRIVATE_EMBEDDINGS, STATISTICS
from fedvisage.core.phase import Phase
from fedvisage.methods.fedavg import FedAvg, FedPE
from fedvisage.privacy import declared_groups, privacy_table


class Example(Component):
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("join", "start", reports=("samples",), may_report=("classes",), counts=True),
            Phase("train", down={BACKBONE: "all"}, up={IDENTITY_TOKENS: "individual"}, trains=True),
        )


def test_the_table_has_a_row_for_every_phase_direction_and_group() -> None:
    rows = [(row["phase"], row["direction"], row["group"], row["how"]) for row in privacy_table([Example()])]
    assert rows == [
        ("join", "up", STATISTICS, "samples, classes"),
        ("train", "down", BACKBONE, "all"),
        ("train", "up", IDENTITY_TOKENS, "individual"),
    ]
    assert all(row["what"] == GROUPS[row["group"]] for row in privacy_table([Example()]))


def test_with_private_embeddings_nothing_about_a_person_leaves() -> None:
    table = declared_groups([FedPE()])
    assert all(PRIVATE_EMBEDDINGS not in directions["up"] for directions in table.values())


def test_with_a_shared_classifier_the_table_says_that_templates_leave() -> None:
    table = declared_groups([FedAvg(classifier="shared")])
    assert table["train"]["up"][PRIVATE_EMBEDDINGS] == "weighted_sum"
    assert table["train"]["down"][PRIVATE_EMBEDDINGS] == "all"
    assert "class_offset" in table["train"]["down"][STATISTICS]


@pytest.mark.parametrize("name", METHODS)
def test_no_method_declares_that_something_personal_leaves(name: str) -> None:
    table = declared_groups([METHODS[name]()])
    assert all(PERSONAL not in groups for directions in table.values() for groups in directions.values())


@pytest.mark.parametrize("group", [PERSONAL, STATISTICS, "backbon"])
@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_phase_cannot_declare_what_may_not_travel(group: str, direction: str) -> None:
    how = "all" if direction == "down" else "weighted_sum"
    with pytest.raises(ValueError, match=f"declares '{group}', no group of tensors that may travel"):
        Phase("train", **{direction: {group: how}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"name": "Train"}, {"name": "train-2"}, {"every": 0}, {"repeats": 0}, {"roles": frozenset({"spy"})}]
)
def test_a_malformed_phase_is_refused_when_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="malformed"):
        Phase(**({"name": "train"} | wrong))  # type: ignore[arg-type]
