"""What a policy allows, objects to and refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedvisage.config import to_toml, validated
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, WEIGHTINGS
from fedvisage.core.parcel import BACKBONE, BUFFERS, GROUPS, PERSONAL, PRIVATE_EMBEDDINGS, STATISTICS, Parcel
from fedvisage.deploy.party import PartyFolder, open_party_folder
from fedvisage.deploy.party import Settings as PartySettings
from fedvisage.methods.fedavg import FedAvg
from fedvisage.methods.rules import Median, TrimmedMean
from fedvisage.methods.separation import GradientCorrection
from fedvisage.privacy import Policy, Refused, declared_groups

TRAVELLING = sorted(set(GROUPS) - {PERSONAL})


def parcel(groups: set[str]) -> Parcel:
    tensors = {group: {"x": torch.zeros(1)} for group in groups if group != STATISTICS}
    return Parcel(tensors, {"loss": 1.0} if STATISTICS in groups else {})


@given(allowed=st.sets(st.sampled_from(TRAVELLING)), sent=st.sets(st.sampled_from(TRAVELLING)))
def test_an_answer_passes_exactly_if_every_group_in_it_may_leave(allowed: set[str], sent: set[str]) -> None:
    policy = Policy(groups=tuple(sorted(allowed)))
    if sent <= allowed:
        policy.check(parcel(sent))
    else:
        with pytest.raises(Refused, match="may not leave this party; nothing was sent"):
            policy.check(parcel(sent))


@given(allowed=st.sets(st.sampled_from(TRAVELLING)), name=st.sampled_from(sorted(METHODS)))
def test_it_objects_to_a_method_exactly_if_that_declares_a_group_which_may_not_leave(
    allowed: set[str], name: str
) -> None:
    components = [METHODS[name]()]
    declared = {group for phase in declared_groups(components).values() for group in phase["up"]}
    found = Policy(groups=tuple(sorted(allowed))).objections(name, components, 1)
    assert bool(found) == bool(declared - allowed)
    assert all(any(group in line for line in found) for group in declared - allowed)


def test_by_default_a_partys_people_stay() -> None:
    shared = FedAvg(classifier="shared")
    assert Policy().objections("fedavg", [FedAvg()], 10) == []
    assert Policy().objections("fedavg", [shared], 10) == [
        f"{PRIVATE_EMBEDDINGS} may not leave, and phase 'train' sends it"
    ]


def singly(group: str, phase: str = "train") -> str:
    return (
        f"{group} may leave in a sum only, and phase '{phase}' shows it to the server singly "
        f'(groups."{group}" = "individual" allows that)'
    )


def test_being_seen_singly_must_be_written_out() -> None:
    """FV mixes the parties' own models, a median looks at them one by one, FedGC's server at every template."""
    fv, fedgc = [FedAvg(), WEIGHTINGS["fv"]()], [FedAvg(), GradientCorrection()]
    each = Policy(groups={**Policy().groups, BACKBONE: "individual", BUFFERS: "individual"})
    assert Policy().objections("fedavg", fv, 1) == [singly(BACKBONE), singly(BUFFERS)]
    assert each.objections("fedavg", fv, 1) == []
    assert Policy().objections("fedavg", [FedAvg(), Median()], 1) == [singly(BACKBONE), singly(BUFFERS)]
    assert each.objections("fedavg", [FedAvg(), TrimmedMean()], 1) == []
    summed = Policy(groups={**Policy().groups, PRIVATE_EMBEDDINGS: "sum"})
    assert summed.objections("fedgc", fedgc, 1) == [singly(PRIVATE_EMBEDDINGS)]
    assert summed.objections("fedavg", [FedAvg(classifier="shared")], 1) == []


def test_a_list_of_groups_means_what_it_meant() -> None:
    """Templates that an operator had named were seen singly; the others stay with their defaults."""
    policy = Policy.model_validate({"groups": ["backbone", "statistics", PRIVATE_EMBEDDINGS]})
    assert policy.groups == {BACKBONE: "sum", STATISTICS: "individual", PRIVATE_EMBEDDINGS: "individual"}


def test_a_policy_is_written_and_read_again(tmp_path: Path) -> None:
    groups = {**Policy().groups, BACKBONE: "individual", PRIVATE_EMBEDDINGS: "sum"}
    PartyFolder(tmp_path, PartySettings(name="ann", policy=Policy(groups=groups))).save()
    assert open_party_folder(tmp_path).policy.groups == groups


def test_methods_and_rounds_are_limited() -> None:
    policy = Policy(methods=("fedpe",), rounds=5)
    assert policy.objections("fedpe", [FedAvg()], 5) == []
    assert policy.objections("fedavg", [FedAvg()], 6) == [
        "method 'fedavg' is not among fedpe",
        "6 rounds are more than 5",
    ]


@pytest.mark.parametrize("demand", ["differential-privacy", "secure-aggregation"])
def test_a_demand_that_cannot_be_met_is_a_refusal_and_never_ignored(demand: str) -> None:
    found = Policy(require=(demand,)).objections("fedavg", [FedAvg()], 1)
    assert found == [f"it demands {demand.replace('-', ' ')}, which this version cannot give"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"groups": ("backbon",)}, "did you mean 'backbone'"),
        ({"groups": (PERSONAL,)}, "never leaves a party"),
        ({"groups": {BACKBONE: "singly"}}, "'sum' or 'individual'"),
        ({"require": ("anonymity",)}, "unknown demand"),
        ({"rounds": 0}, "greater than or equal to 1"),
        ({"group": (BACKBONE,)}, "Extra inputs"),
    ],
)
def test_a_policy_that_says_nothing_sensible_is_no_policy(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Policy.model_validate(table)


def test_a_plug_in_needs_its_name_and_its_file_in_the_policy_before_anything_of_it_is_read() -> None:
    policy = Policy(plugins={"a.b": "0" * 64, "other": "1" * 64})
    assert validated(Policy, tomllib.loads(to_toml(policy)), "party.toml") == policy
    read: list[str] = []

    def digest(name: str) -> str:
        read.append(name)
        return "1" * 64

    found = policy.plugin_objections(["other", "a.b", "strange"], digest)
    assert found == ["plug-in 'a.b' is not the file that is allowed", "plug-in 'strange' is not allowed"]
    assert read == ["other", "a.b"]
    with pytest.raises(FedVisageError, match="plugins"):
        validated(Policy, {"plugins": {"other": "no digest"}}, "party.toml")
