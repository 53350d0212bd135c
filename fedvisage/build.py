"""From a recipe to the objects a run is made of."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fedvisage import methods as _methods
from fedvisage.config import Federation, Recipe, validated
from fedvisage.core.codec import State, load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import layout
from fedvisage.core.method import METHODS, REGULARISERS, WEIGHTINGS, Component, Method, PartyFaces, Weighting
from fedvisage.core.parcel import BACKBONE, BUFFERS, Tensors
from fedvisage.core.phase import VALIDATOR
from fedvisage.core.plugins import load_plugins
from fedvisage.core.randomness import Streams
from fedvisage.core.registry import Registry
from fedvisage.core.rule import RULES, Mean, rule_of
from fedvisage.core.weights import COUNTER, Weights
from fedvisage.faces.faceset import FaceSet
from fedvisage.faces.opening import open_source
from fedvisage.faces.partition import Partition, party_faces
from fedvisage.federation import Host, InProcess, MakeHost, StateStore, Transport, Workers
from fedvisage.methods.fedavg import FedAvg
from fedvisage.models import Backbone, create_backbone, open_model
from fedvisage.plugins import check_main, of_main, with_plugins
from fedvisage.training import Group, choose_device, loss_of, make_optimiser, rates_of, with_features

START = "start.safetensors"
"""Where a run keeps the model it starts from."""
CACHE = ".cache"
"""Where a run keeps its rendered faces, and what frozen stages made of its faces, until it is finished."""
FROZEN = "frozen"
"""The tensors of the start model that are neither trained nor sent."""


@dataclass(frozen=True)
class Parts:
    """What takes part in a federation."""

    method: Method
    weighting: Weighting
    others: tuple[Component, ...]

    @property
    def components(self) -> tuple[Component, ...]:
        """All of them, in the order their phases run."""
        return (self.method, self.weighting, *self.others)


def build_parts(recipe: Recipe, compared: str = "") -> Parts:
    """The recipe's method with its weighting and other components; or a method it is compared with, at its defaults."""
    load_plugins(recipe.plugins)
    method = _make(METHODS, recipe, "method", {"name": compared} if compared else recipe.method)
    own, settings = not compared, recipe.federation
    weighting = _make(WEIGHTINGS, recipe, "weighting", (own and recipe.weighting) or {"name": method.default_weighting})
    others: list[Component] = []
    rule = _make(RULES, recipe, "aggregation", recipe.aggregation)
    if type(rule) is not Mean:
        others.append(rule)
    regulariser = (own and recipe.regulariser) or {"name": method.default_regulariser or NONE}
    if regulariser["name"] != NONE:
        if not method.keeps_class_embeddings:
            raise FedVisageError(
                f"recipe '{recipe.name}': regulariser '{regulariser['name']}' acts on class embeddings that parties "
                f"keep, and {recipe.method['name']} as set here has none: choose another method, or regulariser 'none'"
            )
        others.append(_make(REGULARISERS, recipe, "regulariser", regulariser))
    if settings.batchnorm == "recalibrate" and not method.has_no_global_model:
        others.append(_methods.Recalibrate())
    if recipe.centre.groups and not method.has_no_global_model:
        known = recipe.partition.groups
        domains = {name: known[name].domain or "" if name in known else name for name in recipe.centre.groups}
        others.append(_methods.FitCentres(groups=domains))
    if settings.evaluate_every:
        others.append(_methods.EvaluateAtParties(method=method, every=settings.evaluate_every))
    return Parts(method, weighting, tuple(others))


def default_components(method: Method) -> tuple[Component, ...]:
    """A method with the regulariser that belongs to it."""
    own = method.default_regulariser
    return (method, REGULARISERS[own]()) if own else (method,)


Part = TypeVar("Part", bound=Component)


def _make(registry: Registry[type[Part]], recipe: Recipe, section: str, table: Mapping[str, Any]) -> Part:
    """The component that a table of the recipe names, with its options and what it takes from other sections."""
    options = dict(table)
    kind = registry[str(options.pop("name"))]
    for taken, home in _OFFERED.items():
        if taken in options:
            raise FedVisageError(f"recipe '{recipe.name}': {section}.{taken} belongs in [{home}]")
    offered = {"training": recipe.training, "rounds": recipe.federation.rounds}
    given = {name: value for name, value in offered.items() if name in kind.model_fields}
    return validated(kind, options | given, f"recipe '{recipe.name}', [{section}]")


