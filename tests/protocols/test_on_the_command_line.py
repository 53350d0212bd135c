"""`fedvisage embed` and `evaluate` with protocols, on files, folders, runs and parties."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedvisage as fv
from fedvisage.evaluation import macro_average, personal_protocol
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.partition import Partition
from fedvisage.models import load_model

TINY = {
    "faces.identities": 30,
    "faces.images_per_identity": 6,
    "partition.public": 4,
    "partition.test": 20,
    "partition.parties": 2,
    "partition.identities_per_party": 3,
    "partition.held_out": 0.5,
    "pretrain.epochs": 1,
    "federation.rounds": 1,
    "federation.workers": 1,
    "method.name": "alone",
    "compare": [],
    "evaluation.pairs": 40,
    "evaluation.fars": [0.1],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    fv.run(fv.load_recipe("smoke", TINY), out=folder)
    return folder


def results(out: str):
    return json.loads(out)["results"]


def test_embeddings_once_written_serve_several_protocols(fedvisage, model, rfw_set, tmp_path):
    file = tmp_path / "faces.safetensors"
    code, out, err = fedvisage("embed", model, "--data", rfw_set, "--out", file, "--json")
    assert code == 0, err
    written = json.loads(out)
    assert (written["embeddings"], written["dimensions"], written["backbone"]) == (72, 16, "ir-tiny")
    words = ["--protocol", "rfw", "--protocol", "query-gallery", "--data", rfw_set, "--far", "0.1", "--json"]
    code, out, err = fedvisage("evaluate", model, file, *words)
    assert code == 0, err
    rows = results(out)
    assert [(row["model"], row["protocol"]) for row in rows] == [
        (str(path), name) for path in (model, file) for name in ("rfw", "query-gallery")
    ]
    assert rows[0]["metrics"] == rows[2]["metrics"]
    assert rows[1]["metrics"] == rows[3]["metrics"]
    assert len(written["digest"]) == 64
    code, out, _ = fedvisage("evaluate", file, *words[:2], "--data", rfw_set, "--centre", "pairs", "--json")
    assert (code, results(out)[0]["centre"]) == (0, "pairs, from test people")
    assert fedvisage("embed", model, "--data", rfw_set, "--out", file, "--centre", "all")[0] == 0
    for source, asked in ((model, ["--centre", "all"]), (file, [])):
        code, out, err = fedvisage("evaluate", source, *words, *asked)
        assert (code, [row["centre"] for row in results(out)]) == (0, ["all", "all"]), err
        assert all("embeddings about the model's centre 'all'" in row["notes"] for row in results(out))
        assert [row["metrics"] for row in results(out)] != [row["metrics"] for row in rows[:2]]
    code, _, err = fedvisage("evaluate", file, *words, "--centre", "none")
    assert (code, "was made about the centre 'all': leave --centre out" in err) == (2, True)


def test_a_table_has_a_row_per_model_and_says_what_it_counted(fedvisage, model, lfw_set, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = fedvisage("evaluate", model, "--protocol", "lfw", "--data", lfw_set, "--far", "1e-4")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["lfw,", "percent"]
    assert lines[1].split() == ["model", "backbone", "accuracy", "TAR@0.0001"]
    assert lines[2].split()[1] == "ir-tiny"
    assert lines[2].split()[3] == "nan"
    assert "200 pairs" in lines[3]
    assert "TAR@0.0001: far 0.0001 of" in lines[4]


def test_one_protocol_on_several_folders_is_one_table(fedvisage, model, lfw_set, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    other = tmp_path / "agedb"
    other.symlink_to(lfw_set)
    code, out, _ = fedvisage("evaluate", model, "--protocol", "lfw", "--data", lfw_set, "--data", other)
    assert code == 0
    assert out.splitlines()[1].count("accuracy") == 2


def test_the_personal_protocol_scores_every_partys_own_model(fedvisage, finished):
    options = ("--far", "0.05", "--fpir", "0.2", "--json")
    code, out, err = fedvisage("evaluate", finished, "--protocol", "personal", *options)
    assert code == 0, err
    (row,) = results(out)
    partition, faces = Partition.load(finished / "partition.json"), open_faceset(finished / ".cache")
    images = np.unique([image for share in partition.parties.values() for image in share.held_out])
    each = []
    for name, share in partition.parties.items():
        model = load_model(finished / "parties" / name / "model.safetensors")
        train = np.array(share.train)
        test = model.embed(faces.images.read(images), flip=False)
        gallery = model.embed(faces.images.read(train), flip=False)
        each.append(
            personal_protocol(test, faces.labels[images], gallery, faces.labels[train], fars=[0.05], fpirs=[0.2])
        )
    for variant in ("parity", "clean"):
        expected = macro_average(each, variant)
        assert row["metrics"][f"TAR@0.05 ({variant})"] == expected["tar@0.05"]
        assert row["metrics"][f"TPIR@0.2 ({variant})"] == expected["tpir@0.2"]
    assert row["counts"]["parties"] == 2
    assert row["counts"]["genuine"] == sum(party.counts.genuine for party in each)
    assert "2 of 2 parties have a model of their own, the others the global one" in row["notes"]

    party = next(iter(partition.parties))
    code, out, err = fedvisage("evaluate", finished / "parties" / party, "--protocol", "personal", *options)
    assert code == 0, err
    (row,) = results(out)
    assert row["metrics"]["TAR@0.05 (clean)"] == each[0].rates("clean")["tar@0.05"]


def test_the_personal_protocol_takes_the_runs_models_too(fedvisage, finished):
    """Of parties that train alone the run's model is its start; their own models have no last layer to leave out."""
    rates = {}
    for which in ("own", "local", "global", "start"):
        words = ("--protocol", "personal", "--which", which, "--far", "0.05", "--fpir", "0.2", "--json")
        code, out, err = fedvisage("evaluate", finished, *words)
        assert code == 0, err
        (row,) = results(out)
        rates[which] = row["metrics"]
    partition, faces = Partition.load(finished / "partition.json"), open_faceset(finished / ".cache")
    images = np.unique([image for share in partition.parties.values() for image in share.held_out])
    model, each = load_model(finished / "model.safetensors"), []
    for share in partition.parties.values():
        train = np.array(share.train)
        sides = (model.embed(faces.images.read(some), flip=False) for some in (images, train))
        test, gallery = sides
        each.append(
            personal_protocol(test, faces.labels[images], gallery, faces.labels[train], fars=[0.05], fpirs=[0.2])
        )
    assert rates["global"]["TAR@0.05 (clean)"] == macro_average(each, "clean")["tar@0.05"]
    assert rates["start"] == rates["global"] != rates["own"] == rates["local"]
    code, _, err = fedvisage("evaluate", finished, "--protocol", "personal", "--which", "best")
    assert (code, "unknown which 'best'" in err) == (2, True)


def test_the_personal_protocol_takes_an_embeddings_file_of_the_runs_faces(fedvisage, finished, tmp_path):
    options = ("--protocol", "personal", "--far", "0.05", "--fpir", "0.2", "--json")
    party = sorted((finished / "parties").iterdir())[0]
    file = tmp_path / "own.safetensors"
    assert fedvisage("embed", party, "--data", finished / ".cache", "--out", file, "--no-flip")[0] == 0
    code, out, err = fedvisage("evaluate", file, "--run", party, *options)
    assert code == 0, err
    _, expected, _ = fedvisage("evaluate", party, *options)
    assert results(out)[0]["metrics"] == pytest.approx(results(expected)[0]["metrics"], nan_ok=True)
    assert results(out)[0]["counts"] == results(expected)[0]["counts"]
    code, _, err = fedvisage("evaluate", file, *options)
    assert (code, "name its run with --run" in err) == (2, True)


def test_intervals_and_curves_come_with_pairs(fedvisage, model, lfw_set):
    words = ("--protocol", "lfw", "--protocol", "all-pairs", "--data", lfw_set, "--pairs", "100", "--far", "0.1")
    code, out, err = fedvisage("evaluate", model, *words, "--resamples", "50", "--curves", "--json")
    assert code == 0, err
    for row in results(out):
        assert set(row["details"]["intervals"]) == (
            {"accuracy"} if row["protocol"] == "lfw" else {"accuracy", "TAR@0.1"}
        )
        for name, (low, high) in row["details"]["intervals"].items():
            assert low < row["metrics"][name] < high
        roc, det = row["details"]["roc"], row["details"]["det"]
        assert (roc["far"][0], roc["tar"][0], roc["far"][-1], roc["tar"][-1]) == (0, 0, 1, 1)
        assert det["frr"] == [1 - share for share in roc["tar"]]
        assert sorted(roc["threshold"][1:], reverse=True) == roc["threshold"][1:]
    code, _, err = fedvisage("evaluate", model, *words, "--curves")
    assert (code, "--curves needs --json" in err) == (2, True)


def test_pairs_that_training_gained_and_lost(fedvisage, finished, tmp_path):
    """Against all pairs by hand: the start's and the trained model's genuine pairs above their own thresholds."""
    trained = tmp_path / "fedavg"
    fv.run(fv.load_recipe("smoke", TINY | {"method.name": "fedavg"}), out=trained)
    code, out, err = fedvisage("evaluate", trained, "--protocol", "recovered", "--far", "0.1", "--no-flip", "--json")
    assert code == 0, err
    (row,) = results(out)
    partition, faces = Partition.load(trained / "partition.json"), open_faceset(trained / ".cache")
    images = np.array(partition.test)
    same = faces.labels[images][:, None] == faces.labels[images]
    upper = np.triu(np.ones_like(same), 1).astype(bool)
    accepted = []
    for folder in (finished, trained):  # the run of parties that train alone ends with its start
        unit = load_model(folder / "model.safetensors").embed(faces.images.read(images), flip=False, normalise=True)
        cosines = unit @ unit.T
        impostor = np.sort(cosines[upper & ~same])[::-1]
        accepted.append(cosines[upper & same] > impostor[int(0.1 * len(impostor))])
    was, now = accepted
    assert row["counts"]["genuine"] == len(was) == 20 * 15
    assert row["metrics"]["recovered@0.1"] == pytest.approx(np.mean(~was & now), abs=0.004)
    assert row["metrics"]["lost@0.1"] == pytest.approx(np.mean(was & ~now), abs=0.004)


def test_the_share_of_public_images_that_parties_sampled(fedvisage, tmp_path, finished):
    run = tmp_path / "fedfr"
    fv.run(fv.load_recipe("smoke", TINY | {"method.name": "fedfr", "method.public": "all"}), out=run)
    code, out, err = fedvisage("evaluate", run, "--protocol", "sampled", "--json")
    assert code == 0, err
    (row,) = results(out)
    assert row["metrics"] == {"sampled": 1.0}
    code, _, err = fedvisage("evaluate", finished, "--protocol", "sampled")
    assert (code, "did not train on public images" in err) == (2, True)


def test_run_and_party_folders_are_models_too(fedvisage, finished, tmp_path):
    faces = finished / ".cache"
    party = sorted((finished / "parties").iterdir())[0]
    sources = (finished, finished / "model.safetensors", party, party / "model.safetensors")
    code, out, err = fedvisage("evaluate", *sources, "--data", faces, "--pairs", "20", "--json")
    assert code == 0, err
    rows = results(out)
    assert rows[0]["metrics"] == rows[1]["metrics"]
    assert rows[2]["metrics"] == rows[3]["metrics"]
    assert rows[0]["metrics"] != rows[2]["metrics"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evaluate", "MODEL", "--protocol", "lfv", "--data", "LFW"], "unknown protocol 'lfv': did you mean 'lfw'?"),
        (["evaluate", "MODEL", "--protocol", "lfw"], "the protocol 'lfw' needs --data"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "nowhere"], "no faces in nowhere"),
        (["evaluate", "nothing", "--protocol", "lfw", "--data", "LFW"], "no model 'nothing'"),
        (["evaluate", "MODEL", "--protocol", "rfw", "--data", "LFW"], "no pair list of a race"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "BARE"], "has no list 'pairs': there are none"),
        (["evaluate", "MODEL", "--protocol", "personal"], "needs a run's folder"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--protocol", "rfw", "--protocol", "ijb", "--data", "LFW",
          "--data", "LFW"], "3 protocols and 2 folders"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "LFW", "--rule", "bst"], "unknown rule 'bst'"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "LFW", "--convention", "x"], "unknown convention 'x'"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "LFW", "--centre", "x"],
         "has no centre 'x'; its centres: all"),
        (["evaluate", "FILE", "--protocol", "lfw", "--data", "LFW", "--centre", "all"], "was made without a centre"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--protocol", "query-gallery", "--data", "LFW", "--rule", "exact"],
         "the protocol 'query-gallery' has no use for --rule exact: leave it out (it is for"),
        (["evaluate", "MODEL", "--protocol", "megaface", "--data", "LFW", "--noise", "no"], "unknown noise 'no'"),
        (["evaluate", "MODEL", "--protocol", "lfw", "--data", "LFW", "--far", "2"], "far must lie in (0, 1]"),
        (["evaluate", "MODEL", "--data", "LFW", "--far", "0"], "far must lie in (0, 1], got 0.0"),
        (["evaluate", "MODEL", "--data", "LFW", "--far", "nan"], "far must be a number in (0, 1]"),
        (["evaluate", "MODEL", "--data", "LFW", "--far", "0.1", "--far", "inf"], "far must be a number in (0, 1]"),
        (["evaluate", "MODEL", "--data", "LFW", "--fpir", "2"], "fpir must lie in (0, 1]"),
        (["evaluate", "MODEL", "--protocol", "query-gallery", "--data", "LFW", "--fpir", "nan"], "fpir must be a num"),
        (["evaluate", "FILE", "--protocol", "rfw", "--data", "OTHER"], "holds embeddings of 60 other images"),
        (["evaluate", "FILE", "--protocol", "lfw", "--data", "LFW", "--no-flip"], "made with the mirrored images"),
        (["embed", "FILE", "--data", "LFW", "--out", "x.safetensors"], "the model itself is needed"),
        (["embed", "MODEL", "--data", "LFW", "--out", "no/such/folder/x"], "cannot write"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(fedvisage, model, lfw_set, rfw_set, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file.safetensors"
    if "FILE" in words:
        assert fedvisage("embed", model, "--data", lfw_set, "--out", file)[0] == 0
    bare = tmp_path / "bare"
    if "BARE" in words:
        shutil.copytree(lfw_set, bare)
        shutil.rmtree(bare / "lists")
    places = {"BARE": bare, "MODEL": model, "LFW": lfw_set, "OTHER": rfw_set, "FILE": file}
    code, out, err = fedvisage(*(places.get(word, word) for word in words))
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_list_that_fits_no_image_stops_the_import_with_what_to_type(fedvisage, model, tmp_path):
    """Twenty people, folds of two same and two different pairs; the list was made on another machine."""
    root, lines = tmp_path / "somewhere", []
    for person in range(20):
        for k in (1, 2):
            path = root / "faces" / f"P{person}" / f"{k}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(np.full((32, 32, 3), 12 * person + k, np.uint8)))
        other = (person + 1) % 20
        lines += [f"/x/y/P{person}/1.jpg /x/y/P{person}/2.jpg 1", f"/x/y/P{person}/1.jpg /x/y/P{other}/1.jpg 0"]
    (root / "pairs.txt").write_text("\n".join(lines))
    out = tmp_path / "out"
    code, _, err = fedvisage("data", "import", root, "--out", out)
    assert (code, out.exists()) == (2, False)
    assert "pairs.txt: 0 of 40 pairs are in" in err
    assert "'/x/y/P0/1.jpg' (line 1): type --strip 2" in err
    code, text, _ = fedvisage("data", "import", root, "--out", out, "--strip", 2)
    assert code == 0
    assert "pairs.txt: 40 of 40 pairs, 10 folds of 2 + 2" in text
    (root / "faces" / "P3" / "2.jpg").unlink()
    code, _, err = fedvisage("data", "import", root, "--out", tmp_path / "few", "--strip", 2)
    assert code == 2
    assert "39 of 40 pairs" in err
    assert "(line 7): add what is missing, or type --allow-missing 1 " in err
    fedvisage("data", "import", root, "--out", tmp_path / "few", "--strip", 2, "--allow-missing", 1)
    code, text, err = fedvisage("evaluate", model, "--data", tmp_path / "few", "--protocol", "lfw", "--far", 0.1)
    assert (code, "import: 1 of 40 pairs are left out" in text) == (0, True), err
