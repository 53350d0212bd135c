"""From a recipe to the objects a run is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvisage import methods as _methods
from fedvisage.config import Federation, Recipe, validated
from fedvisage.core.codec import load_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, WEIGHTINGS, Component, Method, PartyFaces, Weighting
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.faces.faceset import FaceSet, open_faceset, write_faceset
from fedvisage.faces.partition import Partition, party_faces
from fedvisage.faces.synthetic import SyntheticFaces
from fedvisage.federation import Host, InProcess, MakeHost, StateStore, Transport, Workers
from fedvisage.models import create_backbone
from fedvisage.training import choose_device, loss_of

START = "start.safetensors"
"""Where a run keeps the model it starts from."""
CACHE = ".cache"
"""Where a run keeps its rendered faces until it is finished."""


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


def build_parts(recipe: Recipe, table: Mapping[str, Any]) -> Parts:
    """The method that `table` (a recipe's [method]) names, with its weighting and the recipe's other components."""
    options = dict(table)
    kind = METHODS[str(options.pop("name"))]
    for taken in ("training", "rounds"):
        if taken in options:
            raise FedVisageError(f"recipe '{recipe.name}': method.{taken} belongs in [{_HOME[taken]}]")
    offered = {"training": recipe.training, "rounds": recipe.federation.rounds}
    given = {name: value for name, value in offered.items() if name in kind.model_fields}
    method = validated(kind, options | given, f"recipe '{recipe.name}', [method]")
    settings = recipe.federation
    weighting = WEIGHTINGS[settings.weighting or method.default_weighting]()
    others: list[Component] = []
    if settings.batchnorm == "recalibrate":
        others.append(_methods.Recalibrate())
    if settings.evaluate_every:
        others.append(_methods.EvaluateAtParties(method=method, every=settings.evaluate_every))
    return Parts(method, weighting, tuple(others))


_HOME = {"training": "training", "rounds": "federation"}


def resolve(recipe: Recipe) -> Recipe:
    """The recipe with the method's defaults spelt out, checked as far as it can be without looking at any image."""
    parts = build_parts(recipe, recipe.method)
    for other in recipe.compare:
        build_parts(recipe, {"name": other})
    loss_of(recipe.training)
    loss_of(recipe.pretrain)
    if recipe.federation.batchnorm == "local" and recipe.partition.test:
        raise FedVisageError(
            "federation.batchnorm = 'local' leaves no generic model to test on unseen people: "
            "set partition.test = 0 and federation.evaluate_every = 1, or use 'average'"
        )
    own = parts.method.model_dump(mode="json", exclude={"training", "rounds"}, exclude_none=True)
    weighting = recipe.federation.weighting or parts.method.default_weighting
    federation = recipe.federation.model_copy(update={"weighting": weighting})
    return recipe.model_copy(update={"method": {"name": recipe.method["name"], **own}, "federation": federation})


def open_faces(recipe: Recipe, cache: Path) -> FaceSet:
    """The recipe's face set; synthetic faces are rendered into `cache` once."""
    settings = recipe.faces
    if settings.source != "synthetic":
        return open_faceset(Path(settings.source))
    if not (cache / "faces.json").exists():
        source = SyntheticFaces(
            settings.seed, settings.identities, settings.images_per_identity, settings.size, settings.domain
        )
        width = len(str(settings.identities - 1))
        names = tuple(f"person-{number:0{width}d}" for number in range(settings.identities))
        write_faceset(cache, FaceSet(source, np.asarray(source.labels), names))
    return open_faceset(cache)


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

    def __call__(self, worker: int) -> Host:
        """The host of one worker."""
        recipe, settings = self.recipe, self.recipe.federation
        model = create_backbone(
            recipe.backbone.name,
            embedding_size=recipe.backbone.embedding_size,
            image_size=recipe.faces.size,
            device=choose_device(settings.device, worker),
        )
        faces = open_faces(recipe, self.run / CACHE)

        def open_party(name: str) -> tuple[str, PartyFaces]:
            return party_faces(faces, self.partition, name)

        return Host(
            self.components,
            Weights(model, settings.batchnorm),
            open_party,
            StateStore(self.folder / "parties"),
            Streams(recipe.seed, "parties"),
            load_state(self.run / START)["batchnorm"],
            settings.keep_local,
        )


def make_transport(maker: MakeHost, settings: Federation, parties: int) -> Transport:
    """In this process, or over as many workers as the recipe and this machine allow."""
    gpus = torch.cuda.device_count() if settings.device != "cpu" and torch.cuda.is_available() else 0
    possible = gpus or (os.cpu_count() or 1) // settings.threads_per_party
    count = min(settings.workers or possible, parties)
    if count <= 1:
        return InProcess(maker, settings.threads_per_party)
    return Workers(maker, count, settings.threads_per_party, settings.timeout)