NONE = "none"
_OFFERED = {"training": "training", "rounds": "federation"}
"""Fields that components take from other sections of the recipe, and which."""


def resolve(recipe: Recipe) -> Recipe:
    """The recipe with its components' defaults spelt out, checked as far as it can be without looking at any image."""
    parts = build_parts(recipe)
    _check_local_work(recipe, parts)
    _check_batchnorm(recipe, parts)
    _check_aggregation(recipe)
    _check_centres(recipe, parts)
    _check_frozen_stages(recipe)
    _check_weighting(recipe, parts)
    _check_together(recipe, parts)
    regulariser = next((part for part in parts.others if type(part) in REGULARISERS.values()), None)
    tables = {
        "method": _table(recipe.method["name"], parts.method),
        "weighting": _table(recipe.weighting.get("name", parts.method.default_weighting), parts.weighting),
        "aggregation": _table(recipe.aggregation["name"], rule_of(parts.others)),
        "regulariser": _table(recipe.regulariser.get("name", parts.method.default_regulariser) or NONE, regulariser),
    }
    return with_plugins(recipe.model_copy(update=tables))


def _check_local_work(recipe: Recipe, parts: Parts) -> None:
    """Losses, schedules and optimisers exist and take their options; methods that correct SGD's steps have SGD."""
    for work, rounds in ((recipe.training, recipe.federation.rounds), (recipe.pretrain, recipe.pretrain.epochs)):
        loss_of(work)
        rates_of(work, rounds)
        make_optimiser(work, [Group({"w": torch.zeros(1)}, work.learning_rate, work.momentum)])
    methods = [parts.method, *(build_parts(recipe, other).method for other in recipe.compare)]
    for name, method in zip((recipe.method["name"], *recipe.compare), methods, strict=True):
        needs_sgd = isinstance(method, FedAvg) and method.backbone_momentum is not None
        if needs_sgd and recipe.training.optimiser != "sgd":
            other = recipe.training.optimiser
            raise FedVisageError(
                f"method '{name}' corrects the steps of SGD: training.optimiser = '{other}' takes others"
            )


def _check_batchnorm(recipe: Recipe, parts: Parts) -> None:
    if recipe.federation.batchnorm != "local":
        return
    for people in ("test", "validation"):
        if getattr(recipe.partition, people):
            raise FedVisageError(
                "federation.batchnorm = 'local' leaves no generic model to test on unseen people: "
                f"set partition.{people} = 0 and federation.evaluate_every = 1, or use 'average'"
            )
    if any(phase.trains and phase.when == "start" for phase in parts.method.phases()):
        raise FedVisageError(
            "federation.batchnorm = 'local' keeps what one party learns at the start from the others: use 'average'"
        )


def _check_aggregation(recipe: Recipe) -> None:
    """Control variates and momenta are sums over parties: they mean nothing after a median, or clipped."""
    rule = recipe.aggregation["name"]
    for name in (recipe.method["name"], *recipe.compare):
        if rule != "mean" and METHODS[name].needs_mean:
            raise FedVisageError(f"method '{name}' needs plain averages: aggregation '{rule}' breaks them")


def _check_centres(recipe: Recipe, parts: Parts) -> None:
    """A centre belongs to one model, and is a quotient of sums."""
    if not recipe.centre.groups:
        return
    if parts.method.has_no_global_model:
        raise FedVisageError(f"centre.groups: method '{recipe.method['name']}' has no global model to fit a centre to")
    if recipe.federation.batchnorm == "local":
        raise FedVisageError("centre.groups: federation.batchnorm = 'local' leaves no generic model: use 'average'")
    rule = recipe.aggregation["name"]
    if rule != "mean":
        raise FedVisageError(f"centre.groups needs plain sums: aggregation '{rule}' breaks them")


