"""The personal protocol on a run's folder: every party's own model on everybody's held-out images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedvisage.build import CACHE, freeze, open_faces, prepare_faces, start_model
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import VALIDATOR
from fedvisage.evaluation import Personal, macro_average, personal_protocol
from fedvisage.faces.faceset import Faces
from fedvisage.faces.partition import Partition
from fedvisage.models import Backbone, load_model
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Subject
from fedvisage.training import embed_images

VARIANTS = ("parity", "clean")


@protocol("personal", "each party's own model: 1:1 and 1:N on its people among everybody, averaged", needs_run=True)
def personal(data: Data, subject: Subject, options: Options) -> Result:
    """A run's folder, or one party's folder in it; test images are the held-out images of all parties."""
    run, chosen = _run_of(Path(subject.path))
    recipe = load_recipe(str(run / "recipe.toml"))
    partition = Partition.load(run / "partition.json")
    faces = open_faces(recipe, run / CACHE)
    shares = {name: share for name, share in partition.parties.items() if share.role != VALIDATOR and share.held_out}
    if not shares or (chosen is not None and chosen not in shares):
        where = f"party '{chosen}' of {run}" if chosen else f"no party of {run}"
        raise FedVisageError(f"{where} has held-out images: set partition.held_out in the recipe and run again")
    images = np.unique([image for share in shares.values() for image in share.held_out])
    common = _with_cut(start_model(recipe, run) if options.which == "start" else subject.model, recipe)
    faces = prepare_faces(recipe, common, faces, partition, run) if isinstance(recipe.backbone.cache, str) else faces
    test, labels = Faces(faces, images), faces.labels[images]
    flip = options.flips(subject, custom=False)
    result, parties, own = Result(), dict[str, Personal](), 0
    shared = None
    for name, share in shares.items():
        if chosen not in (None, name):
            continue
        path = run / "parties" / name / "model.safetensors"
        train = np.array(share.train)
        if path.is_file() and options.which in ("own", "local"):
            model, own = _with_cut(load_model(path), recipe), own + 1
            if options.which == "local":
                model.transformation = None
            everybody = embed_images(model, test, flip=flip)
        else:
            model = common
            shared = embed_images(model, test, flip=flip) if shared is None else shared
            everybody = shared
        parties[name] = personal_protocol(
            everybody,
            labels,
            embed_images(model, Faces(faces, train), flip=flip),
            faces.labels[train],
            fars=options.fars or (1e-6, 1e-5),
            fpirs=options.fpirs or (1e-5, 1e-4),
        )
        for text in parties[name].reasons:
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
    result.note(_models_used(options.which, own, len(parties)))
    result.note("counts are sums over the parties; rates are means over them" if len(parties) > 1 else "one party")
    return result


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


def _run_of(path: Path) -> tuple[Path, str | None]:
    """The run's folder that a path names or lies in, and the party where it is one party's folder or model."""
    path = path.parent if path.name == "model.safetensors" else path
    if path.parent.name == "parties":
        run, party = path.parent.parent, path.name
    else:
        run, party = path, None
    for needed in ("recipe.toml", "partition.json"):
        if not (run / needed).is_file():
            raise FedVisageError(f"the protocol 'personal' needs a run's folder, and {run / needed} is not there")
    return run, party
