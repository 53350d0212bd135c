"""What a run will cost, from the recipe alone: bytes on the wire, memory, parameter counts. No image is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    IDENTITY_TOKENS,
    OPTIMISER,
    PRIVATE_EMBEDDINGS,
    PUBLIC_EMBEDDINGS,
    group_bytes,
)
from fedvisage.core.phase import VALIDATOR, Phase
from fedvisage.core.weights import Weights
from fedvisage.costs import compute, crowds, exchanges, pooled, set_size, taking_part, watch_pass
from fedvisage.models import Backbone

FLOAT = 4


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
    state = group_bytes(weights.backbone) + group_bytes(weights.buffers)
    individual = sum(row["bytes"] for row in wire if row["how"] == "individual" and row["group"] != "statistics")
    trains = [phase for phase in phases if phase.trains]
    kept = sum(sizes[group] for phase in trains for group in parts.weighting.individual & set(phase.up))
    individual += 2 * kept if any(phase.beside for phase in phases) else kept
    step = _server_step(parts.components, each * parties, model.metadata.embedding_size)
    participants = max(there[phase.name] for phase in trains)
    return {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        "parties": parties,
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
            "server": 2 * state + individual * participants + int(step.get("memory", 0)),
            "party": 4 * state + activation_bytes(model, recipe.training.batch_size),
        },
    }


def _server_step(components: Sequence[Component], classes: int, size: int) -> dict[str, float]:
    """What the server computes on all class embeddings in a round: operations and bytes; empty where it does not."""
    costs = [cost for part in components if (cost := part.server_cost(classes, size))]
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