def _check_frozen_stages(recipe: Recipe) -> None:
    settings = recipe.backbone
    if settings.train_from is None:
        return
    freeze(make_network(recipe, torch.device("meta")), recipe)
    if settings.start is None and not recipe.pretrain.epochs:
        raise FedVisageError(
            "backbone.train_from freezes stages that have learnt nothing yet: give backbone.start or pretrain.epochs"
        )
    if settings.cache and (recipe.training.crop or (settings.start and recipe.pretrain.crop)):
        raise FedVisageError(
            "crop moves images before the frozen stages see them, whose results are computed once: "
            "set crop = 0, or backbone.cache = false to run the frozen stages in every step"
        )


def _check_weighting(recipe: Recipe, parts: Parts) -> None:
    """A weighting that mixes the parties' models itself needs such models, plain averages, and who it asks."""
    if not parts.weighting.individual:
        return
    name, method, settings = recipe.weighting["name"], parts.method, recipe.federation
    if method.pools or method.has_no_global_model:
        raise FedVisageError(f"weighting '{name}': method '{recipe.method['name']}' has no model to mix from parties'")
    if settings.batchnorm == "local":
        raise FedVisageError(
            f"weighting '{name}' mixes whole models, but with federation.batchnorm = 'local' a part of them stays at "
            "the parties: use 'average'"
        )
    rule = recipe.aggregation["name"]
    if rule != "mean":
        raise FedVisageError(f"weighting '{name}' has no say under aggregation '{rule}': use 'mean'")
    asked = any(phase.roles == {VALIDATOR} for phase in parts.weighting.phases())
    share = recipe.partition
    there = share.validators or share.file or any(group.role == VALIDATOR for group in share.groups.values())
    if asked and not there:
        raise FedVisageError(
            f"weighting '{name}' needs validators: set partition.validators, or give a group the role 'validator'"
        )


def _check_together(recipe: Recipe, parts: Parts) -> None:
    """Several parties are computed at once only where each one's own computation would give the same."""
    settings, method = recipe.federation, parts.method
    if settings.together == 1:
        return
    weighting = recipe.weighting.get("name", method.default_weighting)
    if not isinstance(method, FedAvg) or method.pools or method.has_no_global_model:
        reason = "it does not average the parties' models"
    elif weighting not in ("samples", "equal"):
        reason = f"weighting '{weighting}' needs each party's model"
    elif recipe.aggregation["name"] != "mean":
        reason = f"aggregation '{recipe.aggregation['name']}' needs each party's model"
    elif settings.keep_local or settings.batchnorm == "local":
        reason = "parties keep models of their own (federation.keep_local, federation.batchnorm)"
    else:
        model = make_network(recipe, torch.device("meta"))
        freeze(model, recipe)
        reason = method.why_not_together(model)
    if reason:
        name = recipe.method["name"]
        raise FedVisageError(f"federation.together = {settings.together}: {name} cannot be computed so: {reason}")


def _table(name: str, part: Component | None) -> dict[str, Any]:
    """A component as the table of a recipe that names it."""
    own = part.model_dump(mode="json", exclude=set(_OFFERED), exclude_none=True) if part is not None else {}
    return {"name": name, **own}


def open_faces(recipe: Recipe, cache: Path) -> FaceSet:
    """The recipe's face set; synthetic faces are rendered into `cache` once."""
    return open_source(recipe.faces, cache)


def make_network(recipe: Recipe, device: torch.device, generator: torch.Generator | None = None) -> Backbone:
    """The recipe's network: new, or with the weights of `backbone.start`."""
    settings = recipe.backbone
    model = create_backbone(
        settings.name,
        embedding_size=settings.embedding_size,
        image_size=recipe.faces.size,
        generator=generator,
        device=device,
    )
    if settings.start is None or device.type == "meta":
        return model
    start = open_model(settings.start)
    ours, theirs = (network.metadata for network in (model, start))
    if start.transformation is not None:
        raise FedVisageError(f"backbone.start = '{settings.start}' is one party's own model: start from a generic one")
    if layout(model.state_dict()) != layout(start.state_dict()):
        raise FedVisageError(
            f"backbone.start = '{settings.start}' holds {theirs.name} for {theirs.image_size} pixels and embeddings of "
            f"{theirs.embedding_size}; the recipe's network is {ours.name} for {ours.image_size} (faces.size) and "
            f"{ours.embedding_size}: make backbone.name, backbone.embedding_size and faces.size agree with it"
        )
    model.load_state_dict(start.state_dict())
    return model


