"""Plans: the arithmetic of a run by hand, and every study's cells at paper scale."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.cli.output import size
from fedvisage.cli.plan import readable
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS
from fedvisage.costs import GPUS, KNOWN, UTILISATION, operations
from fedvisage.models import create_backbone
from fedvisage.planning import make_plan, plan_study
from fedvisage.studies import cells, list_studies, load_study

PLANNED: set[str] = set()
"""Cells that another study has, too."""


def test_the_operations_of_sphere_20_are_those_of_its_layers() -> None:
    """Convolutions 3x3 over 56, 28, 14 and 7 pixels a side, and the last matrix, two operations per multiplication."""
    stages = ((3, 64, 56, 1), (64, 128, 28, 2), (128, 256, 14, 4), (256, 512, 7, 1))
    by_hand = sum(9 * side**2 * (into * out + 2 * blocks * out * out) for into, out, side, blocks in stages)
    by_hand += 512 * 7 * 7 * 512
    model = create_backbone("sphere-20", image_size=112, device=torch.device("meta"))
    assert operations(model) == 2 * by_hand


def test_ir_50s_operations_are_about_the_published_ones() -> None:
    """InsightFace gives 6.3 GFLOPs (multiply-adds) for R50 at 112 pixels."""
    model = create_backbone("ir-50", image_size=112, device=torch.device("meta"))
    assert operations(model) / 2e9 == pytest.approx(6.3, rel=0.03)


def test_hours_are_images_times_passes_over_what_a_gpu_does() -> None:
    changes = {"faces.identities": 110, "faces.images_per_identity": 10, "partition.public": 10, "partition.test": 20}
    changes |= {"partition.parties": 8, "partition.held_out": 0.2, "pretrain.epochs": 3, "federation.rounds": 5}
    changes |= {"partition.identities_per_party": 10}
    recipe = load_recipe("smoke", {**changes, "training.epochs": 2, "compare": [], "partition.validation": 0})
    work = make_plan(recipe)["compute"]
    # 80 people over 8 parties of 10, 8 images each to train on: 80 images, twice per round; 100 public images 3 times.
    assert work["images_per_party"] == 80
    assert work["trained_images"] == 5 * 8 * 80 * 2 + 100 * 3
    assert work["operations"] == work["trained_images"] * 3 * work["operations_per_image"]
    for name, peak in GPUS.items():
        assert work["gpu_hours"][name] == pytest.approx(work["operations"] / (peak * 1e12 * UTILISATION) / 3600)


def test_hard_negatives_and_the_contrastive_term_are_forward_passes() -> None:
    table = {"faces": {"identities": 100, "images_per_identity": 10}, "partition": {"public": 20, "parties": 8}}
    table |= {"method": {"name": "fedfr"}, "federation": {"rounds": 3}, "training": {"epochs": 2}}
    work = make_plan(Recipe.model_validate(table))["compute"]
    own = work["images_per_party"]
    assert own == 80
    assert work["forward_images"] == 3 * 8 * (own + 200 + 2 * own * 2)


SOURCE, TARGET = 4_434_177, 324_376
"""Images of the two domains of Zhuang et al., Table 1."""
ADAPTED = {
    "stage-1": (20 * SOURCE, SOURCE, 1),
    "target-only": (20 * TARGET, TARGET, 1),
    "merge": (20 * (SOURCE + TARGET), SOURCE + TARGET, 1),
    "fine-tune": (20 * TARGET, SOURCE + 3 * TARGET, 1),
    "fedfr-2": (20 * (SOURCE + TARGET), SOURCE + 3 * TARGET, 2),
    "fedfr-5": (20 * (SOURCE + TARGET), SOURCE + 3 * TARGET, 5),
}
"""Rows of domain adaptation's Table 2: images of 20 rounds; those embedded once to start class embeddings at means, and
by targets with their mirrors to be clustered; and parties in a round."""


@pytest.mark.parametrize("row", ADAPTED)
def test_only_those_count_who_take_part(row: str) -> None:
    (cell,) = (cell for cell in cells("feduda/table-2", "paper", [1]) if cell.row == row)
    plan = make_plan(cell.recipe)
    trained, forward, parties = ADAPTED[row]
    assert (plan["compute"]["trained_images"], plan["compute"]["forward_images"]) == (trained, forward)
    assert plan["participants"] == parties
    model = plan["totals"]["down"]
    joined = len([row for row in plan["wire"] if row["phase"] == "join" and row["direction"] == "down"])
    assert joined == 2, "backbone and buffers"
    targets = {"fine-tune": 1, "fedfr-2": 1, "fedfr-5": 4}.get(row, 0)
    everybody = 1 + targets if targets else 1
    numbers = 20 * parties * 16 + everybody * 16 + targets * 16
    assert plan["totals"]["run"] == (20 * parties * 2 + everybody + targets) * model + numbers
    hours = (3 * trained + forward) * plan["compute"]["operations_per_image"] / (15.7e12 * 0.35) / 3600
    assert plan["compute"]["gpu_hours"]["V100"] == pytest.approx(hours)


def test_a_part_of_every_role_takes_part_and_a_group_counts_its_own_images() -> None:
    """Sources of 10 people and targets of 4, 10 images a person, a fifth held out where there are labels."""
    groups = {"s": {"role": "source", "parties": 1, "identities_per_party": 10}}
    groups |= {"t": {"role": "target", "parties": 5, "identities_per_party": 4}}
    table = {"faces": {"identities": 40, "images_per_identity": 10}, "partition": {"groups": groups}}
    table |= {"method": {"name": "feduda", "pretrain_rounds": 7, "relabel_every": 2}}
    table |= {"federation": {"rounds": 4, "participation": 0.4}, "training": {"epochs": 3}}
    plan = make_plan(Recipe.model_validate(table))
    work = plan["compute"]
    assert work["trained_images"] == 3 * (7 * 80 + 4 * (80 + 2 * 40))
    # each target with mirrors: at the start, and in rounds 2 and 4
    assert work["forward_images"] == (1 + 2) * 5 * 2 * 40
    assert plan["participants"] == 3


def test_central_trains_on_the_public_people_where_asked_to() -> None:
    table = {"faces": {"identities": 30, "images_per_identity": 10}, "partition": {"public": 10, "parties": 2}}
    table["partition"] |= {"held_out": 0.5}
    table |= {"federation": {"rounds": 3}, "method": {"name": "central"}}
    assert make_plan(Recipe.model_validate(table))["compute"]["trained_images"] == 3 * 100
    table["method"] = {"name": "central", "public": "all"}
    assert make_plan(Recipe.model_validate(table))["compute"]["trained_images"] == 3 * (100 + 100)


def test_validators_run_the_images_of_their_pairs_through_every_candidate() -> None:
    """One has 12 images and two have 6; five pairs show ten. Searches after rounds 2, 4 and 5, a map after 3 and 5."""
    table = {"faces": {"identities": 30, "images_per_identity": 2}}
    judges = {"large": (1, 6), "small": (2, 3)}
    groups = {name: {"role": "validator", "parties": n, "identities_per_party": p} for name, (n, p) in judges.items()}
    table["partition"] = {"groups": groups | {"sites": {"parties": 3, "identities_per_party": 2}}}
    table["federation"] = {"rounds": 5}
    search = {"name": "fv", "pairs": 5, "candidates": 4, "searches": 2, "every": 2, "map_every": 3, "map_steps": 1}
    work = make_plan(Recipe.model_validate(table | {"weighting": search}))["compute"]
    assert work["forward_images"] == (10 + 2 * 6) * (3 * 4 * 2 + 2 * 3)
    assert work["operations"] == work["operations_per_image"] * (3 * work["trained_images"] + work["forward_images"])
    assert make_plan(Recipe.model_validate(table))["compute"]["forward_images"] == 0


def test_validators_of_the_papers_search_embed_both_images_of_their_pairs() -> None:
    """Five sets of nobody knows how many images: 2 of each of 600 pairs, 3 candidates in each of 3,328 rounds."""
    cell = next(cell for cell in cells("pfm-fv/figure-4a", "paper", [1]) if cell.row == "pfm-fv")
    assert make_plan(cell.recipe)["compute"]["forward_images"] == 5 * 2 * 600 * 3 * 3328


@pytest.mark.parametrize("name", [name for name in list_studies() if "paper" in load_study(name).scales])
def test_every_study_is_planned_at_paper_scale(name: str) -> None:
    different = {json.dumps(cell.settings | {"training": ""}): cell for cell in cells(name, "paper", [1])}
    new = {said: cell for said, cell in different.items() if said not in PLANNED}
    PLANNED.update(new)
    for cell in new.values():  # rows that differ in their loss cost the same, and studies share cells
        plan = make_plan(cell.recipe)
        assert plan["totals"]["run"] > 0
        assert plan["memory"]["server"] > 0
        assert plan["memory"]["party"] > plan["backbone"]["parameters"] * 4
        assert 0 < plan["compute"]["gpu_hours"]["V100"] < 1e5


def test_a_set_that_is_not_known_needs_its_size() -> None:
    recipe = Recipe.model_validate({"faces": {"source": "my-faces"}, "partition": {"parties": 4}})
    with pytest.raises(FedVisageError, match=r"partition\.identities_per_party"):
        make_plan(recipe)
    assert make_plan(recipe, people=1000, images=20_000)["compute"]["data"]["source"] == "as given"
    done = CliRunner().invoke(app, ["plan", "demo", "--people", "10"])
    assert isinstance(done.exception, FedVisageError)


V100 = 15.7e12 * 0.35 * 3600
"""Operations in an hour."""
STUDY = """
title = "Two methods and their start"
source = "nobody"

