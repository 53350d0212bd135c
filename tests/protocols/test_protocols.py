"""Each protocol gives what its metrics give on the same embeddings, from a model and from a file of embeddings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedvisage import evaluation
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import make_pairs
from fedvisage.evaluation.influence import alarms, listed_pairs, pairs_among, searched_pairs, tar_influence
from fedvisage.faces.lists import ImageList, PairList, SubjectList, TemplateList, TemplatePairs, open_list, write_lists
from fedvisage.models import load_model
from fedvisage.protocols import PROTOCOLS, Data, Options, embed_to_file, open_subject
from fedvisage.protocols import run as evaluate
from fedvisage.protocols.protocol import Result
from fedvisage.protocols.verification import _warn_of_grid
from tests.protocols.conftest import write

ON = {
    "lfw": "lfw_set",
    "rfw": "rfw_set",
    "all-pairs": "lfw_set",
    "query-gallery": "rfw_set",
    "fedfrbench": "rfw_set",
    "megaface": "megaface_set",
    "ijb": "ijb_set",
    "ijba": "ijba_set",
    "ijb-means": "ijb_set",
    "ijba-means": "ijba_set",
}
SMALL = Options(fars=(0.1,), fpirs=(0.25,), pairs=60)


def run(name: str, folder: Path, source: Path | str, options: Options = SMALL):
    return PROTOCOLS[name].run(Data(folder), open_subject(str(source)), options)


def embeddings(model: Path, folder: Path, flip: bool = True):
    faces = Data(folder).faces
    return load_model(model).embed(faces.images.read(np.arange(len(faces))), flip=flip).astype(np.float64)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("name", sorted(ON))
def test_a_file_of_embeddings_serves_as_well_as_the_model(name, model, tmp_path, request):
    folder = request.getfixturevalue(ON[name])
    file = tmp_path / "embeddings.safetensors"
    embed_to_file(open_subject(str(model)), Data(folder), file, flip=not name.endswith("-means"))
    by_model, by_file = run(name, folder, model), run(name, folder, file)
    assert by_file.metrics == by_model.metrics
    assert by_file.counts == by_model.counts
    assert all(0 <= value <= 1 for value in by_model.metrics.values())
    assert len(by_model.metrics) >= 1


def test_every_protocol_is_tested_here():
    assert set(PROTOCOLS) == {*ON, "alike", "own-statistics", "personal", "pseudo-labels", "recovered", "sampled"}


def test_each_image_is_embedded_once_for_all_protocols(model, rfw_set):
    subject, seen = open_subject(str(model)), []
    first = next(layer for layer in subject.model.modules() if isinstance(layer, nn.Conv2d))
    first.register_forward_hook(lambda layer, images, out: seen.append(len(out)))
    for name in ("rfw", "query-gallery", "fedfrbench", "all-pairs"):
        PROTOCOLS[name].run(Data(rfw_set), subject, SMALL)
    assert sum(seen) == 2 * 72  # each image and its mirror image


def test_images_that_no_list_names_are_not_embedded(model, tmp_path):
    labels = np.repeat(np.arange(6), 3)
    listed = np.arange(3, 15)  # the first person and the last are in no pair
    pairs = PairList(listed, np.roll(listed, 1), labels[listed] == labels[np.roll(listed, 1)], np.arange(12) % 2)
    folder = write(tmp_path / "set", labels, {"pairs": pairs})
    subject, seen = open_subject(str(model)), []
    first = next(layer for layer in subject.model.modules() if isinstance(layer, nn.Conv2d))
    first.register_forward_hook(lambda layer, images, out: seen.append(len(out)))
    PROTOCOLS["lfw"].run(Data(folder), subject, SMALL)
    assert sum(seen) == 2 * 12
    np.testing.assert_allclose(subject.embeddings(Data(folder), flip=True), embeddings(model, folder), rtol=1e-4)
    assert sum(seen) == 2 * 18, "the others once they are asked for"


def test_lfw_is_kfold_accuracy_on_the_list_with_flip(model, lfw_set):
    vectors, pairs = embeddings(model, lfw_set), open_list(lfw_set, "pairs")
    result = run("lfw", lfw_set, model)
    expected = evaluation.kfold_accuracy(vectors[pairs.left], vectors[pairs.right], pairs.same)
    assert result.metrics["accuracy"] == expected.mean
    assert result.details["folds"] == expected.per_fold
    score = np.sum(unit(vectors[pairs.left]) * unit(vectors[pairs.right]), axis=1)
    same = pairs.same == 1
    assert result.metrics["TAR@0.1"] == evaluation.tar_at_far(score[same], score[~same], 0.1).value
    assert result.counts == {"pairs": 200, "genuine": same.sum(), "impostor": (~same).sum(), "folds": 10}
    other = run("lfw", lfw_set, model, Options(flip=False, rule="cosine", convention="nearest", fars=(0.1,)))
    assert other.notes == ["accuracy by the rule 'cosine'", "TAR by the convention 'nearest'", "no flip test"]
    plain = embeddings(model, lfw_set, flip=False)
    expected = evaluation.kfold_accuracy(plain[pairs.left], plain[pairs.right], pairs.same, rule="cosine")
    assert other.metrics["accuracy"] == expected.mean


def test_folds_of_the_list_are_kept_wherever_its_pairs_stand(model, lfw_set, tmp_path):
    pairs = open_list(lfw_set, "pairs")
    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = PairList(pairs.left[order], pairs.right[order], pairs.same[order], pairs.fold[order] + 1)
    folder = write(tmp_path / "mixed", Data(lfw_set).faces.labels, {"pairs": mixed})
    assert run("lfw", folder, model).metrics == run("lfw", lfw_set, model).metrics


def same_first(folds):
    """Twenty same pairs of twenty people, then twenty different ones."""
    image = np.arange(0, 60, 3)
    other = np.concatenate([image + 1, np.roll(image, 1)])
    return PairList(np.concatenate([image, image]), other, np.arange(40) < 20, folds)


def test_a_fold_of_one_kind_is_refused_by_name(model, lfw_set, tmp_path):
    """As lists with all same pairs first were once imported: ten in a row."""
    folder = write(tmp_path / "old", Data(lfw_set).faces.labels, {"pairs": same_first(1 + np.arange(40) // 4)})
    says = "the list 'pairs' of .*old: fold 1 holds 4 same pairs and no different one: import the set again"
    with pytest.raises(FedVisageError, match=says):
        run("lfw", folder, model)
    best = run("lfw", folder, model, Options(rule="best", fars=(0.1,)))
    assert 0.5 <= best.metrics["accuracy"] <= 1, "one threshold for all pairs knows no folds"


def test_a_list_without_folds_has_no_accuracy_over_folds(model, lfw_set, tmp_path):
    """As LFW's View 1 has none; ten in a row would be of one kind each."""
    folder = write(tmp_path / "view-1", Data(lfw_set).faces.labels, {"pairs": same_first(np.zeros(40))})
    result = run("lfw", folder, model, Options(fars=(0.1,), resamples=10, influence=True))
    assert math.isnan(result.metrics["accuracy"])
    assert 0 <= result.metrics["TAR@0.1"] <= 1
    assert (result.counts["pairs"], result.counts["folds"]) == (40, 0)
    assert any("the list has no folds; --rule best" in text for text in result.notes)
    mixed = PairList(*(column[np.argsort(np.arange(40) % 20)] for column in vars(same_first(np.zeros(40))).values()))
    folder = write(tmp_path / "mixed", Data(lfw_set).faces.labels, {"pairs": mixed})
    result = run("lfw", folder, model)
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.counts["folds"] == 10
    assert "the list has no folds: accuracy is over 10 in a row" in result.notes