def freeze(model: Backbone, recipe: Recipe, frozen: Mapping[str, torch.Tensor] | None = None) -> None:
    """Freeze the stages before `backbone.train_from`, with these values if they are given."""
    if recipe.backbone.train_from is not None:
        model.train_from(recipe.backbone.train_from)
        if frozen is not None:
            model.load_state_dict(dict(model.state_dict()) | dict(frozen))


def start_model(recipe: Recipe, run: Path) -> Backbone:
    """The network that a run began with, from its folder."""
    start = load_state(run / START)
    new = recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": None})})
    model = make_network(new, torch.device("cpu"))
    freeze(model, recipe, start.get(FROZEN))
    weights = Weights(model, recipe.federation.batchnorm)
    for group in (BACKBONE, BUFFERS, "batchnorm"):
        weights.load(start[group])
    return model


def prepare_faces(recipe: Recipe, model: Backbone, faces: FaceSet, partition: Partition, folder: Path) -> FaceSet:
    """The faces, with what the network's frozen stages make of them computed into `folder`."""
    kept = recipe.backbone.cache
    if not model.cut or not kept:
        return faces
    shares = partition.parties.values()
    own = (share.train + share.held_out + share.unlabelled for share in shares)
    used = itertools.chain(partition.public, partition.test, partition.validation, *own)
    return with_features(model, faces, np.fromiter(used, np.int64), Path(kept) if isinstance(kept, str) else folder)


def own_tensors(method: Method, backbone: Tensors, state: State) -> Tensors | None:
    """A party's own model, from the global backbone and its private state: its branch or model, or its BatchNorm."""
    found = method.personal(state)
    if found is None and "batchnorm" in state:
        return {**backbone, **state["batchnorm"]}
    return found


def reset_counters(model: nn.Module) -> None:
    """`num_batches_tracked` counts what this process happened to train; it is no part of a result."""
    for name, buffer in model.named_buffers():
        if name.endswith(COUNTER):
            buffer.zero_()


@dataclass(frozen=True)
class HostMaker:
    """Builds the party side of a run in any process of this machine, from the files of the run folder."""

    recipe: Recipe
    components: tuple[Component, ...]
    partition: Partition
    run: Path
    """The run's folder, with the start model and the rendered faces."""
    folder: Path
    """Where this federation keeps its parties' states."""

    @property
    def needs_main(self) -> bool:
        """Whether the script that runs now defines parts of this run."""
        return bool(of_main(self.recipe))

    def __call__(self, worker: int) -> Host:
        """The host of one worker."""
        load_plugins(self.recipe.plugins)
        recipe, settings = self.recipe, self.recipe.federation
        start = load_state(self.run / START)
        new = recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": None})})
        model = make_network(new, choose_device(settings.device, worker))
        freeze(model, recipe, start.get(FROZEN))
        faces = open_faces(recipe, self.run / CACHE)
        faces = prepare_faces(recipe, model, faces, self.partition, self.run / CACHE)

        def open_party(name: str) -> tuple[str, PartyFaces]:
            return party_faces(faces, self.partition, name)

        return Host(
            self.components,
            Weights(model, settings.batchnorm),
            open_party,
            StateStore(self.folder / "parties"),
            Streams(recipe.seed, "parties"),
            start["batchnorm"],
            settings.keep_local,
            settings.together,
            rates_of(recipe.training, settings.rounds),
        )


def make_transport(maker: MakeHost, settings: Federation, parties: int) -> Transport:
    """In this process, or over as many workers as the recipe and this machine allow."""
    gpus = torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0
    possible = gpus or (os.cpu_count() or 1) // settings.threads_per_party
    count = 1 if settings.together > 1 else min(settings.workers or possible, parties)
    if count <= 1:
        return InProcess(maker, settings.threads_per_party)
    if isinstance(maker, HostMaker):
        check_main(maker.recipe, "worker processes (federation.workers = 1 has none)", scripts=True)
    return Workers(maker, count, settings.threads_per_party, settings.timeout)
