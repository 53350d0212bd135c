"""The personal protocol on a run's folder: every party's own model on everybody's held-out images.

On real hosts a party has nobody's images but its own: its impostors are the public faces that its operator installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.build import CACHE, freeze, open_faces, prepare_faces, start_model
from fedvisage.chosen import models_of, run_of
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import VALIDATOR
from fedvisage.deploy import PartyFolder, open_party_folder
from fedvisage.deploy.desk import own_share
from fedvisage.deploy.party import GLOBAL_MODEL, SETTINGS
from fedvisage.evaluation import Personal, macro_average, personal_protocol
from fedvisage.evaluation.influence import MOST_PAIRS, alarms, pairs_with, tar_influence
from fedvisage.faces.faceset import Faces, FaceSet, Indices
from fedvisage.faces.partition import Partition
from fedvisage.models import Backbone, load_model
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject, some_of
from fedvisage.training import embed_images

VARIANTS = ("parity", "clean")
Embeddings = NDArray[np.float32]
Labels = NDArray[np.int64]


@protocol(
    "personal",
    "each party's own model: 1:1 and 1:N on its people among everybody, averaged",
    needs_run=True,
    takes=("centre",),
)
def personal(data: Data, subject: Subject, options: Options) -> Result:
    """A run's folder, that of its chosen round, or a party's in it; test images are all parties' held-out images.

    In the folder of a party that is a host, they are its own held-out images and the public faces. An embeddings file
    of all the run's faces stands for a model: the global one, or that of the party which is named.
    """
    path = Path(subject.path)
    folder = path.parent if path.is_file() else path
    if subject.file is None and (folder / SETTINGS).is_file():
        return _at_host(open_party_folder(folder), subject, options)
    models, chosen = _models_of(path if subject.file is None else options.run)
    run = run_of(models)
    recipe = load_recipe(str(run / "recipe.toml"))
    partition = Partition.load(run / "partition.json")
    faces = open_faces(recipe, run / CACHE)
    shares = {name: share for name, share in partition.parties.items() if share.role != VALIDATOR and share.held_out}
    if not shares or (chosen is not None and chosen not in shares):
        where = f"party '{chosen}' of {run}" if chosen else f"no party of {run}"
        raise FedVisageError(f"{where} has held-out images: set partition.held_out in the recipe and run again")
    images = np.unique([image for share in shares.values() for image in share.held_out])
    embedders = _Embedders(subject, options, models, recipe, faces, partition)
    labels, result, parties = faces.labels[images], Result(), dict[str, Personal]()
    for name, share in shares.items():
        if chosen not in (None, name):
            continue
        train = np.array(share.train)
        embed = embedders.of(name)
        seen = embed(images)
        parties[name] = _score(seen, labels, embed(train), faces.labels[train], options)
        if options.influence:
            _add_influence(result, parties[name], seen, labels, np.isin(labels, faces.labels[train]), len(faces.names))
    _describe(result, parties)
    result.people = faces.names
    result.influence = {name: total / len(parties) for name, total in result.influence.items()}
    if subject.file is None:
        result.note(_models_used(options.which, embedders.own, len(parties)))
    result.note("counts are sums over the parties; rates are means over them" if len(parties) > 1 else "one party")
    return result


def _at_host(party: PartyFolder, subject: Subject, options: Options) -> Result:
    """One party's model on its own held-out images, among public faces."""
    whole, public, result = party.faces(), party.public(), Result()
    share = own_share(party, whole, party.recipe(), party.settings.role)
    if not share.held_out or public is None:
        what = "public faces" if share.held_out else "held-out images"
        raise FedVisageError(f"{party.folder} has no {what}: the protocol 'personal' needs both")
    strangers = np.flatnonzero([public.names[person] not in whole.names for person in public.labels])
    if len(strangers) < len(public):
        result.note(f"{len(public) - len(strangers):,} public images of people named as the party's are left out")
    model = _hosts_model(party, subject, options).use_centre(subject.centre, f"the model of {party.folder}")
    flip = options.flips(subject, custom=False)
    held_out, train = np.array(share.held_out), np.array(share.train)
    sets = [Faces(whole, held_out), *([Faces(public, strangers)] if len(strangers) else [])]
    test = np.concatenate([embed_images(model, faces, flip=flip) for faces in sets])
    labels = np.concatenate([whole.labels[held_out], len(whole.names) + public.labels[strangers]])
    gallery = embed_images(model, Faces(whole, train), flip=flip)
    _describe(result, {party.settings.name: _score(test, labels, gallery, whole.labels[train], options)})
    result.note("impostors are the party's public faces; the start model may have been trained on them")
    own = int((party.newest() / GLOBAL_MODEL).is_file())
    result.note(_models_used(options.which, own, 1))
    return result


def _hosts_model(party: PartyFolder, subject: Subject, options: Options) -> Backbone:
    """The model that `which` asks for, of those in a host's folder."""
    shared = party.newest() / GLOBAL_MODEL
    if options.which == "start":
        raise FedVisageError(f"{party.folder} does not hold the model that the run began with: ask for another")
    if options.which == "global" and shared.is_file():
        return load_model(shared)
    if options.which == "local":
        subject.model.transformation = None
    return subject.model