def test_below_the_resolution_a_metric_is_nan_and_a_note_says_why(model, lfw_set):
    result = run("lfw", lfw_set, model, Options(fars=(1e-5,)))
    assert math.isnan(result.metrics["TAR@1e-05"])
    assert result.table()["metrics"]["TAR@1e-05"] is None
    assert any("less than one false accept" in text for text in result.notes)


def test_centring_subtracts_the_mean_of_the_pairs(model, lfw_set):
    vectors, pairs = embeddings(model, lfw_set), open_list(lfw_set, "pairs")
    a, b = unit(vectors[pairs.left]), unit(vectors[pairs.right])
    mean = np.concatenate([a, b]).mean(axis=0)
    result = run("lfw", lfw_set, model, Options(centre="pairs", fars=(0.1,)))
    assert result.metrics["accuracy"] == evaluation.kfold_accuracy(a - mean, b - mean, pairs.same).mean
    assert "embeddings less their mean over the test pairs: a centre from test people" in result.notes


def test_all_pairs_takes_the_rule_and_the_mean_of_the_pairs(model, lfw_set):
    """Every image is in as many pairs as any other, so the mean over all pairs is the mean over the images."""
    plain = Data(lfw_set).faces.labels
    pairs = make_pairs(plain, 60, Streams(1).numpy("test pairs"))
    vectors = unit(embeddings(model, lfw_set))
    for centre, some in ((None, vectors), ("pairs", unit(vectors - vectors.mean(axis=0)))):
        options = replace(SMALL, rule="exact", centre=centre)
        result = run("all-pairs", lfw_set, model, options)
        expected = evaluation.kfold_accuracy(some[pairs.left], some[pairs.right], pairs.same, rule="exact")
        assert result.metrics["accuracy"] == expected.mean
        rates = evaluation.all_pairs_verification(some, plain, (0.1,)).rates
        assert result.metrics["TAR@0.1"] == pytest.approx(rates[0].value, abs=0.01)
        assert "accuracy by the rule 'exact'" in result.notes
        assert any("from test people" in note for note in result.notes) == (centre is not None)


