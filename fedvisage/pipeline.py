"""A run from recipe to report: faces, partition, start model, rounds, comparisons, scores, page.

Every stage leaves its result in the run folder and is skipped when the run is resumed and the result is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fedvisage.build import (
    CACHE,
    FROZEN,
    START,
    HostMaker,
    Parts,
    build_parts,
    freeze,
    make_network,
    make_transport,
    open_faces,
    own_tensors,
    prepare_faces,
    reset_counters,
    resolve,
)
from fedvisage.chosen import Chooser
from fedvisage.classmap import write_map
from fedvisage.config import Federation as FederationSettings
from fedvisage.config import Recipe, load_recipe
from fedvisage.core.codec import State, load_state, save_state, write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.memory import give_back
from fedvisage.core.method import Method, Party
from fedvisage.core.parcel import BACKBONE, BUFFERS, CENTRES, PUBLIC_EMBEDDINGS, Parcel, Stamp, Tensors
from fedvisage.core.phase import TRAINER, VALIDATOR
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.deploy.hosting import Hosting, deliver, noted, open_hosting
from fedvisage.faces.faceset import Faces
from fedvisage.faces.partition import Partition, PartyFaces, Share, hosted_partition, make_partition
from fedvisage.federation import Event, Federation, Observe, StateStore, Transport, extra_trackers
from fedvisage.methods import centre
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg, mean_embeddings
from fedvisage.models import Backbone, centres_of, load_model, personalised, save_model
from fedvisage.report import write_report
from fedvisage.runfolder import RunResult, prepare_folder, refuse_recipe_inside, set_aside
from fedvisage.scoring import Score, TestSet, headline, mean_score, open_test
from fedvisage.training import choose_device, rates_of, threads
from fedvisage.verdict import Ended, conclusion, mean_judged, scored, training_centres

Watch = Callable[[Event], None]
Headlines = Mapping[str, Mapping[str, float]]
EVALUATION = "evaluation.json"


def run(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    fresh: bool = False,
    on: str | Path | None = None,
    watch: Watch = lambda event: None,
    starts: Path | None = None,
) -> RunResult:
    """Run a recipe in the folder `out`; `resume` goes on with what is there, `fresh` removes it first.

    `on` is the folder of a federation of real hosts (`fedvisage deploy`); without it all parties are in this process.
    `starts` is a folder that keeps pre-trained start models for other runs that begin with the very same one.
    """
    source = recipe
    recipe = resolve(load_recipe(recipe) if isinstance(recipe, str | Path) else recipe)
    folder = Path(out) if out else Path("runs") / recipe.name
    if fresh and isinstance(source, str | Path):
        refuse_recipe_inside(source, folder)
    finished = folder / EVALUATION
    with threads(recipe.federation.threads):
        with set_aside(folder) if fresh else nullcontext():
            prepare_folder(folder, recipe, resume)
            hosts = Path(on) if on else None
            work = None if finished.exists() else _open(recipe, folder, watch, hosts, keep=resume)
        if work is not None:
            with work:
                work.starts = starts
                scores = work.execute()
        ran, work = work is not None, None
        if ran:
            give_back()  # of many parties: their partition and states, before they are read again
            if on is None:
                write_map(folder)
                give_back()
            write_atomically(finished, [json.dumps(scores, indent=1).encode()])
            shutil.rmtree(folder / CACHE, ignore_errors=True)
        write_report(folder)
    return RunResult(folder, json.loads(finished.read_text()))


def _open(recipe: Recipe, folder: Path, watch: Watch, on: Path | None, keep: bool) -> _Run:
    """The run, ready to begin; where it cannot even begin, nothing of it stays behind."""
    try:
        return _Run(recipe, folder, watch, open_hosting(on, recipe, folder))
    except FedVisageError:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()
        raise


class _Run:
    """The stages of one run."""

    def __init__(self, recipe: Recipe, folder: Path, watch: Watch, hosting: Hosting | None) -> None:
        self.recipe, self.folder, self.watch, self.hosting = recipe, folder, watch, hosting
        self.starts: Path | None = None
        self.ended: dict[str, Ended] = {}
        self.streams = Streams(recipe.seed)
        self.faces = open_faces(recipe, folder / CACHE)
        self.partition = self._partition()
        self._check_roles()
        if recipe.pretrain.epochs and not self.partition.public:
            raise FedVisageError("pretrain.epochs is set, but partition.public is 0: there is nobody to pre-train on")
        self.device = choose_device(recipe.federation.device)
        self.model = make_network(recipe, self.device, self.streams.torch("backbone"))
        self.weights = Weights(self.model, recipe.federation.batchnorm)
        self._open_tests()
        if recipe.evaluation.choose and not self.validation:
            raise FedVisageError("evaluation.choose is set, but nobody validates: set partition.validation")
        if recipe.evaluation.choose and build_parts(recipe).method.has_no_global_model:
            what = f"method '{recipe.method['name']}' has no global model to score"
            raise FedVisageError(f"evaluation.choose is set, but {what}")

    def _open_tests(self) -> None:
        self.test = self._people(self.partition.test)
        self.validation = self._people(self.partition.validation)
        if not self.validation and not self.weights.local:  # else there is no generic model to score
            self.validation = self._people(self.partition.judging, lenient=True)

    def _methods(self) -> list[Method]:
        """The recipe's method and those it is compared with."""
        return [build_parts(self.recipe, name).method for name in ("", *self.recipe.compare)]

    def _check_roles(self) -> None:
        """Refuse parties that a method would leave out or could not train."""
        roles = {share.role for share in self.partition.parties.values()} - {VALIDATOR}
        for name, method in zip((self.recipe.method["name"], *self.recipe.compare), self._methods(), strict=True):
            strange = sorted(roles - method.roles)
            if strange:
                known = " and ".join(sorted(method.roles))
                raise FedVisageError(f"the partition has a {strange[0]}, but method '{name}' is for {known} parties")
        centre.check(self.recipe.centre.groups, self.partition.parties)

    def _people(self, images: Sequence[int], lenient: bool = False) -> TestSet | None:
        """A set of people to score models on; None without images; with `lenient` also if they do not do."""
        people = open_test(self.faces, images, self.recipe.evaluation, self.streams, lenient) if images else None
        return people if people and (people.has_both_kinds or not lenient) else None

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.hosting:
            self.hosting.close()

    def execute(self) -> dict[str, Any]:
        """All stages; the contents of evaluation.json."""
        recipe, folder = self.recipe, self.folder
        self._start_model()
        give_back()
        scores: dict[str, Score] = {}
        if self.test:
            self._load(load_state(folder / START))
            scores["start"] = self._scored(self.model, self.test)
        if self.validation and recipe.evaluation.choose:
            self._load(load_state(folder / START))
            Chooser(recipe.evaluation.choose, folder).check(headline(self.validation.score(self.model)))
        name = recipe.method["name"]
        scores |= self._federate(build_parts(recipe), self.partition, folder, name)
        for other in recipe.compare:
            inner = folder / "compare" / other
            inner.mkdir(parents=True, exist_ok=True)
            scores |= self._federate(build_parts(recipe, other), self.partition, inner, other)
        described = self.test.describe() if self.test else {}
        return {"models": scores, "test": described, "seed": recipe.seed} | conclusion(scores, recipe, self.ended)

    def _scored(self, model: Backbone, test: TestSet, party: str = "") -> Score:
        """A model's scores on the test people, those of the run's answer among them.

        They are centred on the people of all parties, or of the `party` whose own model it is; at hosts not at all.
        """
        shares = [share for name, share in self.partition.parties.items() if party in ("", name)]
        centres = {} if self.hosting else training_centres(model, self.faces, shares)
        return scored(model, test, self.validation, centres)

    def _partition(self) -> Partition:
        path = self.folder / "partition.json"
        if path.exists():
            partition = Partition.load(path)
            partition.check(self.faces.labels)
            return partition
        settings, streams = self.recipe.partition, self.streams.child("partition")
        if self.hosting:
            partition = hosted_partition(self.faces, settings, self.hosting.deployment.roles, streams)
        else:
            partition = make_partition(self.faces, settings, streams)
        partition.save(path, self.faces.names, self.faces.labels)
        return partition

    def _freeze(self, state: State | None = None) -> None:
        """Freeze the stages that the recipe leaves as they are, and run them once on every face."""
        if self.model.cut or self.recipe.backbone.train_from is None:
            return
        freeze(self.model, self.recipe, state and state[FROZEN])
        self.weights = Weights(self.model, self.recipe.federation.batchnorm)
        with threads(self.recipe.federation.threads_per_party):
            self.faces = prepare_faces(self.recipe, self.model, self.faces, self.partition, self.folder / CACHE)
        self._open_tests()

    def _load(self, state: State) -> None:
        self.weights.load(state[BACKBONE])
        self.weights.load(state[BUFFERS])
        if self.weights.local:
            self.weights.load(state["batchnorm"])

    def _start_model(self) -> None:
        """Write a new or given network, trained on the public identities where the recipe says so.

        A given network is frozen before that, a new one after it.
        """
        path, kept = self.folder / START, self._kept_start()
        if kept and kept.exists() and not path.exists():
            shutil.copyfile(kept, path)
        if path.exists():
            self._freeze(load_state(path))
            return
        public: Tensors = {}
        if self.recipe.backbone.start is not None:
            self._freeze()
        if self.recipe.pretrain.epochs:
            public = {"all": self._pretrain()}
        elif self.partition.public and any(method.needs_public_embeddings for method in self._methods()):
            public = {"all": mean_embeddings(self.model, Faces(self.faces, self.partition.public))}
        self._freeze()
        weights = self.weights
        state = {BACKBONE: weights.backbone, BUFFERS: weights.buffers, FROZEN: self.model.frozen}
        state |= {"batchnorm": weights.local, PUBLIC_EMBEDDINGS: public}
        save_state(path, state)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_state(kept, state)

    def _kept_start(self) -> Path | None:
        """Where the start model is kept for other runs: under everything that pre-training depends on."""
        recipe, settings = self.recipe, self.recipe.federation
        if self.starts is None or not recipe.pretrain.epochs:
            return None
        parts = (recipe.seed, recipe.faces, recipe.backbone, recipe.pretrain, settings.threads, settings.batchnorm)
        return self.starts / sha256(repr((*parts, self.partition.public)).encode()).hexdigest()[:16]

    def _pretrain(self) -> torch.Tensor:
        """Train on the public identities as one party would; their class embeddings (C, d)."""
        work, public, epochs = self.recipe.pretrain, self.partition.public, self.recipe.pretrain.epochs
        once = work.model_copy(update={"epochs": 1, "optimiser_state": "keep"})
        method, rates = FedAvg(training=once), rates_of(work, epochs)
        faces = PartyFaces(self.faces, Share(TRAINER, public))
        state: State = {}
        for epoch in range(1, epochs + 1):
            streams = self.streams.child("pretrain", epoch)
            party = Party("public", TRAINER, epoch, faces, state, self.weights, streams, rates=rates)
            if epoch == 1:
                method.join(party, Parcel())
            state[EMBEDDINGS], fit = method.fit(party, Parcel(), self.model, state[EMBEDDINGS])
            self.watch(Event("absorbed", epoch, epochs, "pre-train", numbers={"loss": fit.loss}))
        embeddings: torch.Tensor = state[EMBEDDINGS].cpu()
        return embeddings

    def _federate(self, parts: Parts, partition: Partition, folder: Path, label: str) -> dict[str, Score]:
        """Run one method and score what it gives: the global model, or every party's own."""
        recipe = self.recipe
        settings = recipe.federation
        if parts.method.pools:
            partition = partition.pooled(parts.method.pooled_roles, parts.method.pools_without_labels)
            settings = settings.model_copy(update={"threads_per_party": settings.threads, "workers": 1})
        self.weights.rest()  # rounds begin with the start model's file
        transport = self._transport(parts, partition, settings, folder, label)
        try:
            federation = Federation(
                parts.method,
                parts.weighting,
                parts.others,
                {name: share.role for name, share in partition.parties.items()},
                transport,
                settings,
                folder,
                self.streams.child("federation"),
                load_state(self.folder / START),
                self.model.metadata.embedding_size,
                extra_trackers(recipe.track, folder, recipe.name),
                _labelled(self.watch, label if folder != self.folder else ""),
                None if parts.method.has_no_global_model else self._observer(parts, folder, label),
                rates_of(recipe.training, settings.rounds),
            )
            server, book = federation.run()
            self.ended |= {label: Ended(book.ended_round, book.ended)} if book.ended else {}
            for text in centre.shortfalls(parts.others, server, book.joined):
                noted(folder, self.watch)(Stamp(settings.rounds, centre.PHASE, 0), text)
            if self.hosting:
                deliver(transport, server, book, settings.rounds, folder, noted(folder, self.watch))
        finally:
            transport.close()
        self._save_model(server, folder, label)
        generic = not parts.method.has_no_global_model
        score = self._scored(self.model, self.test) if self.test and generic else None
        personal = self._personal_models(parts, server, book.generations, folder, folder)
        if self.test and parts.method.has_no_global_model and personal:
            score = self._score_parties(personal, self.test)
        return {label: score} if score else {}

    def _save_model(self, server: State, folder: Path, label: str) -> None:
        kept = load_state(self.folder / START) if self.weights.local else {}
        self._load({"batchnorm": kept.get("batchnorm", {})} | server)
        reset_counters(self.model)
        self.model.centres = centres_of(server.get(CENTRES, {}))
        save_model(folder / "model.safetensors", self.model, {"recipe": self.recipe.name, "method": label})

    def _transport(
        self, parts: Parts, partition: Partition, settings: FederationSettings, folder: Path, label: str
    ) -> Transport:
        """The way to the parties: to their hosts, or within this machine."""
        if self.hosting:
            public = Faces(self.faces, partition.public)
            return self.hosting.transport(label, public, settings, noted(folder, self.watch))
        maker = HostMaker(self.recipe, parts.components, partition, self.folder, folder)
        return make_transport(maker, settings, len(partition.parties))

    def _observer(self, parts: Parts, folder: Path, label: str) -> Observe | None:
        every = self.recipe.evaluation.every
        sets = {"test": self.test, "validation": self.validation}
        chooser = Chooser(self.recipe.evaluation.choose, folder)

        def observe(round: int, server: State, generations: Mapping[str, str], last: bool) -> Headlines:
            if round % every and not last:
                return {}
            self._load(server)
            with threads(self.recipe.federation.threads):
                scores = {name: headline(people.score(self.model)) for name, people in sets.items() if people}

            def save(place: Path) -> None:
                self._save_model(server, place, label)
                self._personal_models(parts, server, generations, folder, place)

            chooser.see(round, scores.get("validation", {}), save)
            self.weights.rest()
            return scores

        return observe if every and any(sets.values()) else None

    def _personal_models(
        self, parts: Parts, server: State, generations: Mapping[str, str], folder: Path, place: Path
    ) -> dict[str, Path]:
        """Each party's own model as a file in `place`, where the method gives it one; a host keeps its own."""
        if self.hosting:
            return {}
        store, paths = StateStore(folder / "parties"), {}
        for party, generation in sorted(generations.items()):
            state = store.load(party, generation)
            tensors = own_tensors(parts.method, server[BACKBONE], state)
            if tensors is None:
                continue
            paths[party] = place / "parties" / party / "model.safetensors"
            paths[party].parent.mkdir(parents=True, exist_ok=True)
            with personalised(self.weights, tensors) as model:
                reset_counters(model)
                save_model(paths[party], model, {"recipe": self.recipe.name, "party": party})
        store.close()
        return paths

    def _score_parties(self, models: Mapping[str, Path], test: TestSet) -> Score:
        """Every party's own model on the same test identities: mean and spread over the parties."""
        scores = {}
        for party, path in models.items():
            model = load_model(path).to(self.device)
            freeze(model, self.recipe)
            scores[party] = self._scored(model, test, party)
        people = [score.pop("people") for score in scores.values()]
        return mean_score(scores) | {"people": mean_judged(people)}


def _labelled(watch: Watch, label: str) -> Watch:
    """Events of a comparison carry its name."""
    return (lambda event: watch(replace(event, phase=f"{label}: {event.phase}"))) if label else watch
