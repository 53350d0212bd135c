"""Parties that break, hang, lie and die: the run completes by itself, and the report names every event."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from real_hosts import Hosts, absent, recipe_with, rows

import fedvisage as fv
from fedvisage.core.codec import load_state
from fedvisage.federation import Event, StateStore

ROUNDS = 7


@pytest.fixture(scope="module")
def run(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run in which something goes wrong in every round."""
    folder = tmp_path_factory.mktemp("faults")
    hosts.faults("party-00", {"train 1": "raise", "train 4": "hang"})
    hosts.faults("party-01", {"train 2": "nan", "train 5": "kill"})
    hosts.faults("party-02", {"train 3": "shape"})
    changes = {"federation.rounds": ROUNDS, "federation.timeout": 20.0, "federation.evaluate_every": 0}

    def watch(event: Event) -> None:
        if (event.kind, event.phase, event.round) == ("planned", "train", 6):
            hosts.kill("party-02")
        if (event.kind, event.phase, event.round) == ("saved", "train", 6):
            hosts.start("party-02")
            hosts.wait_connected()

    fv.run(recipe_with(folder, changes), out=folder / "run", on=hosts.folder, watch=watch)
    return folder / "run"


EVENTS = {
    "handler raises": (1, "party-00", "RuntimeError: the disk is on fire"),
    "NaN": (2, "party-01", "not finite"),
    "wrong shapes": (3, "party-02", "shape"),
    "hangs past the timeout": (4, "party-00", "no answer within 20 s"),
    "whole site killed": (6, "party-02", "its process reported nothing for 10 s"),
}


@pytest.mark.parametrize(("number", "party", "reason"), EVENTS.values(), ids=EVENTS)
def test_the_round_goes_on_without_the_party_and_says_why(run: Path, number: int, party: str, reason: str) -> None:
    found = absent(run)["train", number]
    assert list(found) == [party]
    assert reason in found[party]
    assert found[party] in (run / "failures.log").read_text()


def test_a_killed_process_costs_no_answer_and_is_named(run: Path) -> None:
    """SIGKILL of a party's job process brings the job down; another is submitted and the party is asked again."""
    assert ("train", 5) not in absent(run)
    assert (
        "round 5, train: the job was lost (the process of party-01 ended); another is submitted"
        in (run / "failures.log").read_text()
    )


def test_everybody_takes_part_again_after_each_event(run: Path) -> None:
    train = {row["round"]: row for row in rows(run) if row["phase"] == "train"}
    assert sorted(train) == list(range(1, ROUNDS + 1))
    assert {number: row["accepted"] for number, row in train.items()} == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 2, 7: 3}


def test_a_party_that_came_back_went_on_from_its_own_state(run: Path, hosts: Hosts) -> None:
    """It joined once; its optimiser and class embeddings are those of the rounds that were accepted."""
    assert [row["round"] for row in rows(run) if row["phase"] == "join"] == [0]
    generations = load_state(run / "checkpoints" / "last.safetensors")["book"]["generations"]
    store = StateStore(hosts.deployment.party("party-02") / "state" / (run / "run-id").read_text())
    assert generations["party-02"].startswith("000007.train")
    kept = store.generations("party-02")
    assert kept[0].startswith("000005.train"), "round 6, in which it was killed, was never accepted"
    assert {"class_embeddings", "optimiser", "local_model"} <= set(store.load("party-02", generations["party-02"]))
    store.close()


def test_the_report_shows_each_event(run: Path) -> None:
    page = html.unescape((run / "report.html").read_text())
    for number, party, reason in EVENTS.values():
        told = absent(run)["train", number][party]
        assert reason in told
        assert f"round {number}, train, {party}: {told}" in page
    assert "round 5, train: the job was lost (the process of party-01 ended); another is submitted" in page
