"""Plans: the arithmetic of a run by hand, and every study's cells at paper scale."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from fedvisage.cli.main import app
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.costs import GPUS, KNOWN, UTILISATION, operations
from fedvisage.models import create_backbone
from fedvisage.planning import make_plan
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


def test_the_command_plans_a_study() -> None:
    done = CliRunner().invoke(app, ["study", "plan", "fedgc/table-4"])
    assert done.exit_code == 0, done.output
    assert "V100 hours" in done.output
    plans = json.loads(CliRunner().invoke(app, ["study", "plan", "fedgc/table-4", "--json"]).output)
    assert plans["fedgc"]["compute"]["data"]["people"] == KNOWN["casia-webface"].people
    assert plans["fedgc"]["identities_per_party"] == 10_575 // 36
