"""The page says what the files say: its numbers, its sentence, its sections, and nothing a file could smuggle in."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.report import write_report
from fedvisage.verdict import run_answer

SCORES, PARTIES = "Scores of every model", "Scores and size of each party."
CROSSED, MISSING = "Everything that crossed", "Answers that did not count"


def outcome(page):
    return re.search(r'class="outcome">([^<]*)<', page.source)[1]


def test_the_comparison_shows_the_numbers_of_evaluation_json(folder):
    header, *rows = folder.page().tables[SCORES]
    assert header == ["Model", "Accuracy", "TAR@0.1", "TAR@0.01"]
    models = folder.evaluation["models"]
    assert len(rows) == len(models)
    for row, score in zip(rows, models.values(), strict=True):
        assert row[1] == f"{100 * score['accuracy']:.2f}% ± {100 * score['accuracy_std']:.2f}"
        assert row[2:] == [f"{100 * score['tar'][far]:.2f}%" for far in ("0.1", "0.01")]


def test_the_summary_gives_the_differences_in_points(folder):
    # 88.12 - 81.91, 88.12 - 84.14 and 88.12 - 90.46
    assert outcome(folder.page()) == (
        "The federated model verifies 88.1% of unseen pairs correctly: 6.2 points above the start model, "
        "4.0 above a party alone and 2.3 below pooling all images."
    )


def test_the_summary_stays_true_when_the_federated_model_is_the_worst(folder):
    folder.evaluation["models"]["fedavg"]["accuracy"] = 0.75
    assert outcome(folder.page()) == (
        "The federated model verifies 75.0% of unseen pairs correctly: 6.9 points below the start model, "
        "9.1 below a party alone and 15.5 below pooling all images."
    )


def test_differences_that_would_print_as_nothing_are_called_level(folder):
    folder.evaluation["models"]["start"]["accuracy"] = 0.8814
    assert "correctly: level with the start model, 4.0 points above a party alone" in outcome(folder.page())


def test_without_accuracy_the_summary_speaks_of_the_strictest_rate_that_is_resolved(folder):
    for score in folder.evaluation["models"].values():
        for name in ("accuracy", "accuracy_std", "histogram"):
            score.pop(name, None)
        score["tar"]["0.0001"] = math.nan
    page = folder.page()
    # 34 - 21, 34 - 25 and 34 - 42
    assert outcome(page) == (
        "The federated model accepts 34.0% of genuine pairs at a false accept rate of 0.01: "
        "13.0 points above the start model, 9.0 above a party alone and 8.0 below pooling all images."
    )
    assert page.tables[SCORES][0] == ["Model", "TAR@0.1", "TAR@0.01", "TAR@0.0001"]
    assert "scores" not in page.ids


def test_a_run_of_parties_alone_is_not_called_federated(folder):
    folder.method = "alone"
    del folder.evaluation["models"]["fedavg"]
    assert outcome(folder.page()).startswith("A party training alone verifies 84.1% of unseen pairs correctly: ")


def test_the_standard_error_is_that_of_the_pairs(folder):
    # sqrt(0.8812 * 0.1188 / 3000) = 0.59 points
    assert "3,000 pairs of 20 people" in folder.page().text
    assert "a standard error of at least 0.6 points" in folder.page().text


def test_unresolved_rates_are_named_and_explained(folder):
    assert "esolvable" not in folder.page().text
    for score in folder.evaluation["models"].values():
        score["tar"]["1e-05"] = math.nan
    page = folder.page()
    assert [row[-1] for row in page.tables[SCORES]] == ["TAR@1e-05"] + ["not resolvable *"] * 4
    assert "12,160 impostor pairs are too few" in page.text
    assert "nan" not in page.text.lower()


def test_each_party_is_shown_with_its_size_and_scores(folder):
    header, *rows = folder.page().tables[PARTIES]
    assert header == ["Party", "Global model, rank 1", "Alone, test accuracy", "Identities", "Training images"]
    assert rows[:2] == [["anna", "50.0%", "83.1%", "3", "24"], ["bert", "75.0%", "85.2%", "3", "24"]]
    assert rows[2] == ["Mean", "62.5%", "84.1%", "3", "24"]


def test_what_crossed_is_summed_up(folder):
    page = folder.page()
    # two parties, two rounds of 1.5 MB and 16 bytes, and 16 bytes at joining: 3,000,048 bytes each
    assert "6.0 MB left 2 parties, at most 3.0 MB each: backbone and statistics." in page.text
    assert page.tables[CROSSED][1:] == [
        ["join", "to parties", "a bare request", "2", "0 B", "0 B"],
        ["join", "from parties", "statistics classes, samples", "2", "32 B", "16 B"],
        ["train", "to parties", page.tables[CROSSED][3][2], "4", "6.0 MB", "1.5 MB"],
        ["train", "from parties", page.tables[CROSSED][4][2], "4", "6.0 MB", "1.5 MB"],
        ["train", "from parties", "statistics loss, samples", "4", "64 B", "16 B"],
    ]
    never = page.source.partition("Never left a party")[2].partition("</dl>")[0]
    assert re.findall(r"<code>([^<]*)</code>", never) == [
        "buffers",
        "class_embeddings.private",
        "class_embeddings.public",
        "identity_tokens",
        "optimiser",
        "centres",
        "personal",
    ]
    assert "Every answer that was asked for came and counted." in page.text


def test_face_templates_that_left_are_pointed_out(folder):
    assert "left their party: they are face templates" not in folder.page().text
    templates = {"group": "class_embeddings.private", "bytes": 1000}
    folder.ledger.append(folder.ledger[-2] | templates)
    assert "left their party: they are face templates" in folder.page().text


def test_refused_and_missing_answers_are_counted_with_their_reasons(folder):
    folder.metrics[1]["absent"] = {"anna": "backbone holds NaN", "bert": "no answer"}
    folder.metrics[2] |= {"absent": {"anna": "backbone holds NaN"}, "parties": {"bert": {}}}
    for row in folder.ledger:
        if row.get("party") == "anna" and row["phase"] == "train" and row["direction"] == "up":
            row["refused"] = "backbone holds NaN"
    for group in ("backbone", "statistics"):  # a second answer in one parcel of two groups
        head = {"round": 1, "phase": "train", "attempt": 1, "party": "bert", "direction": "up", "names": ["loss"]}
        folder.ledger.append(head | {"group": group, "bytes": 8, "refused": "repeated answer"})
    (folder.save().path / "failures.log").write_text("round 1, train, anna: backbone holds NaN\n<traceback>\n")
    page = folder.page()
    assert page.tables[MISSING][1:] == [
        ["train", "backbone holds NaN", "2", "anna (0% counted)"],
        ["train", "no answer", "1", "bert (50% counted)"],
        ["train", "repeated answer", "1", ""],
    ]
    assert page.tables[CROSSED][0][-1] == "Refused"
    assert [row[-1] for row in page.tables[CROSSED][1:]] == ["0", "0", "0", "3", "3"]
    assert "round 1, train, anna: backbone holds NaN <traceback>" in page.text
    assert "Answers missing 3" in page.text


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}\x00"])
def test_text_from_files_is_only_ever_text(folder, hostile):
    folder.name = folder.description = folder.method = hostile.replace("\x00", "")
    folder.evaluation["models"][hostile] = folder.evaluation["models"].pop("fedavg")
    folder.environment = {hostile: hostile}
    folder.metrics[1]["absent"] = {hostile: hostile}
    folder.metrics[3]["parties"][hostile] = {"global_rank1": 0.5}
    folder.partition["parties"][hostile] = folder.partition["parties"]["anna"]
    folder.ledger.append(folder.ledger[-1] | {"phase": hostile, "group": hostile, "party": hostile, "names": [hostile]})
    (folder.save().path / "failures.log").write_text(hostile)
    page = folder.page()
    allowed = {"svg", "g", "title", "text", "line", "circle", "path"}
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count(hostile.replace("\x00", "")) > 5
    inside = page.source.partition("<svg")[2].partition("</svg>")[0]
    assert set(re.findall(r"<(\w+)", inside)) <= allowed


def test_the_page_loads_nothing(folder):
    page = folder.page()
    assert not re.search(r"https?://|//\w|@import|url\(", page.source)
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")


def test_links_and_labels_lead_somewhere(folder):
    page = folder.page()
    for _, attributes in page.tags:
        for target in (str(attributes.get("href", "")).removeprefix("#"), attributes.get("aria-labelledby")):
            assert not target or target in page.ids


def test_headings_descend_and_figures_and_tables_are_described(folder):
    page = folder.page()
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 5  # accuracies, rates, loss and two histograms
    assert all(drawing["role"] == "img" and len(str(drawing["aria-label"])) > 20 for drawing in drawings)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table") > 4


def test_the_colours_are_readable_in_light_and_in_dark(folder):
    style = folder.page().source.partition("<style>")[2].partition("</style>")[0]
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media (prefers-color")[:2])
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for ink in ("ink", "muted", "blue", "grey", "orange", "green", "violet", "rose", "olive"):
            for paper in ("card", "page") + (("tint",) if ink in ("ink", "muted") else ()):
                assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
        assert contrast(colours["warn"], colours["warn-tint"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2: (brighter + 0.05) / (darker + 0.05)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_without_test_identities_nothing_speaks_of_a_test(folder):
    folder.evaluation = {"models": {}, "test": {}, "seed": 7}
    folder.partition["test"] = {"identities": [], "images": []}
    page = folder.page()
    assert page.ids.isdisjoint({"comparison", "scores"})
    assert {"curves", "parties", "exchanges", "partition", "configuration"} <= page.ids
    assert outcome(page).startswith("At the parties the global model puts the right person first for 62.5%")
    assert [row[0] for row in page.tables["The partition"]] == ["Who", "Public", "2 parties"]


def test_without_evaluation_at_the_parties_their_ranks_are_left_out(folder):
    folder.metrics.pop()
    assert folder.page().tables[PARTIES][0] == ["Party", "Alone, test accuracy", "Identities", "Training images"]
    del folder.evaluation["models"]["alone"]
    page = folder.page()
    assert "parties" not in page.ids
    assert "Rank 1" not in page.text
    folder.evaluation = {"models": {}, "test": {}}
    assert outcome(folder.page()) == "2 rounds with 2 parties are done; no identities were kept apart for a test."


def test_without_comparisons_only_the_start_model_is_compared_with(folder):
    folder.compared = {}
    for name in ("alone", "central"):
        del folder.evaluation["models"][name]
    page = folder.page()
    assert outcome(page).endswith("correctly: 6.2 points above the start model.")
    assert "All images pooled" not in page.text
    assert "Faint dots" not in page.text


def test_accuracy_by_round_begins_with_the_start_model_and_leaves_out_models_of_single_parties(folder):
    assert "Test accuracy per round" not in folder.page().text
    tested = [{"round": 1, "phase": "test"}, {"round": 2, "phase": "test", "accuracy": 0.8812, "tar@0.01": 0.34}]
    folder.metrics += tested
    folder.compared["alone"] = [*folder.compared["alone"], *tested]  # the server's model, which never changes
    drawn = [str(a["aria-label"]) for tag, a in folder.page().tags if tag == "svg"]
    assert "Test accuracy per round. Federated: fedavg from 81.9% in round 0 to 88.1% in round 2." in drawn


def test_the_same_files_give_the_same_page(folder):
    assert folder.page().source == folder.page().source


def test_the_page_goes_where_the_run_is(folder):
    assert write_report(folder.save().path) == folder.path / "report.html"
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_the_page_says_which_round_validation_people_chose(folder):
    assert "Validation people chose" not in folder.page().source
    (folder.path / "chosen").mkdir()
    (folder.path / "chosen" / "round.json").write_text('{"round": 1, "by": "tar@0.1", "score": 0.4321}')
    assert "Validation people chose round 1 (tar@0.1 of 43.2%); its models are in" in folder.page().source
    (folder.path / "chosen" / "round.json").write_text('{"round": 2, "by": "tar@0.1", "score": 0.4321}')
    assert "Validation people chose round 2, the last (tar@0.1 of" in folder.page().source
    (folder.path / "chosen" / "round.json").write_text("{}")
    with pytest.raises(FedVisageError, match=r"round\.json is damaged: round: Field required"):
        folder.page()


def test_the_answer_of_a_run_leads_its_page(folder):
    models = folder.evaluation["models"]
    for name, raw, centred in (("start", 0.41, 0.47), ("fedavg", 0.52, 0.5), ("central", 0.63, 0.6)):
        still = " ".join(["1000", "-1000"] * 50) if name == "fedavg" else " ".join(["0"] * 100)
        models[name]["people"] = {
            "test": {"raw": raw, "centred": centred},
            "validation": {"raw": raw, "centred": centred},
            "influence": {"raw": still, "centred": still},
            "spread": {"impostor": 0.8361, "rank": 17.26},
        }
    answer = run_answer(models, "fedavg", True)
    folder.evaluation |= {"answer": answer, "warnings": ["Accuracy and TAR disagree."]}
    page = folder.page()
    assert outcome(page) == answer["sentence"]
    assert "Accuracy and TAR disagree." in page.text
    header, *rows = page.tables["Scores that decide"]
    assert header == ["Model", "Raw", "Centred", "Role", "Two people", "Effective rank"]
    assert [row[1:] for row in rows] == [
        ["41.0%", "47.0%", "control", "0.836", "17.3"],
        ["52.0%", "50.0%", "", "0.836", "17.3"],
        ["63.0%", "60.0%", "upper bound", "0.836", "17.3"],
    ]
    # over the centred start, which validation people chose: 52 - 47, 63 - 47 and 63 - 52 points
    assert "Gain over the control 5.0 points" in page.text
    assert "Gap from control to upper bound 16.0 points" in page.text
    assert "Shortfall from the upper bound 11.0 points" in page.text
