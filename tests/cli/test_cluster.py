"""`fedvisage cluster`: labels, scores and pictures from a file of embeddings; mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from fedvisage.clustering import c_finch, dbscan, finch, pairwise
from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.methods.feduda import FedUDA


@pytest.fixture
def people() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(12).repeat([25, *[8] * 10, 1])
    x = rng.normal(size=(12, 64))[labels] + 0.3 * rng.normal(size=(len(labels), 64))
    return x.astype(np.float32), labels


@pytest.fixture
def file(people, tmp_path: Path) -> Path:  # type: ignore[no-untyped-def]
    path = tmp_path / "embeddings.safetensors"
    save_file({"embeddings": people[0], "labels": people[1]}, path)
    return path


def test_the_people_of_a_file_are_found_and_scored(fedvisage, file: Path, people) -> None:  # type: ignore[no-untyped-def]
    code, out, err = fedvisage("cluster", file, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["labels"] == people[1].tolist()
    assert result["clusters"] == result["identities"] == 12
    assert result["sizes"] == [25, *[8] * 10, 1]
    assert result["singletons"] == 1
    assert result["pairwise"] == {"precision": 1.0, "recall": 1.0, "f": 1.0}
    assert result["bcubed"]["f"] == result["nmi"] == 1.0
    code, out, _ = fedvisage("cluster", file)
    assert code == 0
    assert "106 embeddings in 12 clusters, 1 of one image" in out
    assert "against 12 identities" in out


@pytest.mark.parametrize(
    ("words", "clusters"),
    [
        (("--threshold", 1e-6), 106),
        (("--threshold", 2), 1),
        (("--metric", "cosine", "--threshold", 0.4), 12),
        (("--method", "k-means", "--clusters", 5), 5),
        (("--method", "dbscan", "--threshold", 0.7), 11),
        (("--method", "finch"), 1),
        (("--method", "finch", "--partition", -1), 1),
        (("--centroids", "mean"), 12),
        (("--approximate",), 12),
        (("--smallest", 2), 11),
    ],
)
def test_methods_and_their_options(fedvisage, file: Path, words: tuple, clusters: int) -> None:  # type: ignore[no-untyped-def]
    if "--approximate" in words:
        pytest.importorskip("faiss", reason="the approximate extra is not installed")
    code, out, err = fedvisage("cluster", file, *words, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["clusters"] == clusters
    assert result["unclustered"] == result["labels"].count(-1)
    if "--approximate" in words:
        assert result["recall"] > 0.95


def test_labels_never_change_the_clusters(fedvisage, people, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "x.npy", people[0])
    save_file({"embeddings": people[0], "labels": people[1][::-1].copy()}, tmp_path / "y.safetensors")
    bare = json.loads(fedvisage("cluster", tmp_path / "x.npy", "--json")[1])
    wrong = json.loads(fedvisage("cluster", tmp_path / "y.safetensors", "--json")[1])
    assert bare["labels"] == wrong["labels"]
    assert "pairwise" not in bare
    assert wrong["pairwise"]["f"] < 1


def test_labels_are_written_in_three_formats(fedvisage, file: Path, people, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for suffix in ("npy", "safetensors", "csv"):
        out = tmp_path / f"labels.{suffix}"
        code, text, err = fedvisage("cluster", file, "--out", out, "--json")
        assert code == 0, err
        assert json.loads(text)["file"] == str(out)
        assert "labels" not in json.loads(text)
    assert np.array_equal(np.load(tmp_path / "labels.npy", allow_pickle=False), people[1])
    assert np.array_equal(load_file(tmp_path / "labels.safetensors")["labels"], people[1])
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert lines[:2] == ["image,cluster", "0,0"]
    assert [int(line.split(",")[1]) for line in lines[1:]] == people[1].tolist()


def test_contact_sheets_show_the_largest_clusters(fedvisage, file: Path, people, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, labels = people
    shades = (20 * labels).astype(np.uint8)[:, None, None, None] * np.ones((1, 16, 16, 3), np.uint8)
    write_faceset(tmp_path / "faces", FaceSet(ArrayImages(shades), labels, tuple(f"p{i}" for i in range(12))))
    code, out, err = fedvisage(
        "cluster", file, "--faces", tmp_path / "faces", "--sheets", tmp_path / "sheets", "--json"
    )
    assert code == 0, err
    pictures = json.loads(out)["pictures"]
    assert pictures[0] == str(tmp_path / "sheets" / "clusters.png")
    assert len(pictures) == 13
    first = np.asarray(Image.open(tmp_path / "sheets" / "cluster-00.png"))
    assert first.shape == (3 * 18 + 2, 10 * 18 + 2, 3)  # 25 images in three rows of ten
    assert (first[10, 10] == 0).all()
    assert (first[-10, -10] == 255).all()
    with Image.open(pictures[0]) as sheet:
        assert sheet.height == 12 * 18 + 2


def test_contact_sheets_of_as_many_clusters_as_wanted(fedvisage, file: Path, people, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pixels = np.zeros((len(people[1]), 16, 16, 3), np.uint8)
    write_faceset(tmp_path / "faces", FaceSet(ArrayImages(pixels), people[1], tuple("abcdefghijkl")))
    words = ("--faces", tmp_path / "faces", "--sheets", tmp_path / "sheets", "--largest", 3, "--json")
    code, out, err = fedvisage("cluster", file, *words)
    assert code == 0, err
    assert [Path(path).name for path in json.loads(out)["pictures"]] == [
        "clusters.png",
        *(f"cluster-{number}.png" for number in range(3)),
    ]


def test_partitions_of_finch_are_counted_as_in_recipes(fedvisage, file: Path, people) -> None:  # type: ignore[no-untyped-def]
    levels = finch(people[0], metric="euclidean", normalise=True)
    sizes = [int(level.max()) + 1 for level in levels]
    for partition, expected in ((0, levels[0]), (1, levels[1]), (-1, levels[-1])):
        result = json.loads(fedvisage("cluster", file, "--method", "finch", "--partition", partition, "--json")[1])
        assert result["partitions"] == sizes
        assert result["labels"] == expected.tolist()
        in_recipe = FedUDA(clustering="finch", partition=partition).cluster(people[0], None)  # type: ignore[arg-type]
        assert int(in_recipe.max()) + 1 == result["clusters"]
    assert f"clusters of all partitions: {sizes[0]}, " in fedvisage("cluster", file, "--method", "finch")[1]


@pytest.mark.parametrize(
    ("words", "cluster"),
    [
        ((), c_finch),
        (("--merge", "mutual"), lambda x, d: c_finch(x, d, merge="mutual")),
        (("--metric", "cosine"), lambda x, d: c_finch(x, d, metric="cosine")),
        (("--centroids", "mean"), lambda x, d: c_finch(x, d, normalise_centroids=False)),
        (("--method", "dbscan"), dbscan),
    ],
)
def test_the_threshold_that_keeps_known_people_apart(fedvisage, file: Path, people, words, cluster) -> None:  # type: ignore[no-untyped-def]
    code, out, err = fedvisage("cluster", file, "--choose-distance", *words, "--json")
    assert code == 0, err
    result = json.loads(out)
    x, truth = people
    tried = {step / 100: pairwise(truth, cluster(x, step / 100)) for step in range(1, 201)}
    pure = result["pure"]["threshold"]
    assert all(scores.precision == 1 for d, scores in tried.items() if d <= pure)
    assert tried[round(pure + 0.01, 2)].precision < 1
    assert result["pure"]["pairwise"] == tried[pure]._asdict()
    assert result["best"]["pairwise"]["f"] == max(scores.f for scores in tried.values())
    assert result["identities"] == 12
    code, out, _ = fedvisage("cluster", file, "--choose-distance", *words)
    assert code == 0
    assert f"no two people together {pure:.2f}" in " ".join(out.split())


def test_people_whom_no_threshold_keeps_apart(fedvisage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save_file({"embeddings": np.ones((4, 3), np.float32), "labels": np.arange(4)}, tmp_path / "same.safetensors")
    assert "none is safe" in fedvisage("cluster", tmp_path / "same.safetensors", "--choose-distance")[1]
    result = json.loads(fedvisage("cluster", tmp_path / "same.safetensors", "--choose-distance", "--json")[1])
    assert result["pure"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.npy",), "cannot read embeddings from nothing.npy"),
        (("nothing.safetensors",), "cannot read embeddings from nothing.safetensors"),
        (("{broken}",), "cannot read embeddings"),
        (("{pickled}",), "cannot read embeddings"),
        (("{empty}",), "cannot read embeddings"),
        (("{zip}",), "cannot read embeddings"),
        (("{other}",), "no tensor 'embeddings' but weights"),
        (("{short}",), "with labels (3,)"),
        (("{flat}",), "embeddings of shape (5,)"),
        (("{nan}",), "1 of 2 embeddings hold NaN"),
        (("{file}", "--method", "k-means"), "--clusters 100"),
        (("{file}", "--method", "finch", "--partition", "99"), "--partition 0 to"),
        (("{file}", "--method", "dbscan", "--approximate"), "dbscan makes no use of --approximate"),
        (
            ("{file}", "--method", "k-means", "--clusters", "3", "--approximate"),
            "k-means makes no use of --approximate",
        ),
        (
            ("{file}", "--method", "dbscan", "--metric", "cosine", "--centroids", "mean"),
            "no use of --metric, --centroids",
        ),
        (("{file}", "--method", "finch", "--threshold", "0.5"), "finch makes no use of --threshold"),
        (("{file}", "--method", "finch", "--choose-distance"), "finch makes no use of --choose-distance"),
        (("{file}", "--choose-distance", "--smallest", "2"), "--choose-distance clusters nothing"),
        (("{bare}", "--choose-distance"), "this file holds no tensor 'labels'"),
        (("{alone}", "--choose-distance"), "fewer than two people"),
        (("{file}", "--threshold", "-1"), "threshold of C-FINCH"),
        (("{file}", "--out", "labels.txt"), "not labels.txt"),
        (("{file}", "--out", "nowhere/labels.npy"), "cannot write nowhere/labels.npy"),
        (("{file}", "--faces", "faces"), "both --faces"),
        (("{file}", "--faces", "faces", "--sheets", "sheets"), "faces"),
    ],
)
def test_mistakes_are_one_line(fedvisage, file: Path, tmp_path: Path, words: tuple, message: str) -> None:  # type: ignore[no-untyped-def]
    x = np.ones((5, 3), np.float32)
    save_file({"weights": x}, tmp_path / "other.safetensors")
    save_file({"embeddings": x, "labels": np.arange(3)}, tmp_path / "short.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not a file of tensors")
    np.save(tmp_path / "pickled.npy", np.array([{}, None], dtype=object))
    (tmp_path / "empty.npy").touch()
    with (tmp_path / "zip.npy").open("wb") as archive:
        np.savez(archive, embeddings=x)
    np.save(tmp_path / "flat.npy", x[:, 0])
    np.save(tmp_path / "bare.npy", x)
    save_file({"embeddings": x, "labels": np.zeros(5, np.int64)}, tmp_path / "alone.safetensors")
    np.save(tmp_path / "nan.npy", np.array([[1.0, np.nan], [1.0, 0.0]]))
    names = {path.stem: path for path in tmp_path.iterdir()} | {"file": file}
    code, out, err = fedvisage("cluster", *(word.format(**names) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
