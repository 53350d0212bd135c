"""What a run will cost, from the recipe alone: bytes on the wire, memory, parameter counts. No image is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from fedvisage.costs import compute, set_size, watch_pass, with_people
from fedvisage.models import Backbone

FLOAT = 4


def make_plan(recipe: Recipe, people: int | None = None, images: int | None = None) -> dict[str, Any]:
    """Bytes per phase, party and group, totals per round and run, memory of server and party, parameter counts.

    `people` and `images` are those of a face set that is neither looked at nor known by its name; with them, or where
    they are known, also the arithmetic of the whole run and an estimate of GPU hours.
    """
    recipe = resolve(recipe)
    size = set_size(recipe, people, images)
    recipe = with_people(recipe, size)
    parts = build_parts(recipe)
    model = make_network(recipe, torch.device("meta"))
    freeze(model, recipe)
    weights = Weights(model, recipe.federation.batchnorm)
    each = identities_per_party(recipe)
    if parts.method.pools:
        each *= recipe.partition.parties
        pooled = {"parties": 1, "identities_per_party": each, "groups": {}}
        recipe = recipe.model_copy(update={"partition": recipe.partition.model_copy(update=pooled)})
    sizes = _group_sizes(recipe, weights, model, each)
    wire = []
    phases = Assembly(parts.components).phases.values()
    for phase in phases:
        wire += _phase_rows(phase, sizes, each, recipe.partition.parties)
    totals = _totals(wire, recipe)
    state = group_bytes(weights.backbone) + group_bytes(weights.buffers)
    individual = sum(row["bytes"] for row in wire if row["how"] == "individual" and row["group"] != "statistics")
    trains = [phase for phase in phases if phase.trains]
    kept = sum(sizes[group] for phase in trains for group in parts.weighting.individual & set(phase.up))
    individual += 2 * kept if any(phase.beside for phase in phases) else kept
    step = _server_step(parts.components, each * recipe.partition.parties, model.metadata.embedding_size)
    return {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        "parties": recipe.partition.parties,
        "participants": participants(recipe),
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
        "totals": totals,
        "server_step": step,
        "compute": compute(recipe, parts, model, size, participants(recipe)) if size else {},
        "memory": {
            "server": 2 * state + individual * participants(recipe) + int(step.get("memory", 0)),
            "party": 4 * state + activation_bytes(model, recipe.training.batch_size),
        },
    }


def _server_step(components: Sequence[Component], classes: int, size: int) -> dict[str, float]:
    """What the server computes on all class embeddings in a round: operations and bytes; empty where it does not."""
    costs = [cost for part in components if (cost := part.server_cost(classes, size))]
    if not costs:
        return {}
    return {"classes": classes} | {name: sum(cost[name] for cost in costs) for name in ("operations", "memory")}


def identities_per_party(recipe: Recipe) -> int:
    """People per party; the mean where sizes differ. For a face folder of unknown size it must be in the recipe."""
    share = recipe.partition
    if share.identities_per_party:
        return share.identities_per_party
    groups = [group for group in share.groups.values() if group.role != VALIDATOR]
    said = [group.identities_per_party * group.parties for group in groups if group.identities_per_party]
    if groups and len(said) == len(groups):
        return sum(said) // share.parties
    parts = [share.public, share.test, share.validation, share.validators * share.identities_per_validator]
    counts = [count for part in parts for count in _counts(part)]
    if recipe.faces.source != "synthetic" or None in counts:
        raise FedVisageError("set partition.identities_per_party to plan for a face folder that is not looked at")
    left = recipe.faces.identities - sum(count or 0 for count in counts)
    if share.parties < 1 or left < share.parties:
        raise FedVisageError(f"{recipe.faces.identities} identities are too few for this partition")
    return left // share.parties


def _public(recipe: Recipe) -> int:
    counts = _counts(recipe.partition.public)
    if None in counts:
        raise FedVisageError("set partition.public.count to plan for public people who are not looked at")
    return sum(count or 0 for count in counts)


def _counts(part: Part) -> list[int | None]:
    """How many people a part asks for; None where it takes all there are."""
    several = part if isinstance(part, tuple) else (part,)
    return [who.count if isinstance(who, People) else who for who in several]


def participants(recipe: Recipe) -> int:
    """Parties in a round."""
    return max(1, math.ceil(recipe.federation.participation * recipe.partition.parties - 1e-9))


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


def _phase_rows(phase: Phase, sizes: dict[str, int], people: int, parties: int) -> list[dict[str, Any]]:
    rows = []
    for direction, groups in (("down", phase.down), ("up", phase.up)):
        for group, how in groups.items():
            size = sizes[group]
            if group == PRIVATE_EMBEDDINGS and how in ("all", "weighted_sum"):
                size *= parties
            rows.append(_row(phase, direction, group, how, size))
    numbers = len(phase.reports) + len(phase.may_report)
    if numbers:
        rows.append(_row(phase, "up", "statistics", "individual", 8 * numbers))
    return rows


def _row(phase: Phase, direction: str, group: str, how: str, size: int) -> dict[str, Any]:
    times = {"phase": phase.name, "when": phase.when, "every": phase.every, "repeats": phase.repeats}
    times["who"] = "validators" if phase.roles == {VALIDATOR} else "parties"
    return times | {"direction": direction, "group": group, "how": how, "bytes": size}


def _totals(wire: list[dict[str, Any]], recipe: Recipe) -> dict[str, int]:
    """Bytes per round to and from a party that takes part, and of the whole run with validators."""
    totals = {"down": 0, "up": 0, "run": 0}
    share, some, rounds = recipe.partition, participants(recipe), recipe.federation.rounds
    judges = share.validators + sum(group.parties for group in share.groups.values() if group.role == VALIDATOR)
    for row in wire:
        size, validators = row["bytes"] * row["repeats"], row["who"] == "validators"
        if row["when"] != "round":
            totals["run"] += size * (judges if validators else share.parties)
            continue
        if not validators:
            totals[row["direction"]] += size
        totals["run"] += size * (judges if validators else some) * math.ceil(rounds / row["every"])
    return totals
