"""Every exported model carries a card that says what its run's files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedvisage as fv
from fedvisage.cards import INTENDED, UNSUITABLE, _gaps, _score_at, make_card, run_of
from fedvisage.export import export_model
from fedvisage.faces.faceset import FaceSet, open_faceset, write_faceset
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.models import read_model_metadata
from fedvisage.recognise import calibrate
from fedvisage.report.folder import Metrics, Row, Score


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run over two domains."""
    changes = {
        **{"federation.rounds": 1, "federation.workers": 1, "federation.evaluate_every": 1, "compare": []},
        **{"pretrain.epochs": 0, "method.name": "fedgc", "faces.domain": ["daylight", "lamplight"]},
    }
    return fv.run(fv.load_recipe("smoke", changes), out=tmp_path_factory.mktemp("runs") / "run").folder


def test_the_card_has_data_results_threshold_what_left_and_uses(run: Path, tmp_path: Path) -> None:
    done = export_model(run, tmp_path / "faces.safetensors")
    card = Path(done["card"]).read_text()
    assert done["card"] == str(tmp_path / "faces.card.md")
    assert card.startswith("# Model card: faces\n")
    partition = json.loads((run / "partition.json").read_text())
    score = json.loads((run / "evaluation.json").read_text())["models"]["fedgc"]
    people = sum(len(share["identities"]) for share in partition["parties"].values())
    assert f"{people} people of {len(partition['parties'])} parties" in card
    assert f"Test: {len(partition['test']['identities'])} people nobody trained on." in card
    assert f"| all | {100 * score['accuracy']:.2f}% |" in card
    assert "**Class embeddings of private people left their party: face templates in all but name.**" in card
    for far, threshold in score["thresholds"].items():
        assert f"| {far} | {threshold:.4f} |" in card
    assert "whose images stayed with their party" in card
    assert "Images never left." in card
    assert INTENDED in card
    assert UNSUITABLE in card
    assert "At the parties rank 1 is between" in card


def test_the_card_of_a_model_of_pooled_images_says_so(tmp_path: Path) -> None:
    changes = {"federation.rounds": 1, "federation.workers": 1, "compare": [], "method.name": "central"}
    changes |= {"faces.identities": 90, "partition.validation": 20}
    run = fv.run(fv.load_recipe("smoke", changes), out=tmp_path / "run").folder
    export_model(run, tmp_path / "faces.safetensors")
    card = (tmp_path / "faces.card.md").read_text()
    assert "whose images **were pooled**" in card
    assert "**All training images**: `central` pools them" in card
    assert "Validation: 20 other people" in card
    assert "never left" not in card
    assert "stayed with" not in card
    assert json.loads(read_model_metadata(tmp_path / "faces.safetensors")["fedvisage.card.left"]) == {
        "groups": ["images"]
    }


def test_the_key_facts_are_in_the_metadata(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "faces.safetensors")
    about = read_model_metadata(tmp_path / "faces.safetensors")
    score = json.loads((run / "evaluation.json").read_text())["models"]["fedgc"]
    results = json.loads(about["fedvisage.card.results"])
    assert results["all"]["accuracy"] == pytest.approx(score["accuracy"], abs=1e-6)
    assert json.loads(about["fedvisage.card.data"])["people"]["test"] > 0
    assert "class_embeddings.private" in json.loads(about["fedvisage.card.left"])["groups"]
    assert json.loads(about["fedvisage.card.threshold"])["on"] == "the run's test people"
    assert about["fedvisage.card.unsuitable"] == UNSUITABLE


def test_groups_have_their_own_lines_and_the_gap_between_them_is_said(run: Path) -> None:
    domains = json.loads((run / "evaluation.json").read_text())["models"]["fedgc"].get("domains", {})
    card = make_card(run, fv.load_model(run / "model.safetensors"), "m").markdown
    if len(domains) < 2:
        assert "One group was tested" in card
        return
    for name in domains:
        assert f"| {name} | " in card
    assert f"Between the best and the worst of {len(domains)} groups: " in card


def test_a_learning_curve_gives_a_rounds_score_by_domain() -> None:
    metrics = Metrics()
    numbers = {"accuracy": 0.8, "tar@0.1": 0.7, "webcam accuracy": 0.6, "webcam tar@0.1": 0.5, "mean tar@0.1": 0.6}
    for round, phase, less in ((1, "test", 0.1), (2, "test", 0.0), (2, "validation", 0.3)):
        metrics.add(Row(round=round, phase=phase, **{name: value - less for name, value in numbers.items()}))
    score = _score_at(metrics, 2)
    assert score is not None
    assert (score.accuracy, score.tar) == (0.8, {"0.1": 0.7})
    assert score.domains == {"webcam": Score(accuracy=0.6, tar={"0.1": 0.5})}
    assert _score_at(metrics, 3) is None


def test_the_gap_is_between_the_best_and_the_worst_group() -> None:
    domains = {"a": Score(accuracy=0.9, tar={"0.1": 0.8}), "b": Score(accuracy=0.7), "c": Score(accuracy=0.95)}
    assert _gaps(domains, ["0.1"]) == {"accuracy": pytest.approx(0.25)}
    assert _gaps({"a": Score(accuracy=0.9)}, []) == {}


def test_a_calibration_beside_the_model_is_what_the_card_gives(run: Path, tmp_path: Path) -> None:
    synthetic = SyntheticFaces(seed=5, identities=12, images_per_identity=3, size=32)
    names = tuple(f"p{number}" for number in range(12))
    write_faceset(tmp_path / "others", FaceSet(synthetic, synthetic.labels, names))
    found = calibrate(run, open_faceset(tmp_path / "others"), "twelve others")
    card = make_card(run, fv.load_model(run / "model.safetensors"), "m").markdown
    (run / "model.calibration.json").unlink()
    assert "Measured on twelve others" in card
    for rate, threshold in found.thresholds.items():
        assert f"| {rate:g} | {threshold:.4f} |" in card


def test_weights_from_elsewhere_say_what_is_not_known(run: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes((run / "model.safetensors").read_bytes())
    card = make_card(lone, fv.load_model(lone), "lone").markdown
    assert "Not known: this file lies in no run's folder." in card
    assert "Not calibrated" in card
    assert run_of(run / "model.safetensors") == (run, None, False)
    assert run_of(run / "parties" / "party-00" / "model.safetensors") == (run, "party-00", False)


def test_a_partys_own_model_is_not_given_the_global_models_results(run: Path) -> None:
    own = run / "parties" / "party-00" / "model.safetensors"
    card = make_card(own, fv.load_model(run / "model.safetensors"), "own").markdown
    assert "This is the own model of `party-00`" in card
    assert "not tested on people nobody trained on" in card
    assert "| all |" not in card
