"""The map of people and the curves over all thresholds."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from run_folder import RunFolder

from fedvisage.core.errors import FedVisageError
from fedvisage.report import write_report
from fedvisage.report.people_map import Alike, alike_figures
from fedvisage.report.tsne import tsne

MAP = {
    "parties": ["anna", "bert"],
    "classes": {"of": 3, "party": [0, 0, 1], "points": [[0.1, 0.2], [0.5, 0.5], [0.9, 0.8]]},
    "alike": {
        "pairs": [
            {
                "who": [["anna", 0], ["bert", 0]],
                "cosine": 0.61,
                "between": [0, 0, 3, 1],
                "within": [0, 0, 1, 3],
                "mean": 0.42,
            }
        ],
        "which": [0, 0, 1],
        "points": [[0.1, 0.1], [0.2, 0.2], [0.9, 0.9]],
    },
}


def test_tsne_keeps_clusters_together() -> None:
    rng = np.random.default_rng(1)
    centres = 5 * rng.normal(size=(4, 16))
    which = np.repeat(np.arange(4), 20)
    places = tsne(centres[which] + rng.normal(size=(80, 16)))
    assert places.min() >= -1e-9
    assert places.max() <= 1 + 1e-9
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(axis=1)
    assert (which[nearest] == which).mean() == 1.0


def test_tsne_reaches_the_divergence_that_scikit_learn_reaches() -> None:
    from sklearn.manifold import TSNE

    points = np.random.default_rng(2).normal(size=(60, 8))
    theirs = TSNE(perplexity=19, init="pca", method="exact", random_state=0).fit(points)
    assert _divergence(points, theirs.embedding_, 19) == pytest.approx(theirs.kl_divergence_, abs=0.02)
    places = tsne(points, 19)  # in the unit square: the scale that the divergence needs is looked for
    ours = min(_divergence(points, places * scale, 19) for scale in np.geomspace(1, 60, 80))
    assert ours < theirs.kl_divergence_ + 0.05


def _divergence(points: np.ndarray, places: np.ndarray, perplexity: float) -> float:
    """What t-SNE minimises, with scikit-learn's neighbour probabilities."""
    from scipy.spatial.distance import pdist, squareform
    from sklearn.manifold._t_sne import _joint_probabilities

    near = _joint_probabilities(squareform(pdist(points, "sqeuclidean")).astype(np.float32), perplexity, 0)
    kernel = 1 / (1 + pdist(places.astype(np.float64), "sqeuclidean"))
    far = np.maximum(kernel / (2 * kernel.sum()), 1e-12)
    return float(2 * (near * np.log(np.maximum(near, 1e-12) / far)).sum())


def test_tsne_gives_the_same_places_again_and_bears_few_or_equal_points() -> None:
    points = np.random.default_rng(3).normal(size=(12, 4))
    assert np.array_equal(tsne(points), tsne(points))
    for few in (np.zeros((0, 4)), np.zeros((1, 4)), np.zeros((3, 4)), np.zeros((9, 4)), np.ones((8, 1))):
        places = tsne(few)
        assert places.shape == (len(few), 2)
        assert np.isfinite(places).all()


def test_a_run_without_a_map_has_no_such_section(folder: RunFolder) -> None:
    assert not {"people", "rates"} & folder.page().ids


def test_the_map_draws_every_person_and_the_confusable_pairs(folder: RunFolder) -> None:
    (folder.save().path / "map.json").write_text(json.dumps(MAP))
    page = folder.page()
    assert "people" in page.ids
    said = [str(a["aria-label"]) for tag, a in page.tags if tag == "svg"]
    assert any("Map of the class embeddings of 2 parties. 3 people of all parties" in words for words in said)
    assert (
        "anna, person 1 and bert, person 1; class embeddings at 0.61, images of the two at 0.42 on average" in page.text
    )
    marks = [tag for tag, a in page.tags if a.get("class") == "fill dim"]
    assert sorted(marks) == ["circle"] * 5 + ["rect"]


def test_several_models_are_drawn_side_by_side_to_one_scale() -> None:
    """Three of four cosines in a bin are as high in both, and all of them in one bin higher."""
    alike = Alike.model_validate(MAP["alike"])
    single = alike.model_copy(
        update={"pairs": (alike.pairs[0].model_copy(update={"between": (0, 4, 0, 0), "mean": 0.1}),)}
    )
    figures = alike_figures({"one": alike, "other": single, "none": Alike(pairs=(), which=(), points=())})
    assert [figure.title for figure in figures] == [
        *(f"{name}: images of the most confusable pairs" for name in ("one", "other")),
        *(f"{name}: cosines of images of the most confusable pairs" for name in ("one", "other")),
    ]
    first, second = figures[2:]
    assert "class embeddings at 0.61, images of the two at 0.42 on average" in first.caption
    assert "class embeddings at 0.61, images of the two at 0.10 on average" in second.caption
    assert _tops(first.svg) == {"genuine": _tops(second.svg)["genuine"], "impostor": _tops(first.svg)["genuine"]}
    floor = max(y for _, y in _outline(first.svg, "genuine"))
    three_quarters, all_of_them = (floor - top for top in (_tops(second.svg)["genuine"], _tops(second.svg)["impostor"]))
    assert three_quarters == pytest.approx(0.75 * all_of_them, abs=0.2)


def _tops(svg: str) -> dict[str, float]:
    """How high the outline of each kind goes; heights grow downwards."""
    return {kind: min(y for _, y in _outline(svg, kind)) for kind in ("genuine", "impostor")}


def _outline(svg: str, kind: str) -> list[tuple[float, float]]:
    (group,) = (one for one in ElementTree.fromstring(svg).iter() if one.get("class") == kind)
    path = next(one for one in group if one.tag.endswith("path"))
    numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_damaged_map_is_named(folder: RunFolder) -> None:
    (folder.save().path / "map.json").write_text('{"parties": []}')
    with pytest.raises(FedVisageError, match=r"map\.json is damaged"):
        write_report(folder.path)


def test_curves_over_all_thresholds_replace_the_few_rates(folder: RunFolder) -> None:
    for score in folder.evaluation["models"].values():
        score["roc"] = [[0.001, 0.2], [0.01, 0.5], [0.1, 0.9], [1.0, 1.0]]
    page = folder.page()
    assert "rates" in page.ids
    said = [str(a["aria-label"]) for tag, a in page.tags if tag == "svg"]
    (roc,) = [words for words in said if words.startswith("ROC")]
    (det,) = [words for words in said if words.startswith("DET")]
    assert "Federated: fedavg from 20.0%" in roc
    assert "Federated: fedavg from 80.0%" in det
    assert not any(words.startswith("True accept rate over") for words in said)
