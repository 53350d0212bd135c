"""What a run will cost, from the recipe alone: bytes on the wire, memory, parameter counts. No image is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedvisage.build import build_parts, freeze, make_network, resolve
from fedvisage.config import Part, People, Recipe
from fedvisage.core.assembly import Assembly
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Component
from fedvisage.core.parcel import (
    BACKBONE,
    BUFFERS,
    CENTRES,
    IDENTITY_TOKENS,
    OPTIMISER,
    PRIVATE_EMBEDDINGS,
    PUBLIC_EMBEDDINGS,
    group_bytes,
)
from fedvisage.core.phase import VALIDATOR, Phase
from fedvisage.core.rule import rule_of
from fedvisage.core.weights import Weights
from fedvisage.costs import GPUS, UTILISATION, compute, crowds, exchanges, pooled, set_size, taking_part, watch_pass
from fedvisage.federation.stack import BLOCK_BYTES
from fedvisage.models import Backbone
from fedvisage.studies import Cell, Study, cells, load_study
from fedvisage.work import planned_as, server_cost

FLOAT = 4
PARCELS, IMAGES, NOTHING = "parcels", "images", "nothing"
"""What goes between parties and server: the phases' parcels, every image once where training is central, or nothing."""


def make_plan(recipe: Recipe, people: int | None = None, images: int | None = None) -> dict[str, Any]:
    """Bytes per phase, party and group, totals per round and run, memory of server and party, parameter counts.

    `people` and `images` are those of a face set that is neither looked at nor known by its name; with them, or where
    they are known, also the arithmetic of the whole run and an estimate of GPU hours.
    """
    recipe = resolve(recipe)
    size = set_size(recipe, people, images)
    parts = build_parts(recipe)
    model = make_network(recipe, torch.device("meta"))
    freeze(model, recipe)
    weights = Weights(model, recipe.federation.batchnorm)
    crowd = crowds(recipe, size)
    if parts.method.pools:
        crowd = pooled(crowd, parts.method)
    learners = [some for some in crowd if some.role != VALIDATOR]
    parties, classes = (
        sum(numbers) for numbers in zip(*((c.parties, c.parties * c.people) for c in learners), strict=True)
    )
    each = classes // parties
    sizes = _group_sizes(recipe, weights, model, each)
    assembly = Assembly(parts.components)
    phases = list(assembly.phases.values())
    share = recipe.federation.participation
    there = {phase.name: sum(taking_part(phase, role, crowd, share) for role in phase.roles) for phase in phases}
    wire = [row for phase in phases for row in _phase_rows(phase, sizes, parties, there[phase.name])]
    each_seen = rule_of(parts.components).needs == "individual"
    for row in wire if each_seen else ():
        row["how"] += ", each seen" if row["how"] in ("weighted_sum", "mean") else ""
    alone = parties == 1 and all(row["who"] == "parties" for row in wire)
    state = group_bytes(weights.backbone) + group_bytes(weights.buffers)
    individual = sum(row["bytes"] for row in wire if row["how"] == "individual" and row["group"] != "statistics")
    trains = [phase for phase in phases if phase.trains]
    kept = sum(sizes[group] for phase in trains for group in parts.weighting.individual & set(phase.up))
    individual += 2 * kept if any(phase.beside for phase in phases) else kept
    step = _server_step(parts.components, each * parties, model.metadata.embedding_size)
    like = planned_as(parts.method)
    participants = max(there[phase.name] for phase in trains)
    return {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        **({"planned_as": like} if like else {}),
        "parties": parties,
        "moves": IMAGES if parts.method.pools else NOTHING if alone else PARCELS,
        "participants": participants,
        "rounds": recipe.federation.rounds,
        "identities_per_party": each,
        "backbone": {
            "name": model.metadata.name,
            "parameters": model.metadata.parameters,
            "buffers": model.metadata.buffer_elements,
            "travelling": sum(tensor.numel() for tensor in weights.backbone.values()),
            "embedding_size": model.metadata.embedding_size,
            "image_size": model.metadata.image_size,
        },
        "wire": wire,
        "totals": _totals(wire, {phase.name: exchanges(phase, recipe.federation.rounds) for phase in phases}),
        "server_step": step,
        "compute": compute(recipe, parts.method, assembly, model, size, crowd) if size else {},
        "memory": {
            "server": 2 * state + individual * participants + 2 * BLOCK_BYTES * each_seen + int(step.get("memory", 0)),
            "party": 4 * state + activation_bytes(model, recipe.training.batch_size),
        },
    }