CHOSEN = ["rule exact", "convention nearest", "centre pairs", "centre all"]
TAKEN = {
    "lfw": CHOSEN,
    "rfw": CHOSEN,
    "all-pairs": ["rule exact", "centre pairs", "centre all"],
    "fedfrbench": ["rule exact", "convention nearest", "centre all"],
    "ijb": ["convention nearest", "centre all"],
    "ijba": ["convention nearest", "centre all"],
    "ijb-means": ["convention nearest", "centre all"],
    "ijba-means": ["convention nearest", "centre all"],
    "query-gallery": ["centre all"],
    "megaface": ["centre all"],
    "personal": ["centre all"],
}


@pytest.mark.parametrize("choice", CHOSEN)
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_choice_is_followed_and_named_or_refused(name, choice, model, request):
    option, value = choice.split()
    options = replace(SMALL, **{option: value})
    if choice not in TAKEN.get(name, ()):
        with pytest.raises(FedVisageError, match=f"the protocol '{name}' has no use for --{choice}: leave it out"):
            evaluate(name, Data(Path()), open_subject(str(model)), options)
    elif name in ON:
        data, subject = Data(request.getfixturevalue(ON[name])), open_subject(str(model))
        chosen, plain = (evaluate(name, data, subject, some) for some in (options, SMALL))
        assert any(value in note for note in set(chosen.notes) - set(plain.notes))
        if option == "centre":
            assert chosen.metrics != plain.metrics


def test_rfw_reports_every_race_and_their_spread(model, rfw_set):
    result = run("rfw", rfw_set, model, Options())
    each = [result.metrics[f"{race} accuracy"] for race in ("african", "caucasian")]
    assert result.metrics["mean accuracy"] == pytest.approx(np.mean(each))
    assert result.metrics["spread accuracy"] == pytest.approx(np.std(each))
    assert {f"african TAR@{far}" for far in ("0.1", "0.01", "0.001")} <= set(result.metrics)
    vectors, pairs = embeddings(model, rfw_set), open_list(rfw_set, "pairs.caucasian")
    expected = evaluation.kfold_accuracy(vectors[pairs.left], vectors[pairs.right], pairs.same)
    assert each[1] == expected.mean


