"""Damaged and missing files give one clear line; very large federations stay quick and small."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from fedvisage.core.errors import FedVisageError
from fedvisage.report import write_report
from fedvisage.report.crossings import sum_up

FILES = ["recipe.toml", "environment.json", "partition.json", "metrics.jsonl", "ledger.jsonl", "evaluation.json"]
CONTENTS = [b'{"half": ', b"\xff\xfe\x00", b"[1, 2]\n", b"null\n", b"[" * 99999]
DAMAGED = [(name, content) for name in FILES for content in CONTENTS]
DAMAGED += [(name, b'{"x": 1}\n') for name in FILES if name != "environment.json"]  # which may be any table


def error_of(folder):
    with pytest.raises(FedVisageError) as caught:
        write_report(folder.path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FedVisageError) as caught:
        write_report(tmp_path)
    assert str(caught.value) == f"no run in {tmp_path}: recipe.toml is missing"
    with pytest.raises(FedVisageError, match="no run in"):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES[1:])
def test_an_unfinished_run_is_named(folder, name):
    (folder.save().path / name).unlink()
    assert error_of(folder) == f"the run in {folder.path} is not finished: {name} is missing; go on with it by --resume"


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_damaged_file_is_named_and_the_old_page_kept(folder, name, content):
    (folder.save().path / "report.html").write_text("the old page")
    (folder.path / name).write_bytes(content)
    assert f"{folder.path / name} is damaged: " in error_of(folder)
    assert (folder.path / "report.html").read_text() == "the old page"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"models": {"fedavg": {"accuracy": "high"}}}, "models.fedavg.accuracy"),
        ({"models": {"fedavg": {"histogram": {"genuine": [1], "impostor": []}}}}, "models.fedavg.histogram"),
        ({"models": [1]}, "models"),
        ({"test": {"pairs": "many"}}, "test.pairs"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(folder, change, place):
    folder.evaluation |= change
    folder.save()
    assert f"evaluation.json is damaged: {place}: " in error_of(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
def test_a_damaged_line_is_numbered(folder, name):
    path = folder.save().path / name
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:20]
    path.write_text("\n".join(lines))
    assert f"{name} is damaged: line 3: " in error_of(folder)


def test_a_damaged_comparison_is_named_and_a_missing_one_left_out(folder):
    path = folder.save().path / "compare" / "alone" / "metrics.jsonl"
    path.write_text("{")
    assert f"{path} is damaged: line 1: " in error_of(folder)
    path.unlink()
    assert "Training loss per round" in folder.page().text


def test_bytes_per_party_and_round_count_a_repeated_exchange_together(folder):
    folder.ledger = [folder.crossed(round, "train", "anna", "up", "backbone", 100) for round in (1, 1, 2, 2)]
    crossing = sum_up(folder.save().path / "ledger.jsonl", {}).rows[("train", "up", "backbone")]
    assert (crossing.parcels, crossing.bytes, crossing.per_visit) == (4, 400, 200)


def test_with_ten_thousand_parties_the_page_and_its_table_stay_short(folder):
    names = [f"party-{number:04d}" for number in range(10_000)]
    share = {"role": "trainer", "identities": ["p"], "train": [1, 2, 3], "held_out": [4]}
    folder.partition["parties"] = dict.fromkeys(names, share)
    folder.metrics[0]["parties"] = {party: {"samples": 3, "classes": 1} for party in names}
    folder.metrics[3]["parties"] = {party: {"global_rank1": place / 10_000} for place, party in enumerate(names)}
    folder.ledger = [
        folder.crossed(round, "train", party, way, "backbone", 1000)
        for round in (1, 2)
        for way in ("down", "up")
        for party in names
    ]
    folder.save()
    page = folder.page()
    assert len(page.source) < 100_000
    header, *rows = page.tables["Scores and size of each party."]
    assert [row[0] for row in rows[:50]] == names[:50]  # the lowest
    assert [row[0] for row in rows[50:]] == ["Mean", "Lowest", "Median", "Highest"]
    assert rows[53][header.index("Global model, rank 1")] == "100.0%"
    assert "40.0 MB" not in page.text
    assert "20.0 MB left 10,000 parties, at most 2.0 kB each" in page.text


def test_memory_does_not_grow_with_the_rounds(folder, tmp_path):
    def peak(rounds: int) -> int:
        path = tmp_path / "ledger.jsonl"
        with path.open("w") as file:
            for round in range(rounds):
                for party in range(200):
                    row = folder.crossed(round, "train", f"party-{party}", "up", "backbone", 1)
                    file.write(json.dumps(row) + "\n")
        tracemalloc.start()
        assert sum_up(path, {}).rows[("train", "up", "backbone")].parcels == 200 * rounds
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(40) < 1.5 * peak(2)