def _server_step(components: Sequence[Component], classes: int, size: int) -> dict[str, float]:
    """What the server computes on all class embeddings in a round: operations and bytes; empty where it does not."""
    costs = [cost for part in components if (cost := server_cost(part, classes, size))]
    if not costs:
        return {}
    return {"classes": classes} | {name: sum(cost[name] for cost in costs) for name in ("operations", "memory")}


def _public(recipe: Recipe) -> int:
    counts = _counts(recipe.partition.public)
    if None in counts:
        raise FedVisageError("set partition.public.count to plan for public people who are not looked at")
    return sum(count or 0 for count in counts)


def _counts(part: Part) -> list[int | None]:
    """How many people a part asks for; None where it takes all there are."""
    several = part if isinstance(part, tuple) else (part,)
    return [who.count if isinstance(who, People) else who for who in several]


def activation_bytes(model: Backbone, batch: int) -> int:
    """A rough estimate of what a training step keeps for the backward pass: every layer's output, once."""
    elements = 0

    def count(_: Any, __: Any, output: Any) -> None:
        nonlocal elements
        elements += output.numel()

    trained = [layer for stage in model.all_stages()[model.cut :] for part in stage.modules for layer in part.modules()]
    watch_pass(model, [layer for layer in trained if not list(layer.children())], count)
    return elements // 2 * batch * FLOAT


def _group_sizes(recipe: Recipe, weights: Weights, model: Backbone, people: int) -> dict[str, int]:
    width = model.metadata.embedding_size * FLOAT
    return {
        BACKBONE: group_bytes(weights.backbone),
        BUFFERS: group_bytes(weights.buffers),
        PRIVATE_EMBEDDINGS: people * width,
        IDENTITY_TOKENS: people * 8,
        PUBLIC_EMBEDDINGS: _public(recipe) * width,
        OPTIMISER: group_bytes(weights.backbone),
        CENTRES: len(recipe.centre.groups) * (model.metadata.embedding_size + 1) * 2 * FLOAT,
    }


def _phase_rows(phase: Phase, sizes: dict[str, int], parties: int, there: int) -> list[dict[str, Any]]:
    rows = []
    for direction, groups in (("down", phase.down), ("up", phase.up)):
        for group, how in groups.items():
            size = sizes[group]
            if group == PRIVATE_EMBEDDINGS and how in ("all", "weighted_sum"):
                size *= parties
            rows.append(_row(phase, there, direction, group, how, size))
    numbers = len(phase.reports) + len(phase.may_report)
    if numbers:
        rows.append(_row(phase, there, "up", "statistics", "individual", 8 * numbers))
    return rows


def _row(phase: Phase, there: int, direction: str, group: str, how: str, size: int) -> dict[str, Any]:
    times = {"phase": phase.name, "when": phase.when, "every": phase.every, "repeats": phase.repeats}
    who = {"who": "validators" if phase.roles == {VALIDATOR} else "parties", "participants": there}
    return times | who | {"direction": direction, "group": group, "how": how, "bytes": size}


def _totals(wire: list[dict[str, Any]], times: Mapping[str, int]) -> dict[str, int]:
    """Bytes per round to and from a party that takes part, and of the whole run with validators."""
    totals = {"down": 0, "up": 0, "run": 0}
    for row in wire:
        if row["when"] == "round" and row["who"] != "validators":
            totals[row["direction"]] += row["bytes"] * row["repeats"]
        totals["run"] += row["bytes"] * row["participants"] * times[row["phase"]]
    return totals