def _score(test: Embeddings, labels: Labels, gallery: Embeddings, known: Labels, options: Options) -> Personal:
    fars, fpirs = options.fars or (1e-6, 1e-5), options.fpirs or (1e-5, 1e-4)
    return personal_protocol(test, labels, gallery, known, fars=fars, fpirs=fpirs)


def _add_influence(
    result: Result, party: Personal, test: Embeddings, labels: Labels, local: NDArray[np.bool_], people: int
) -> None:
    """How much each person moves a party's clean rates, added up; 1:1 not where the pairs are too many to hold."""
    trials = {"tpir": alarms(party.clean_search, labels, people)}
    if np.count_nonzero(local) * len(labels) <= MOST_PAIRS:
        trials["tar"] = pairs_with(test, labels, local, people)
    for name, value in party.rates("clean").items():
        kind, _, rate = name.partition("@")
        if kind in trials and np.isfinite(value):
            key = f"{kind.upper()}@{rate} (clean)"
            before = result.influence.get(key, np.zeros(people))
            result.influence[key] = before + tar_influence(trials[kind], float(rate))


def _describe(result: Result, parties: dict[str, Personal]) -> None:
    """The parties' rates averaged, with what they rest on."""
    for name, party in parties.items():
        for text in party.reasons:
            result.note(f"{name}: {text}")
    for variant in VARIANTS:
        for rate, value in macro_average(list(parties.values()), variant).items():
            result.metrics[f"{rate.replace('tar', 'TAR').replace('tpir', 'TPIR')} ({variant})"] = value
    counts = [asdict(party.counts) for party in parties.values()]
    result.counts = {"parties": len(parties)}
    result.counts |= {name: sum(table[name] for table in counts) for name in counts[0]}
    result.details = {
        name: {"counts": asdict(party.counts)} | {variant: party.rates(variant) for variant in VARIANTS}
        for name, party in parties.items()
    }


class _Embedders:
    """What embeds images for each party: its own model, one for all, or a file of embeddings."""

    def __init__(
        self, subject: Subject, options: Options, models: Path, recipe: Recipe, faces: FaceSet, partition: Partition
    ) -> None:
        self.models, self.recipe, self.faces, run = models, recipe, faces, run_of(models)
        self.which, self.flip, self.own = options.which, options.flips(subject, custom=False), 0
        self.file = subject.file
        if self.file is not None:
            if not np.array_equal(self.file.labels, faces.labels) or self.file.about.names != faces.names:
                raise FedVisageError(f"{subject.path} does not hold the embeddings of the faces of {run}")
            return
        self.common = _with_cut(start_model(recipe, run) if self.which == "start" else subject.model, recipe)
        self.centre = subject.centre
        self.common.use_centre(self.centre, f"the {self.which} model of {run}")
        if isinstance(recipe.backbone.cache, str):
            self.faces = prepare_faces(recipe, self.common, faces, partition, run)
        self.known: tuple[Indices, Embeddings] | None = None

    def of(self, party: str) -> Callable[[Indices], Embeddings]:
        """Embeddings of images by their numbers, as this party has them."""
        if self.file is not None:
            return partial(some_of, self.file)
        path = self.models / "parties" / party / "model.safetensors"
        if not path.is_file() or self.which not in ("own", "local"):
            return self._shared
        model, self.own = _with_cut(load_model(path), self.recipe), self.own + 1
        model.use_centre(self.centre, str(path))
        if self.which == "local":
            model.transformation = None
        return partial(self._embed, model)

    def _embed(self, model: Backbone, images: Indices) -> Embeddings:
        return embed_images(model, Faces(self.faces, images), flip=self.flip)

    def _shared(self, images: Indices) -> Embeddings:
        """By the model that parties have in common; the images asked for first, everybody's, are embedded once."""
        if self.known is None:
            self.known = images, self._embed(self.common, images)
        return self.known[1] if images is self.known[0] else self._embed(self.common, images)


def _with_cut(model: Backbone, recipe: Recipe) -> Backbone:
    """The model, cut where its recipe froze it: what the frozen stages make of the faces may be at hand."""
    if not model.cut:
        freeze(model, recipe)
    return model


def _models_used(which: str, own: int, parties: int) -> str:
    if which in ("global", "start"):
        return f"every party with the run's {which} model"
    whose = "a model of their own" + (" (without its last layer)" if which == "local" else "")
    return f"{own} of {parties} parties have {whose}, the others the global one"


def _models_of(path: Path | None) -> tuple[Path, str | None]:
    """The folder of a run or of its chosen round that a path names or lies in, and the party where it is one's."""
    if path is None:
        raise FedVisageError("an embeddings file does not say who has which people: name its run with --run")
    models, party = models_of(path)
    run = run_of(models)
    for needed in ("recipe.toml", "partition.json"):
        if not (run / needed).is_file():
            raise FedVisageError(f"the protocol 'personal' needs a run's folder, and {run / needed} is not there")
    return models, party