[[columns]]
name = "accuracy"
by.smoke.what = "synthetic faces"

[scales.smoke]
faces = { identities = 50, images_per_identity = 10 }
partition = { public = 10, parties = 4, identities_per_party = 10, held_out = 0.0 }
pretrain = { epochs = 3 }
training = { epochs = 1 }
federation = { rounds = 5 }

[[rows]]
name = "start"
label = "Start"
of = "start"

[[rows]]
name = "fedavg"
label = "FedAvg"

[[rows]]
name = "fedprox"
label = "FedProx"
recipe.method.name = "fedprox"
"""


def test_a_studys_total_counts_every_run_and_every_start_once(tmp_path: Path) -> None:
    """Two runs of 5 rounds over 4 parties with 100 images, after 3 epochs over 100 public images that both share."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table.toml").write_text(STUDY)
    plan = plan_study("mine/table", "smoke", tmp_path)
    rows, total = plan["rows"], plan["total"]
    assert {name: (row["run_of"], row["counted"]["runs"]) for name, row in rows.items()} == {
        "start": ("fedavg", 0), "fedavg": ("", 1), "fedprox": ("", 1)
    }  # fmt: skip
    assert rows["start"]["counted"]["bytes"] == 0
    assert total["runs"] == 2
    assert total["bytes"] == rows["fedavg"]["totals"]["run"] + rows["fedprox"]["totals"]["run"]
    step = 3 * rows["fedavg"]["compute"]["operations_per_image"]
    assert rows["fedprox"]["counted"]["gpu_hours"]["V100"] == pytest.approx(step * 5 * 4 * 100 / V100)
    assert plan["pretraining"]["starts"] == 1
    assert plan["pretraining"]["gpu_hours"]["V100"] == pytest.approx(step * 3 * 100 / V100)
    assert total["gpu_hours"]["V100"] == pytest.approx(step * (2 * 5 * 4 * 100 + 3 * 100) / V100)
    assert plan["throughput"] == {"precision": "fp32", "peak_teraflops": GPUS, "share": 0.35}