def plan_study(name: str, scale: str, folder: Path | None = None) -> dict[str, Any]:
    """What every row of a study costs under one seed, and all of them together.

    A row that scores another row's run, such as its start, has the name of that row as `run_of` and trains nothing.
    A row is `counted` for its runs without pre-training, which runs with the same start share.
    """
    study, found = load_study(name, folder), cells(name, scale, [1], folder)
    _check_known(name, scale, found, folder)
    different = _different(study, found)
    plans = {key: make_plan(cell.recipe) for key, cell in different.items()}
    rows = {}
    for row in study.rows:
        keys = list(dict.fromkeys(cell.key for cell in found if cell.row == row.name))
        own = [plans[key] for key in keys if different[key].row == row.name]
        run_of = "" if own else different[keys[0]].row
        rows[row.name] = plans[keys[0]] | {"run_of": run_of, "counted": _counted(own)}
    starts = {_start(cell.recipe): plans[key] for key, cell in different.items() if cell.recipe.pretrain.epochs}
    known = all(plan["compute"] for plan in plans.values())
    before = _added([plan["compute"]["pretraining"]["gpu_hours"] for plan in starts.values()]) if known else {}
    counted = _counted(list(plans.values()))
    return {
        "study": name,
        "scale": scale,
        "tries": list(study.tries[scale].rates) if scale in study.tries else [],
        "throughput": {"precision": "fp32", "peak_teraflops": dict(GPUS), "share": UTILISATION},
        "rows": rows,
        "pretraining": {"starts": len(starts), "gpu_hours": before},
        "total": counted | {"gpu_hours": _added([counted["gpu_hours"], before]) if known else {}},
    }


def _check_known(name: str, scale: str, found: Sequence[Cell], folder: Path | None) -> None:
    """Refuse scales whose face sets are found at a data root or drawn, and not looked at."""
    sources = [source for cell in found for source in _several(cell.recipe.faces.source)]
    if any(source.startswith("@") for source in sources):
        elsewhere = "" if load_study(name, folder).is_ours else "; plan it at paper scale"
        raise FedVisageError(
            f"study '{name}' is not planned at {scale} scale, whose face sets are not looked at: a cell takes minutes, "
            f"and `fedvisage study report {name} --scale {scale}` says what finished ones took{elsewhere}"
        )


def _several(source: str | Sequence[str]) -> Sequence[str]:
    return (source,) if isinstance(source, str) else source


def _different(study: Study, found: Sequence[Cell]) -> dict[str, Cell]:
    """The cells that are trained, by key: of several, one whose row scores the model that its run ends with."""
    of = {row.name: row.of for row in study.rows}
    different: dict[str, Cell] = {}
    for cell in sorted(found, key=lambda cell: bool(of[cell.row])):
        different.setdefault(cell.key, cell)
    return different


def _start(recipe: Recipe) -> str:
    """Everything that pre-training depends on."""
    share = recipe.partition
    people = (share.public, share.exclude, share.min_images, share.max_images)
    return repr((recipe.seed, recipe.faces, recipe.backbone, recipe.pretrain, recipe.federation.batchnorm, people))


def _counted(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Runs, their bytes, and their hours after pre-training; no hours where those of one are not known."""
    hours = dict[str, float]()
    if all(plan["compute"] for plan in plans):
        works = [plan["compute"] for plan in plans]
        hours = _added([{gpu: w["gpu_hours"][gpu] - w["pretraining"]["gpu_hours"][gpu] for gpu in GPUS} for w in works])
    moved = sum(plan["totals"]["run"] for plan in plans if plan["moves"] == PARCELS)
    return {"runs": len(plans), "bytes": moved, "gpu_hours": hours}


def _added(hours: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {gpu: sum(of[gpu] for of in hours) for gpu in GPUS}