def test_queries_are_looked_for_in_their_own_domain_and_count_whether_they_have_a_mate_or_not(model, rfw_set):
    vectors = unit(embeddings(model, rfw_set))
    result = run("query-gallery", rfw_set, model, Options())
    query, gallery = open_list(rfw_set, "query"), open_list(rfw_set, "gallery")
    for domain, first in (("african", 0), ("caucasian", 36)):
        asked = [i for i in query.image if first <= i < first + 36]
        known = np.array([i for i in gallery.image if first <= i < first + 36])
        hits = [known[np.argmax(vectors[known] @ vectors[i])] // 3 == i // 3 for i in asked]
        assert result.metrics[f"{domain} rank-1"] == sum(hits) / len(asked)
        assert result.counts[f"{domain} queries"] == len(asked) == 12
    assert result.counts["african queries without mate"] == 1
    assert "african: 1 of 12 queries have no mate in the gallery and count as misses" in result.notes
    both = run("fedfrbench", rfw_set, model)
    assert both.metrics == run("rfw", rfw_set, model).metrics | result.metrics


def test_without_lists_queries_are_drawn_with_the_seed(model, lfw_set):
    first, again, other = (run("query-gallery", lfw_set, model, Options(seed=seed)) for seed in (1, 1, 2))
    assert first.metrics == again.metrics
    assert first.counts == {"queries": 20, "gallery images": 40, "gallery people": 20, "queries without mate": 0}
    assert "queries drawn with seed 2: one image of everybody with two or more" in other.notes


def test_ijb_pools_templates_and_compares_them_under_every_switch(model, ijb_set):
    faces, rows = Data(ijb_set).faces, open_list(ijb_set, "templates")
    pairs, same = open_list(ijb_set, "verification"), open_list(ijb_set, "verification").same == 1
    for flip, keep_norm, detector in ((True, True, None), (False, False, False), (True, False, True)):
        vectors = embeddings(model, ijb_set, flip)
        pooled = evaluation.pool_templates(
            vectors.astype(np.float32), rows.image, rows.template, rows.media, keep_norm=keep_norm,
            detector_scores=None if detector is False else faces.score,
        )  # fmt: skip
        score = evaluation.template_scores(pooled, pairs.left, pairs.right)
        options = Options(flip=flip, keep_norm=keep_norm, detector=detector, fars=(0.1,), fpirs=(0.25,))
        result = run("ijb", ijb_set, model, options)
        assert result.metrics["TAR@0.1"] == evaluation.tar_at_far(score[same], score[~same], 0.1).value
        switches = f"N{int(keep_norm)} D{int(detector is not False)} F{int(flip)}"
        assert f"{switches} (norm kept, detector score, flip)" in result.notes
    assert result.counts["templates"] == 48
    assert (result.counts["genuine"], result.counts["impostor"]) == (24, 24 * 24 - 24)


def test_templates_as_fedfaces_code_has_them_are_means_of_unit_embeddings(model, ijb_set):
    """A slow mean per template of unit embeddings of the images as they are, every image counting alike."""
    faces, rows = unit(embeddings(model, ijb_set, flip=False)), open_list(ijb_set, "templates")
    pairs = open_list(ijb_set, "verification")
    means = {one: unit(faces[rows.image[rows.template == one]].mean(0, keepdims=True))[0] for one in rows.template}
    score = np.array([means[a] @ means[b] for a, b in zip(pairs.left, pairs.right, strict=True)])
    expected = evaluation.tar_at_far(score[pairs.same == 1], score[pairs.same == 0], 0.1).value
    result = run("ijb-means", ijb_set, model)
    assert result.metrics["TAR@0.1"] == expected
    assert result.metrics["TAR@0.1"] != run("ijb", ijb_set, model).metrics["TAR@0.1"]
    assert "N0 D0 F0 (norm kept, detector score, flip)" in result.notes
    assert "every image of a template counts alike, whatever its medium" in result.notes


def test_ijb_searches_both_galleries(model, ijb_set):
    vectors = embeddings(model, ijb_set).astype(np.float32)
    rows, probes = open_list(ijb_set, "templates"), open_list(ijb_set, "probes")
    pooled = evaluation.pool_templates(
        vectors, rows.image, rows.template, rows.media, detector_scores=Data(ijb_set).faces.score
    )
    asked = pooled.vectors[probes.template - 100]
    galleries = [open_list(ijb_set, name) for name in ("gallery-1", "gallery-2")]
    each = [
        evaluation.tpir_at_fpir(
            asked, probes.subject, pooled.vectors[one.template - 100], one.subject, 0.25, dtype=np.float32
        ).value
        for one in galleries
    ]
    entries = np.concatenate([pooled.vectors[one.template - 100] for one in galleries])
    people = np.concatenate([one.subject for one in galleries])
    merged = (asked, probes.subject, entries, people)
    result = run("ijb", ijb_set, model, Options(fpirs=(0.25,), fars=(0.1,)))
    assert result.metrics["TPIR@0.25 (nist)"] == pytest.approx(np.mean(each))
    counted = evaluation.tpir_at_fpir(*merged, 0.25, "pair-count", dtype=np.float32)
    assert result.metrics["TPIR@0.25 (pair-count)"] == counted.value
    ranks = evaluation.cmc(*merged, without_mate="leave out", dtype=np.float32).rates
    assert [result.metrics[f"rank-{k}"] for k in (1, 5, 10)] == [ranks[k] for k in (1, 5, 10)]
    assert result.counts["probes without mate"] == 4


def share_moved(right, person, people, step=1e-6):
    """The derivative of a share of trials by how often each person counts, from the share itself."""
    right, person = np.asarray(right, np.float64), np.asarray(person)

    def share(weight):
        return np.sum(weight[person] * right) / np.sum(weight[person])

    once = np.ones(people)
    return np.array([(share(once + d) - share(once - d)) / (2 * step) for d in step * np.eye(people)])


def test_ijb_says_what_each_person_does_to_its_rates(model, ijb_set):
    rows, pairs = open_list(ijb_set, "templates"), open_list(ijb_set, "verification")
    result = run("ijb", ijb_set, model, replace(SMALL, influence=True, detector=False))
    people = len(Data(ijb_set).faces.names)
    pooled = evaluation.pool_templates(
        embeddings(model, ijb_set).astype(np.float32), rows.image, rows.template, rows.media, keep_norm=True
    )
    scores = evaluation.template_scores(pooled, pairs.left, pairs.right)
    listed = listed_pairs(scores, (pairs.left - 100) // 2, (pairs.right - 100) // 2, people)
    np.testing.assert_allclose(result.influence["TAR@0.1"], tar_influence(listed, 0.1))
    probes, galleries = open_list(ijb_set, "probes"), [open_list(ijb_set, f"gallery-{n}") for n in (1, 2)]
    known = np.concatenate([one.template for one in galleries])
    who = np.concatenate([one.subject for one in galleries])
    right, person = [], []
    for template, subject in zip(probes.template, probes.subject, strict=True):
        if subject in who:
            cosines = pooled.vectors[pooled.find(known, "")] @ pooled.vectors[pooled.find([template], "")[0]]
            right.append(who[np.argmax(cosines)] == subject)
            person.append(subject)
    assert np.mean(right) == result.metrics["rank-1"]
    np.testing.assert_allclose(result.influence["rank-1"], share_moved(right, person, people), atol=1e-7)
    asked = pooled.vectors[pooled.find(probes.template, "")], probes.subject
    each = []
    for one in galleries:
        entries = pooled.vectors[pooled.find(one.template, "")], one.subject
        each.append(tar_influence(alarms(evaluation.search(*asked, *entries), probes.subject, people), 0.25))
    np.testing.assert_allclose(result.influence["TPIR@0.25 (nist)"], np.mean(each, axis=0), atol=1e-7)
    merged = searched_pairs(asked, (pooled.vectors[pooled.find(known, "")], who), probes.subject, people, 0.25)
    np.testing.assert_allclose(result.influence["TPIR@0.25 (pair-count)"], tar_influence(merged, 0.25), atol=1e-7)
    assert not run("ijb", ijb_set, model).influence, "only where it is asked for"


def test_megaface_says_what_each_person_does_to_its_ranks(model, megaface_set):
    result = run("megaface", megaface_set, model, Options(fars=(0.1,), noise="keep", influence=True))
    faces = unit(embeddings(model, megaface_set))
    labels = Data(megaface_set).faces.labels
    right, person = [], []
    for one in range(32):
        for other in range(32):
            if one != other and labels[one] == labels[other]:
                right.append(faces[one] @ faces[other] > (faces[32:] @ faces[one]).max())
                person.append(labels[one])
    assert np.mean(right) == result.metrics["rank-1"]
    np.testing.assert_allclose(result.influence["rank-1"], share_moved(right, person, 9), atol=1e-7)
    pairs = pairs_among(faces[:32], labels[:32], faces[32:], labels[32:], 9)
    np.testing.assert_allclose(result.influence["TAR@0.1"], tar_influence(pairs, 0.1), atol=1e-7)
    noisy = run("megaface", megaface_set, model, Options(fars=(0.1,), influence=True))
    assert "TAR@0.1" not in noisy.influence, "noisy distractors match nobody, and no pair says so"


def test_ijba_is_the_mean_over_its_splits(model, ijba_set):
    result = run("ijba", ijba_set, model)
    one, two = (result.details[split]["metrics"] for split in ("split-01", "split-02"))
    assert one != two
    for name, value in result.metrics.items():
        assert value == pytest.approx((one[name] + two[name]) / 2)
        assert result.details["std over splits"][name] == pytest.approx(abs(one[name] - two[name]) / 2)
    assert {"TAR@0.1", "rank-1", "TPIR@0.25 (nist)"} <= set(result.metrics)


def test_megaface_under_each_treatment_of_noise(model, megaface_set):
    vectors = embeddings(model, megaface_set).astype(np.float32)
    labels = np.repeat(np.arange(8), 4)
    for noise in ("megaface", "drop", "keep"):
        result = run("megaface", megaface_set, model, Options(fars=(0.1,), noise=noise))
        probes, people, others, noisy = vectors[:32], labels, vectors[32:], None
        if noise == "drop":
            keep = np.arange(32) != 1
            probes, people, others = probes[keep], people[keep], others[~np.isin(np.arange(60), [8, 9])]
        if noise == "megaface":
            noisy = np.isin(np.arange(60), [8, 9])
            probes = probes.copy()
            probes[1] = unit(probes[[0, 2, 3]]).mean(axis=0)
        expected = evaluation.among_distractors(probes, people, others, fars=[0.1], noisy_distractors=noisy)
        assert result.metrics["rank-1"] == pytest.approx(expected.ranks[1], abs=0.04)
        assert result.counts["distractors"] == expected.distractors
        assert result.counts["trials"] == expected.trials
        if noise != "megaface":
            assert result.metrics["rank-1"] == expected.ranks[1]
            assert result.metrics["TAR@0.1"] == expected.rates[0].value
        assert any("noise list" in text for text in result.notes) == (noise != "keep")


def test_all_pairs_is_the_score_of_a_run(model, lfw_set):
    vectors, labels = embeddings(model, lfw_set), Data(lfw_set).faces.labels
    result = run("all-pairs", lfw_set, model)
    expected = evaluation.all_pairs_verification(vectors, labels, [0.1])
    assert result.metrics["TAR@0.1"] == pytest.approx(expected.tar[0.1], abs=0.02)
    assert result.counts["all_impostor"] == expected.impostor
    assert len(make_pairs(labels, 60, np.random.default_rng(0)).same) == result.counts["pairs"]


@pytest.mark.parametrize(
    ("name", "lists", "says"),
    [
        ("lfw", {}, "has no list 'pairs'"),
        ("lfw", {"pairs": PairList([0, 1, 99], [1, 2, -1], [1, 0, 0], [0, 0, 0])}, "1 of 3 rows .* first image 99"),
        ("lfw", {"pairs": PairList([], [], [], [])}, "the list 'pairs' of .* is empty"),
        ("lfw", {"pairs": ImageList([0], [0])}, "is a ImageList, not a PairList"),
        ("rfw", {"pairs": PairList([0], [1], [1], [0])}, "no pair list of a race .* its lists: pairs"),
        ("ijb", {}, "no list 'templates'; its lists: none"),
        ("ijb", {"templates": TemplateList([0, 1], [1, 2], [1, 1])}, "neither the list 'verification' nor galleries"),
        ("ijba", {}, "no lists of splits"),
        ("megaface", {}, "has no list 'probes'"),
        ("megaface", {"probes": ImageList([0, 1], [0, 0]), "distractors": ImageList([1, 2], [0, 0])},
         "1 images of .* are probes and distractors"),
        ("query-gallery", {"query": ImageList([0], [0]), "gallery": ImageList([0], [0])}, "1 images of .* query and"),
    ],
)  # fmt: skip
def test_a_missing_or_wrong_list_is_named(name, lists, says, model, tmp_path):
    folder = write(tmp_path / "faces", [0, 0, 1], lists)
    with pytest.raises(FedVisageError, match=says):
        run(name, folder, model)


def test_what_is_wrong_with_a_split_is_said_with_its_number(model, tmp_path):
    """As IJB-A's template 4161 was once imported, with three frames twice."""
    lists = {"split-02.templates": TemplateList([0, 0, 1, 2], [4161, 4161, 4161, 7], [1, 1, 1, 2])}
    lists["split-02.verification"] = TemplatePairs([7], [4161], [0])
    folder = write(tmp_path / "faces", [0, 0, 1], lists)
    with pytest.raises(FedVisageError, match=r"split-02 of .*: 1 images .* first in template 4161: import the set"):
        run("ijba", folder, model)


def test_templates_listed_twice_and_missing_detector_scores_are_named(model, tmp_path):
    templates = TemplateList([0, 1, 2], [1, 2, 3], [1, 1, 1])
    twice = SubjectList([1, 1], [0, 0])
    folder = write(tmp_path / "faces", [0, 0, 1], {"templates": templates, "gallery-1": twice, "probes": twice})
    with pytest.raises(FedVisageError, match="the list 'probes' lists 1 templates more than once, first template 1"):
        run("ijb", folder, model)
    with pytest.raises(FedVisageError, match="no detector scores: say --no-detector-score"):
        run("ijb", folder, model, Options(detector=True))
    write_lists(folder, {"probes": SubjectList([7], [0])})
    with pytest.raises(FedVisageError, match="1 templates of the list 'probes' have no image, first template 7"):
        run("ijb", folder, model)


def test_a_grid_too_coarse_for_embeddings_drawn_together_is_said():
    rng = np.random.default_rng(1)
    person = rng.standard_normal((200, 16))
    same = np.arange(200) % 2 == 0
    a = person + 0.1 * rng.standard_normal(person.shape)
    b = np.where(same[:, None], person, rng.standard_normal(person.shape))
    for shift, notes in ((0.0, 0), (300.0, 1)):  # far from the origin all cosines are above 0.999
        result = Result()
        left, right = a + shift, b + shift
        found = evaluation.kfold_accuracy(left, right, same).mean
        _warn_of_grid(left, right, same, 10, "insightface", found, result)
        assert len(result.notes) == notes
    exact = evaluation.kfold_accuracy(left, right, same, rule="exact").mean
    assert f"accuracy is {100 * exact:.2f}" in result.notes[0]
    assert exact > 0.95 > 0.6 > found