def test_the_total_of_fedgcs_table_5_is_twelve_runs_of_a_hundred_epochs() -> None:
    """36 parties with 293 of 10,575 people each, of 494,414 images."""
    images = 100 * 36 * 293 * 494_414 / 10_575
    once = operations(create_backbone("ir-34", image_size=112, device=torch.device("meta")))
    plan = plan_study("fedgc/table-5", "paper")
    assert plan["total"]["runs"] == 12
    assert plan["total"]["gpu_hours"]["V100"] == pytest.approx(12 * 3 * images * once / V100)


def test_a_row_that_is_run_on_both_halves_counts_two_runs() -> None:
    plan = plan_study("pfm-fv/figure-3", "paper")
    (row,) = plan["rows"].values()
    assert row["counted"]["runs"] == plan["total"]["runs"] == 2
    assert row["counted"]["bytes"] == 2 * row["totals"]["run"]


def test_hours_of_a_set_that_nobody_knows_are_left_open(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    unknown = STUDY.replace("identities = 50, images_per_identity = 10", 'source = "my-faces"')
    (tmp_path / "mine" / "table.toml").write_text(unknown)
    total = plan_study("mine/table", "smoke", tmp_path)["total"]
    assert total["gpu_hours"] == {}
    assert total["bytes"] > 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(6146.3, "6,150"), (999.6, "1,000"), (66.71, "66.7"), (8.987, "8.99"), (0.1234, "0.123"), (0, "0")],
)
def test_hours_are_shown_in_three_digits(value: float, shown: str) -> None:
    assert readable(value) == shown
    assert readable(1e-7) == "<0.001"
    assert size(1687.7e12) == "1,687.7 TB"


def test_rows_that_pool_or_stand_alone_exchange_nothing_and_do_not_count() -> None:
    plan = plan_study("pfm-fv/table-1", "paper")
    moves = [plan["rows"][row.name]["moves"] for row in load_study("pfm-fv/table-1").rows]
    assert moves == 3 * ["nothing", "nothing", "nothing", "images", "parcels", "parcels"]
    federated = [of["totals"]["run"] for of in plan["rows"].values() if of["moves"] == "parcels"]
    assert plan["total"]["bytes"] == sum(federated)
    lines = CliRunner().invoke(app, ["study", "plan", "fedgc/table-5"]).output.splitlines()
    central = next(line for line in lines if line.startswith("softmax, central"))
    assert central.split()[2:5] == ["100", "-", "-"]
    assert "every image" in central


def test_a_scale_whose_sets_are_not_looked_at_is_refused_in_words() -> None:
    with pytest.raises(FedVisageError, match=r"'fedgc/table-5' is not planned at laptop scale.*: a cell"):
        plan_study("fedgc/table-5", "laptop")


def test_the_command_plans_a_study() -> None:
    done = CliRunner().invoke(app, ["study", "plan", "fedface/table-1"])
    assert done.exit_code == 0, done.output
    assert not re.search(r"[0-9]e[+-]?[0-9]", done.output), "no exponents"
    plan = json.loads(CliRunner().invoke(app, ["study", "plan", "fedface/table-1", "--json"]).output)
    start, total = (next(line for line in done.output.splitlines() if line.startswith(w)) for w in ("Base", "total"))
    assert re.search(r" -  -  +-  shares the run of FedFace$", start.rstrip())
    assert plan["rows"]["pre-trained"]["run_of"] == "fedface"
    shown = [str(plan["total"]["runs"]), *size(plan["total"]["bytes"]).split()]
    assert total.split() == ["total", *shown, readable(plan["total"]["gpu_hours"]["V100"])]
    assert "a V100 at 5.5 teraflop/s, 35% of the 15.7 of its data sheet (fp32)" in done.output
    casia = json.loads(CliRunner().invoke(app, ["study", "plan", "fedgc/table-4", "--json"]).output)["rows"]["fedgc"]
    assert casia["compute"]["data"]["people"] == KNOWN["casia-webface"].people
    assert casia["identities_per_party"] == 10_575 // 36


def test_a_method_from_elsewhere_is_planned_as_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(METHODS["fedfr"]):  # type: ignore[misc]
        summary: ClassVar[str] = "of a user's module"

    METHODS.register("own")(Own)
    monkeypatch.setitem(METHODS._items, "own", METHODS._items.pop("own"))
    theirs, ours = (make_plan(load_recipe("smoke", {"method.name": name})) for name in ("own", "fedfr"))
    assert theirs.pop("planned_as") == "fedfr"
    assert "planned_as" not in ours
    assert theirs | {"method": "fedfr"} == ours
