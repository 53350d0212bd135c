"""From a data set's own files to its metrics: synthetic people in the formats of LFW, RFW, IJB-C, IJB-A and MegaFace.

The images are coloured noise around a picture per person. What each protocol must give is worked out here from the
files' contents and the embeddings of the images as imported, not from the lists that the import wrote.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvisage import evaluation
from fedvisage.cli import main
from fedvisage.faces.decoding import encode
from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.template import ARCFACE_POINTS
from fedvisage.models import create_backbone, load_model, save_model

SIZE = 112


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("network") / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    save_model(path, create_backbone("ir-tiny", image_size=SIZE, embedding_size=16, generator=generator))
    return path


def picture(person: int, number: int) -> bytes:
    rng = np.random.default_rng([person, number])
    base = np.random.default_rng(person).integers(0, 256, (7, 7, 3)).repeat(16, 0).repeat(16, 1)
    return encode(np.clip(base + rng.normal(0, 70, base.shape), 0, 255).astype(np.uint8))


def put(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.fixture
def measured(monkeypatch, capsys, tmp_path, network):
    """Import, embed and evaluate by the commands, from the embeddings file; the result and the embeddings."""

    def call(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["fedvisage", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        assert int(stop.value.code or 0) == 0, err
        return out

    def measure(source: Path, protocol: str, *options: str, imported: tuple[object, ...] = ()):
        faces, file = tmp_path / "imported", tmp_path / "embeddings.safetensors"
        call("data", "import", source, "--out", faces, "--size", str(SIZE), "--json", *imported)
        call("embed", network, "--data", faces, "--out", file)
        out = call("evaluate", file, "--protocol", protocol, "--data", faces, "--json", *options)
        opened = open_faceset(faces)
        vectors = load_model(network).embed(opened.images.read(np.arange(len(opened))))
        return json.loads(out)["results"][0], opened, vectors

    return measure


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_lfw_as_a_bin_file(measured, tmp_path):
    """Images 2p and 2p + 1 are pair p; the answers alternate."""
    images = [picture(p % 7 if k == 0 or p % 2 == 0 else p % 7 + 10, 2 * p + k) for p in range(60) for k in (0, 1)]
    same = [p % 2 == 0 for p in range(60)]
    path = tmp_path / "lfw.bin"
    path.write_bytes(pickle.dumps((images, same)))
    row, _, vectors = measured(path, "lfw", "--far", "0.1")
    expected = evaluation.kfold_accuracy(vectors[0::2], vectors[1::2], same)
    assert row["metrics"]["accuracy"] == expected.mean
    score = np.sum(unit(vectors[0::2].astype(float)) * unit(vectors[1::2].astype(float)), axis=1)
    rate = evaluation.tar_at_far(score[0::2], score[1::2], 0.1)
    assert row["metrics"]["TAR@0.1"] == rate.value
    assert row["counts"] == {"pairs": 60, "genuine": 30, "impostor": 30, "folds": 10}


def test_rfw_with_a_pair_whose_image_is_missing(measured, tmp_path):
    """A fold a person: two pairs of their three images, and two with the next person's."""
    files: dict[str, bytes | str] = {}
    for base, race in ((0, "African"), (100, "Asian")):
        lines = []
        for p in range(10):
            name, other = f"m.{race[:2]}{p}", f"m.{race[:2]}{(p + 1) % 10}"
            for k in (1, 2, 3):
                files[f"test/data/{race}/{name}/{name}_{k:04d}.jpg"] = picture(base + p, k)
            lines += [f"{name}\t1\t2", f"{name}\t1\t3", f"{name}\t1\t{other}\t1", f"{name}\t2\t{other}\t2"]
        files[f"test/txts/{race}/{race}_pairs.txt"] = "\n".join(lines) + "\n"
        files[f"test/txts/{race}/{race}_people.txt"] = "".join(f"m.{race[:2]}{p}\t3\n" for p in range(10))
    del files["test/data/Asian/m.As3/m.As3_0002.jpg"]
    row, faces, vectors = measured(put(tmp_path / "rfw", files), "rfw", "--far", "0.1", imported=("--allow-missing", 3))
    assert row["counts"]["african pairs"] == 40
    assert row["counts"]["asian pairs"] == 37
    assert any("3 of 40 pairs are left out" in text for text in row["notes"])
    african = [n for n, name in enumerate(faces.names) if "m.Af" in name]
    rows = [np.flatnonzero(faces.labels == label) for label in african]
    chosen = [((p, 0), (p, 1)) for p in range(10)] + [((p, 0), (p, 2)) for p in range(10)]
    chosen += [((p, k), ((p + 1) % 10, k)) for k in (0, 1) for p in range(10)]
    left, right = (np.array([rows[pair[side][0]][pair[side][1]] for pair in chosen]) for side in (0, 1))
    score = np.sum(unit(vectors[left].astype(float)) * unit(vectors[right].astype(float)), axis=1)
    same = np.arange(40) < 20
    assert row["metrics"]["african TAR@0.1"] == evaluation.tar_at_far(score[same], score[~same], 0.1).value


