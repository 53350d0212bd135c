"""The command line: results on standard output, a user's mistake as one line and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from fedvisage.cli import main

TINY = [
    "faces.identities=36",
    "faces.images_per_identity=4",
    "partition.public=4",
    "partition.test=20",
    "partition.parties=3",
    "partition.identities_per_party=4",
    "pretrain.epochs=1",
    "federation.rounds=1",
    "federation.workers=1",
    "evaluation.pairs=40",
    "evaluation.fars=[0.1]",
]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["fedvisage", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def fedvisage(monkeypatch, capsys):  # type: ignore[no-untyped-def]
    return lambda *words: call(monkeypatch, capsys, *words)


def sets(*changes: str) -> list[str]:
    return [word for change in (*TINY, *changes) for word in ("--set", change)]


def test_run_evaluate_and_report_work_together(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run, faces = tmp_path / "run", tmp_path / "faces"
    code, out, err = fedvisage("run", "smoke", "--out", str(run), *sets('compare=["alone"]'))
    assert code == 0, err
    assert out.rstrip().splitlines()[-1] == f"report: {run / 'report.html'}"
    assert (run / "report.html").stat().st_size > 1000
    assert {"start", "fedavg", "alone"} <= set(out.split())

    code, out, _ = fedvisage("data", "synth", str(faces), "--identities", "20", "--images", "4", "--size", "32")
    assert code == 0
    arguments = ("--data", str(faces), "--pairs", "20", "--far", "0.1", "--json")
    code, out, _ = fedvisage("evaluate", str(run), *arguments)
    assert code == 0
    (row,) = json.loads(out)["results"]
    assert (row["model"], row["protocol"], row["data"]) == (str(run), "all-pairs", str(faces))
    assert 0 <= row["metrics"]["accuracy"] <= 1
    assert 0 <= row["metrics"]["TAR@0.1"] <= 1

    (run / "report.html").unlink()
    code, out, _ = fedvisage("report", str(run), "--json")
    assert code == 0
    assert json.loads(out) == {"report": str(run / "report.html")}
    assert (run / "report.html").exists()


def test_json_output_of_a_run_is_one_document(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = fedvisage("run", "smoke", "--out", str(tmp_path / "run"), "--json", *sets("compare=[]"))
    assert code == 0
    assert set(json.loads(out)["models"]) == {"start", "fedavg"}


def test_the_saved_recipe_runs_again_to_the_same_bits(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first, second = tmp_path / "first", tmp_path / "second"
    assert fedvisage("run", "smoke", "--out", str(first), *sets("compare=[]"))[0] == 0
    assert fedvisage("run", str(first / "recipe.toml"), "--out", str(second))[0] == 0
    for name in ("model.safetensors", "metrics.jsonl", "evaluation.json", "recipe.toml"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_listings_and_plan(fedvisage) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = fedvisage("methods", "--json")
    methods = json.loads(out)
    assert code == 0
    assert methods["central"]["pools"]
    assert methods["alone"]["phases"]["train"]["up"] == {"statistics": "samples, loss"}
    code, out, _ = fedvisage("models", "--json")
    assert json.loads(out)["ir-18"]["parameters"] == 24_025_600
    code, out, _ = fedvisage("plan", "smoke", "--set", "backbone.name=ir-18", "--set", "faces.size=112", "--json")
    plan = json.loads(out)
    down = [row["bytes"] for row in plan["wire"] if (row["phase"], row["group"]) == ("train", "backbone")]
    assert down == [4 * plan["backbone"]["travelling"]] * 2
    for words in (["methods"], ["models"], ["plan", "smoke"]):
        assert fedvisage(*words)[0] == 0


def test_preview_writes_a_picture_with_a_row_per_person(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    small, large = tmp_path / "small.png", tmp_path / "large.png"
    for path, people in ((small, "2"), (large, "4")):
        code, *_ = fedvisage(
            "data", "preview", "--out", str(path), "--identities", people, "--images", "3", "--size", "32"
        )
        assert code == 0
    with Image.open(large) as more, Image.open(small) as fewer:
        assert more.height > fewer.height


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nope"], "no recipe 'nope'"),
        (["run", "smoke", "--set", "federation.round=3"], "did you mean 'rounds'?"),
        (["run", "smoke", "--set", "rounds"], "section.key=value"),
        (["run", "smoke", "--set", "method.name=fedag"], "did you mean 'fedavg'?"),
        (["run", "smoke", "--set", "method.name=fedprox", "--set", "method.nu=1"], "did you mean 'mu'?"),
        (["run", "smoke", "--set", "training.loss=cosfce"], "did you mean 'cosface'?"),
        (["run", "smoke", "--set", "backbone.name=ir-8"], "unknown backbone 'ir-8'"),
        (["run", "smoke", "--set", "partition.parties=0"], "partition.parties"),
        (["run", "smoke", "--set", "partition.parties=60"], "only 32 are left"),
        (["run", "smoke", "--set", "faces.source=/no/such/folder"], "no such folder"),
        (["run", "smoke", "--set", "faces.images_per_identity=2", "--set", "partition.held_out=0.5",
          "--set", "partition.identities_per_party=1"], "1 training image"),
        (["run", "smoke", "--set", "federation.device=cuda"], "no GPU"),
        (["run", "smoke", "--set", "federation.batchnorm=local"], "no generic model"),
        (["run", "smoke", "--set", "partition.public=0"], "there is nobody to pre-train on"),
        (["run", "smoke", "--resume", "--fresh"], "contradict"),
        (["run", "smoke", "--resume"], "there is no run to resume in runs/smoke"),
        (["evaluate", "nothing.safetensors", "--data", "nowhere"], "no faces in nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["run"], "': see `fedvisage run --help`"),
        (["rum"], "No such command 'rum'"),
        (["data", "rum"], "No such command 'rum': see `fedvisage data --help`"),
        (["run", "smoke", "--rounds", "3"], "No such option: --rounds"),
        (["evaluate", "x", "--pairs", "many"], "Invalid value for '--pairs': Input should be a valid integer"),
        (["evaluate", "x", "--pairs", "-1"], "Invalid value for '--pairs'"),
        (["data", "align", "x", "--out", "y", "--points", "6"], "Invalid value for '--points'"),
        (["run", "smoke", "--set"], "Option '--set' requires an argument"),
        (["data", "preview", "nowhere"], "no faces in nowhere"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_two(fedvisage, tmp_path, monkeypatch, words, says) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    code, out, err = fedvisage(*words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == [], "a run that cannot begin leaves nothing behind"


def test_an_existing_run_is_neither_overwritten_nor_mixed_up(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = str(tmp_path / "run")
    assert fedvisage("run", "smoke", "--out", run, *sets("compare=[]"))[0] == 0
    code, _, err = fedvisage("run", "smoke", "--out", run, *sets("compare=[]"))
    assert (code, "is not empty" in err) == (2, True)
    code, _, err = fedvisage("run", "smoke", "--out", run, "--resume", *sets("compare=[]", "seed=9"))
    assert (code, "seed = 9" in err) == (2, True)
    assert fedvisage("run", "smoke", "--out", run, "--resume", *sets("compare=[]"))[0] == 0
    assert fedvisage("run", "smoke", "--out", run, "--fresh", *sets("compare=[]"))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_words_there_is_help(fedvisage) -> None:  # type: ignore[no-untyped-def]
    for words in ([], ["data"]):
        code, out, err = fedvisage(*words)
        assert (code, out) == (2, "")
        assert "Usage: fedvisage" in err
    code, out, err = fedvisage("run", "--help")
    assert (code, err) == (0, "")
    assert "Usage: fedvisage run" in out


def test_an_interrupted_run_says_how_to_go_on(fedvisage, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedvisage.cli.run.run", interrupted)
    code, _, err = fedvisage("run", "smoke", "--out", str(tmp_path / "run"))
    assert (code, err) == (130, "fedvisage: interrupted; a run goes on with --resume\n")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["proj/recipe.toml", "--out", "proj"], "lies in proj, which --fresh removes"),
        (["proj/recipe.toml", "--out", "."], "lies in ., which --fresh removes"),
        (["smoke", "--out", "proj"], "proj holds no run"),
        (["smoke", "--out", "run", "--set", "partition.parties=60"], "only 32 are left"),
        (["smoke", "--out", "run", "--set", "partition.public=0"], "nobody to pre-train on"),
        (["smoke", "--out", "run", "--set", "method.name=fedag"], "did you mean 'fedavg'?"),
    ],
)
def test_starting_over_removes_nothing_until_the_new_run_begins(fedvisage, tmp_path, monkeypatch, words, says) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    for name in ("proj", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text('name = "mine"\n')
        (tmp_path / name / "thesis.tex").write_text("years of work")
    (tmp_path / "run" / "environment.json").write_text("{}")
    before = contents(tmp_path)
    code, _, err = fedvisage("run", *words, "--fresh")
    assert (code, says in err, err.count("\n")) == (2, True, 1), err
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proj", "run"]


def test_there_is_nothing_to_resume_in_an_empty_folder(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, _, err = fedvisage("run", "smoke", "--out", str(tmp_path), "--resume")
    assert (code, "there is no run to resume" in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []
