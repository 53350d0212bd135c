"""The models of the round that validation people liked best: which they are, and what a mistaken choice says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cards import make_card, run_of
from fedvisage.chosen import CHOSEN, Chooser, chosen_round
from fedvisage.cli.main import app

RUN: dict[str, Any] = {
    "faces.identities": 34,
    "faces.images_per_identity": 4,
    "faces.size": 32,
    "partition.public": 6,
    "partition.test": 10,
    "partition.validation": 10,
    "partition.parties": 2,
    "partition.identities_per_party": 4,
    "partition.held_out": 0.5,
    "pretrain.epochs": 2,
    "method.name": "fedfr",
    "training.learning_rate": 0.05,
    "federation.rounds": 4,
    "federation.workers": 1,
    "evaluation.every": 1,
    "evaluation.pairs": 0,
    "evaluation.fars": [0.1],
    "evaluation.choose": "tar@0.1",
    "compare": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fv.run(fv.load_recipe("smoke", RUN), out=tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture(scope="module")
def shorter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends with the chosen round."""
    kept = chosen_round(folder)
    assert kept is not None
    recipe = fv.load_recipe("smoke", RUN | {"federation.rounds": kept["round"]})
    return fv.run(recipe, out=tmp_path_factory.mktemp("runs") / "shorter").folder


def curve(folder: Path, people: str) -> dict[int, float]:
    """TAR on some people, by round."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["round"]: line["tar@0.1"] for line in lines if line["phase"] == people}


def test_the_first_of_the_best_rounds_is_chosen(folder: Path) -> None:
    liked = curve(folder, "validation")
    best = max(liked, key=liked.__getitem__)
    assert chosen_round(folder) == {"round": best, "by": "tar@0.1", "score": liked[best]}
    assert best < 4, "or the next test says nothing"


def test_its_models_are_those_of_a_run_that_ends_there(folder: Path, shorter: Path) -> None:
    """The global model and every party's own, to the bit."""
    names = ["model.safetensors", *(f"parties/party-0{number}/model.safetensors" for number in (0, 1))]
    chosen = {name: (folder / CHOSEN / name).read_bytes() for name in names}
    assert chosen == {name: (shorter / name).read_bytes() for name in names}
    assert chosen["model.safetensors"] != (folder / "model.safetensors").read_bytes()


def test_a_method_that_is_compared_has_a_chosen_round_of_its_own(tmp_path: Path) -> None:
    """The same, to the bit, as in a run of that method."""
    changes = RUN | {"federation.rounds": 2}
    run = fv.run(fv.load_recipe("smoke", changes | {"compare": ["fedavg"]}), out=tmp_path / "both").folder
    alone = fv.run(fv.load_recipe("smoke", changes | {"method.name": "fedavg"}), out=tmp_path / "alone").folder
    inner = run / "compare" / "fedavg"
    assert chosen_round(inner) == chosen_round(alone)
    model = (inner / CHOSEN / "model.safetensors").read_bytes()
    assert model == (alone / CHOSEN / "model.safetensors").read_bytes()
    assert model != (run / CHOSEN / "model.safetensors").read_bytes()


def test_protocols_take_the_chosen_round_for_the_run(folder: Path, shorter: Path) -> None:
    """Its own models on the run's people; a party's as well."""

    def found(path: Path) -> Any:
        words = ["evaluate", str(path), "--protocol", "personal", "--far", "0.1", "--fpir", "0.1", "--json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    def metrics(table: Any) -> Any:
        return [one["metrics"] for one in table["results"]]

    assert metrics(found(folder / CHOSEN)) == metrics(found(shorter))
    party = Path("parties") / "party-01"
    assert metrics(found(folder / CHOSEN / party)) == metrics(found(shorter / party))


@pytest.mark.parametrize("named", ["", "model.safetensors"])
def test_a_protocol_on_a_whole_run_refuses_its_chosen_round(folder: Path, named: str) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(folder / CHOSEN / named), "--protocol", "sampled"])
    assert "is of a whole run, not of its chosen round" in str(done.exception)
    assert CliRunner().invoke(app, ["evaluate", str(folder), "--protocol", "sampled"]).exit_code == 0


def test_a_run_may_be_called_chosen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the folder of a chosen round can be named from within."""
    shutil.copytree(folder, tmp_path / CHOSEN)
    words = ["--protocol", "personal", "--far", "0.1", "--fpir", "0.1", "--json"]
    assert CliRunner().invoke(app, ["evaluate", str(tmp_path / CHOSEN), *words]).exit_code == 0
    monkeypatch.chdir(folder / CHOSEN)
    assert CliRunner().invoke(app, ["evaluate", ".", *words]).exit_code == 0


def test_its_card_gives_its_own_rounds_results(folder: Path) -> None:
    kept = chosen_round(folder)
    assert kept is not None
    model = folder / CHOSEN / "model.safetensors"
    assert run_of(model) == (folder, None, True)
    assert run_of(folder / CHOSEN / "parties" / "party-00") == (folder, "party-00", True)
    card = make_card(model, fv.load_model(model), "chosen").markdown
    assert f"A model of round {kept['round']}, which validation people chose." in card
    assert f"| all | – | {100 * curve(folder, 'test')[kept['round']]:.2f}% |" in card
    assert "Not calibrated" in card
    own = make_card(model.parent / "parties" / "party-00", fv.load_model(model), "own").markdown
    assert "| all |" not in own
    assert "score this one with `fedvisage evaluate`" in own


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluation.every": 0}, "choose needs 'every'"),
        ({"partition.validation": 0}, "evaluation.choose is set, but nobody validates: set partition.validation"),
        ({"evaluation.choose": "tar@0.2"}, "there is no score 'tar@0.2': did you mean 'tar@0.1'"),
        ({"method.name": "alone"}, "method 'alone' has no global model to score"),
    ],
    ids=["no rounds", "nobody", "no such score", "no global model"],
)
def test_a_choice_that_cannot_be_made_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Before the first round."""
    with pytest.raises(fv.FedVisageError, match=says):
        fv.run(fv.load_recipe("smoke", RUN | changes), out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_round_that_is_repeated_replaces_what_it_left(tmp_path: Path) -> None:
    """After a kill the same round comes again, with the same score."""
    chooser = Chooser("tar@0.1", tmp_path)
    saved: list[int] = []

    def see(round: int, score: float) -> None:
        def save(place: Path) -> None:
            saved.append(round)
            (place / "model").write_text(str(round))

        chooser.see(round, {"tar@0.1": score}, save)

    for round, score in ((1, 0.5), (2, 0.4), (3, 0.6), (3, 0.6), (4, 0.6)):
        see(round, score)
    assert saved == [1, 3, 3]
    assert (chooser.folder / "model").read_text() == "3"
    assert chosen_round(tmp_path) == {"round": 3, "by": "tar@0.1", "score": 0.6}


def test_without_a_choice_nothing_is_kept(tmp_path: Path) -> None:
    def save(place: Path) -> None:
        raise AssertionError(place)

    Chooser("", tmp_path).see(1, {"tar@0.1": 1.0}, save)
    assert chosen_round(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"round": 1}', '{"round": "x", "by": "a", "score": 1}'])
def test_a_damaged_round_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / CHOSEN).mkdir()
    (tmp_path / CHOSEN / "round.json").write_text(text)
    with pytest.raises(fv.FedVisageError, match=r"round\.json is damaged: .*; remove "):
        chosen_round(tmp_path)