def test_ijbc_end_to_end(measured, tmp_path):
    """12 people, two templates each of a still and two frames of one video; the last two people are in no gallery."""
    points = " ".join(f"{value:.4f}" for value in ARCFACE_POINTS.ravel())
    files: dict[str, bytes | str] = {}
    faces_, scores, medium = [], [], {}
    for t in range(24):
        for k in range(3):
            n = 3 * t + k + 1
            files[f"loose_crop/{n}.jpg"] = picture(t // 2, n)
            medium[n] = 2 * t + (k > 0)
            faces_.append(f"{n}.jpg {t + 500} {medium[n]}")
            scores.append(f"{n}.jpg {points} {0.5 + n / 200:.3f}")
    pairs = [(a, b) for a in range(0, 24, 2) for b in range(1, 24, 2)]
    head = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n"
    files["meta/ijbc_face_tid_mid.txt"] = "\n".join(faces_) + "\n"
    files["meta/ijbc_name_5pts_score.txt"] = "\n".join(scores) + "\n"
    files["meta/ijbc_template_pair_label.txt"] = "".join(
        f"{a + 500} {b + 500} {int(a // 2 == b // 2)}\n" for a, b in pairs
    )
    for number, people in (("G1", range(0, 5)), ("G2", range(5, 10))):
        files[f"meta/ijbc_1N_gallery_{number}.csv"] = head + "".join(f"{2 * p + 500},{p + 90},x\n" for p in people)
    files["meta/ijbc_1N_probe_mixed.csv"] = head + "".join(f"{2 * p + 501},{p + 90},x\n" for p in range(12))
    row, _, vectors = measured(put(tmp_path / "IJBC", files), "ijb", "--far", "0.1", "--fpir", "0.25")

    order = sorted(range(1, 73), key=str)  # images are numbered by their names
    feature = {n: vectors[order.index(n)] * np.float32(0.5 + n / 200) for n in range(1, 73)}
    template = []
    for t in range(24):
        a, b, c = (feature[3 * t + k].astype(float) for k in (1, 2, 3))
        template.append(unit(a + (b + c) / 2))
    template = np.array(template)
    score = np.array([template[a] @ template[b] for a, b in pairs])
    same = np.array([a // 2 == b // 2 for a, b in pairs])
    assert row["metrics"]["TAR@0.1"] == evaluation.tar_at_far(score[same], score[~same], 0.1).value
    gallery, probes = template[0:20:2], template[1::2]
    cosine = probes @ gallery.T
    ranks = [1 + np.sum(cosine[p] > cosine[p, p]) for p in range(10)]
    assert row["metrics"]["rank-1"] == np.mean(np.array(ranks) == 1)
    assert row["metrics"]["rank-5"] == np.mean(np.array(ranks) <= 5)
    others = cosine.copy()
    others[np.arange(10), np.arange(10)] = -np.inf
    threshold = np.sort(others.ravel())[::-1][2]  # ceil(0.25 * 12) = 3rd largest of all non-mate scores
    assert row["metrics"]["TPIR@0.25 (pair-count)"] == np.mean([cosine[p, p] > threshold for p in range(10)])
    halves = []
    for part in (range(0, 5), range(5, 10)):
        strangers = sorted((cosine[p, part].max() for p in range(12) if p not in part), reverse=True)
        threshold = strangers[0]  # floor(0.25 * 7) = 1st largest
        halves.append(np.mean([cosine[p, p] == cosine[p, part].max() and cosine[p, p] > threshold for p in part]))
    assert row["metrics"]["TPIR@0.25 (nist)"] == pytest.approx(np.mean(halves))
    assert "N1 D1 F1 (norm kept, detector score, flip)" in row["notes"]
    assert (row["counts"]["genuine"], row["counts"]["impostor"], row["counts"]["probes without mate"]) == (12, 132, 2)


def test_ijba_end_to_end(measured, tmp_path):
    head = "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"
    files: dict[str, bytes | str] = {f"img/{n}.jpg": picture(n // 4, n) for n in range(40)}

    def line(template: int, n: int) -> str:
        return f"{template},{n // 4 + 70},img/{n}.jpg,{n},1,,0,0,112,112\n"

    for split in (1, 2):
        first = (split - 1) * 20
        here = range(first, first + 20)
        files[f"IJB-A_11_sets/split{split}/verify_metadata_{split}.csv"] = head + "".join(line(n, n) for n in here)
        compared = [(a, b) for a in here for b in here if a < b]
        files[f"IJB-A_11_sets/split{split}/verify_comparisons_{split}.csv"] = "".join(f"{a},{b}\n" for a, b in compared)
        some = [n for n in here if n % 4 == 0]
        files[f"IJB-A_1N_sets/split{split}/search_gallery_{split}.csv"] = head + "".join(line(n, n) for n in some[:4])
        files[f"IJB-A_1N_sets/split{split}/search_probe_{split}.csv"] = head + "".join(line(n + 1, n + 1) for n in some)
    row, _, vectors = measured(put(tmp_path / "IJB-A", files), "ijba", "--far", "0.1", "--fpir", "1.0", "--rank", "1")
    vectors = unit(vectors.astype(float))
    tars, ranks = [], []
    for first in (0, 20):
        here = vectors[first : first + 20]
        left, right = np.triu_indices(20, 1)
        score, same = np.sum(here[left] * here[right], axis=1), left // 4 == right // 4
        tars.append(evaluation.tar_at_far(score[same], score[~same], 0.1).value)
        cosine = here[1::4][:4] @ here[0::4][:4].T
        ranks.append(np.mean(cosine.argmax(axis=1) == np.arange(4)))
    assert row["metrics"]["TAR@0.1"] == pytest.approx(np.mean(tars))
    assert row["metrics"]["rank-1"] == pytest.approx(np.mean(ranks))
    assert row["counts"] == {
        "splits": 2,
        "templates": 2 * 29,
        "images in templates": 2 * 20,
        "genuine": 2 * 5 * 6,
        "impostor": 2 * (190 - 5 * 6),
        "probes": 2 * 5,
        "gallery templates": 2 * 4,
        "probes without mate": 2,
    }


def test_megaface_end_to_end(measured, tmp_path):
    people, each = ("Ann", "Bob", "Cleo", "Dan"), 4
    files: dict[str, bytes | str] = {}
    for p, name in enumerate(people):
        for k in range(each):
            files[f"facescrub_images/{name}/{name}_{k}.png"] = picture(p, k)
    for n in range(30):
        files[f"megaface_images/10/x/{n:02d}.jpg"] = picture(50 + n % 9, n)
    files["megaface_images/10/x/30.jpg"] = files["facescrub_images/Ann/Ann_0.png"]  # a probe among the distractors
    files["facescrub_lst"] = "".join(f"{name}/{name}_{k}.png\n" for name in people for k in range(each))
    files["megaface_lst"] = "".join(f"10/x/{n:02d}.jpg\n" for n in range(31))
    files["megaface_noises.txt"] = "10/x/30.jpg\n"
    row, _, vectors = measured(put(tmp_path / "mega", files), "megaface", "--far", "0.01")
    probes, others = unit(vectors[:16].astype(float)), unit(vectors[16:46].astype(float))
    own, among = probes @ probes.T, (probes @ others.T).max(axis=1)
    trials = [(i, j) for i in range(16) for j in range(16) if i != j and i // 4 == j // 4]
    assert row["metrics"]["rank-1"] == np.mean([own[i, j] > among[i] for i, j in trials])
    assert (row["counts"]["trials"], row["counts"]["impostor"]) == (48, 16 * 31)
    assert any("1 images on the noise list" in text for text in row["notes"])
