"""A party at work in one run: the recipe it was told of, its own faces and state, its policy before every answer."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fedvisage.build import Parts, build_parts, freeze, make_network, own_tensors, prepare_faces, reset_counters
from fedvisage.config import Recipe, to_toml, validated
from fedvisage.core.assembly import Assembly
from fedvisage.core.codec import read_state, state_bytes, write_atomically
from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE, BUFFERS, CENTRES, PUBLIC_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.phase import SOURCE, TRAINER
from fedvisage.core.randomness import Streams
from fedvisage.core.weights import Weights
from fedvisage.deploy.party import GLOBAL_MODEL, MODEL, RECIPE, PartyFolder
from fedvisage.faces.faceset import Faces, FaceSet
from fedvisage.faces.partition import Partition, PartyFaces, Share
from fedvisage.faces.shares import held_out_count
from fedvisage.federation import Host, StateStore
from fedvisage.models import centres_of, personalised, save_model
from fedvisage.privacy import Ledger, Refused
from fedvisage.training import choose_device, rates_of

_RUN = re.compile(r"[0-9a-f]{8,64}(-[a-z0-9-]+)?")
DELIVER = "deliver"
"""The exchange after the last phase: parties are given the final model."""
PATIENCE = 30.0
"""Seconds to wait for an earlier process of the party to let go of a run's state."""


@dataclass(frozen=True)
class Invitation:
    """What a party is told of a run before it takes part."""

    run: str
    """The run's id: the party's state is kept under it."""
    recipe: Recipe
    compared: str
    """The method, where it is one that the recipe's is compared with."""
    role: str
    public: str
    """Digest of the public faces that the server has; empty where it has none."""
    batchnorm: Tensors
    """BatchNorm of the start model, where parties keep their own."""
    frozen: Tensors
    """Values of the stages that are not trained, where there are such."""

    def pack(self) -> bytes:
        """As bytes."""
        return state_bytes({**vars(self), "recipe": to_toml(self.recipe)})

    @staticmethod
    def unpack(message: bytes) -> Invitation:
        """Read it at the party."""
        table = read_state(bytearray(message), "the server's message")
        try:
            text = {name: str(table[name]) for name in ("run", "compared", "role", "public")}
            recipe = validated(Recipe, tomllib.loads(table["recipe"]), "the server's recipe")
            found = Invitation(recipe=recipe, batchnorm=dict(table["batchnorm"]), frozen=dict(table["frozen"]), **text)
        except (KeyError, TypeError, ValueError) as error:
            raise FedVisageError(f"the server's message is malformed: {error}") from None
        if not _RUN.fullmatch(found.run):
            raise FedVisageError("the server's message is malformed: no run id")
        return found

    @cached_property
    def method(self) -> str:
        """The method's name."""
        return self.compared or str(self.recipe.method["name"])

    @cached_property
    def parts(self) -> Parts:
        """What takes part in the federation."""
        return build_parts(self.recipe, self.compared)


class FaceDesk:
    """Answers the parcels of one run from a party's folder."""

    def __init__(self, folder: PartyFolder, name: str, invitation: Invitation) -> None:
        self.folder, self.name, self.invitation = folder, name, invitation
        self._check()
        settings = invitation.recipe.federation
        torch.set_num_threads(settings.threads_per_party)
        state = folder.state(invitation.run)
        state.mkdir(parents=True, exist_ok=True)
        self._lock = _take(state / "lock")
        try:
            self._host = self._make_host(state)
            folder.log.mkdir(parents=True, exist_ok=True)
            self._ledger = Ledger(folder.log / f"{invitation.run}.jsonl")
        except BaseException:
            os.close(self._lock)
            raise
        folder.note(f"takes part in run {invitation.run}: {invitation.method}, {settings.rounds} rounds")

    def handle(self, parcel: Parcel) -> Parcel:
        """The answer to a parcel; nothing that the policy forbids is ever returned."""
        self._ledger.record(self.name, "down", parcel)
        try:
            if parcel.stamp.round > self.folder.policy.rounds:
                raise Refused(f"policy: round {parcel.stamp.round} is beyond {self.folder.policy.rounds}")
            answer = self._keep_model(parcel) if parcel.stamp.phase == DELIVER else self._host.handle(self.name, parcel)
            self.folder.policy.check(answer)
        except Exception as error:
            self.folder.note(f"run {self.invitation.run}, round {parcel.stamp.round}, {parcel.stamp.phase}: {error}")
            raise
        finally:
            self._ledger.flush()
        self._ledger.record(self.name, "up", answer)
        self._ledger.flush()
        return answer

    def _keep_model(self, parcel: Parcel) -> Parcel:
        """Write the final model into the party's folder, and the party's own where it has one: that never leaves."""
        invitation, weights = self.invitation, self._host.weights
        method = invitation.parts.method
        home = self.folder.models(invitation.run)
        home.mkdir(parents=True, exist_ok=True)
        for tensors in (parcel[BACKBONE], parcel.get(BUFFERS), invitation.batchnorm):
            weights.load(tensors)
        state = self._host.store.load(self.name, parcel.generation)
        own = own_tensors(method, parcel[BACKBONE], state) if state else None
        about = {"recipe": invitation.recipe.name}
        reset_counters(weights.model)
        weights.model.centres = centres_of(parcel.get(CENTRES))
        name = MODEL if own is None else GLOBAL_MODEL
        save_model(home / name, weights.model, about | {"method": invitation.method})
        if own is not None:
            with personalised(weights, own) as model:
                reset_counters(model)
                save_model(home / MODEL, model, about | {"party": self.name})
        write_atomically(home / RECIPE, [to_toml(invitation.recipe).encode()])
        if not invitation.compared:
            self.folder.use(home)
        return Parcel(stamp=parcel.stamp)

    def close(self) -> None:
        """Let go of state and log."""
        self._ledger.close()
        self._host.close()
        os.close(self._lock)

    def _check(self) -> None:
        """Refuse a run that the policy forbids, or that this party cannot serve."""
        invitation, own = self.invitation, self.folder.settings
        try:
            self.folder.load_plugins(invitation.recipe.plugins)
        except FedVisageError as error:
            self._refuse(str(error))
        rounds = invitation.recipe.federation.rounds
        found = self.folder.policy.objections(invitation.method, invitation.parts.components, rounds)
        if found:
            self._refuse(f"policy: {'; '.join(found)}")
        if invitation.parts.method.pools:
            self._refuse(f"{invitation.method} pools images, and images never leave a party")
        if own.name != self.name:
            self._refuse(f"its certificate says {self.name}, its folder {own.name}")
        if own.role != invitation.role:
            self._refuse(f"it is a {own.role}, and the run wants a {invitation.role}")

    def _refuse(self, reason: str) -> None:
        self.folder.note(f"refused run {self.invitation.run} ({self.invitation.method}): {reason}")
        raise Refused(reason)

    def _make_host(self, state: Path) -> Host:
        recipe = self.invitation.recipe
        whole = self.folder.faces()
        self._check_size(whole.images.read(np.arange(min(1, len(whole)))).shape, recipe.faces.size)
        settings = recipe.federation
        new = recipe.model_copy(update={"backbone": recipe.backbone.model_copy(update={"start": None})})
        model = make_network(new, choose_device(settings.device))
        freeze(model, recipe, self.invitation.frozen or None)
        share, public = own_share(self.folder, whole, recipe, self.invitation.role), self._public()
        whole = prepare_faces(recipe, model, whole, Partition((), (), {self.name: share}), state / "features")
        if public is not None:
            everybody = tuple(range(len(public)))
            public = prepare_faces(recipe, model, public, Partition(everybody, (), {}), state / "public-features")
        faces = HostedFaces(PartyFaces(whole, share), Faces(public, np.arange(len(public))) if public else None)
        return Host(
            self.invitation.parts.components,
            Weights(model, settings.batchnorm),
            lambda name: (self.invitation.role, faces),
            StateStore(state, durable=True),
            Streams(recipe.seed, "parties"),
            self.invitation.batchnorm,
            settings.keep_local,
            rates=rates_of(recipe.training, settings.rounds),
        )

    def _check_size(self, shape: tuple[int, ...], size: int) -> None:
        if shape[1:] != (size, size, 3):
            self._refuse(f"its images are {shape[2]} x {shape[1]} pixels, the recipe's {size} x {size}")

    def _public(self) -> FaceSet | None:
        """Public people, after comparing them with the server's."""
        found = self.folder.public()
        wanted = self.invitation.public
        phases = Assembly(self.invitation.parts.components).phases.values()
        if found is None and any(PUBLIC_EMBEDDINGS in {*phase.down, *phase.up} for phase in phases):
            self._refuse(f"the run needs the public faces {wanted[:16]} in {self.folder.settings.public}/")
        if found is not None and wanted and digest(Faces(found, np.arange(len(found)))) != wanted:
            self._refuse("its public faces are not the ones of the run")
        return found


class HostedFaces:
    """A party's faces with the public ones its operator installed."""

    unlabelled: Faces | None = None

    def __init__(self, own: PartyFaces, public: Faces | None) -> None:
        self._own, self.public = own, public

    @property
    def train(self) -> Faces:
        """What it trains on."""
        return self._own.train

    @property
    def held_out(self) -> Faces | None:
        """Further images of the same people."""
        return self._own.held_out


def own_share(folder: PartyFolder, whole: FaceSet, recipe: Recipe, role: str) -> Share:
    """Which of its images a party trains on and which it holds out: as its folder says, or by the recipe's share."""
    settings = recipe.partition
    split = folder.split(len(whole))
    if split is not None:
        return Share(role, *split)
    streams = Streams(recipe.seed).child("partition")
    learns = role in (TRAINER, SOURCE)
    share, first = (settings.held_out, settings.held_out_first) if learns else (0.0, None)
    train: list[int] = []
    held_out: list[int] = []
    for person in np.unique(whole.labels):
        own = np.flatnonzero(whole.labels == person)
        if not first:
            streams.numpy("held-out", whole.names[person]).shuffle(own)
        count = held_out_count(len(own), share, first)
        held_out += sorted(own[:count].tolist())
        train += sorted(own[count:].tolist())
    if len(train) < 2:
        raise FedVisageError(f"{len(train)} training images in {folder.folder}; training needs at least 2")
    return Share(role, tuple(train), tuple(held_out))


def digest(faces: Faces, block: int = 256) -> str:
    """SHA-256 over the images in order, their labels, and the people's names: what public faces are called by."""
    found = hashlib.sha256()
    labels = faces.labels if faces.labels is not None else np.empty(0, np.int64)
    for name in faces.names:
        found.update(name.encode() + b"\0")
    found.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    for start in range(0, len(faces), block):
        pixels = faces.read(np.arange(start, min(start + block, len(faces))))
        found.update(str(pixels.shape[1:]).encode() if not start else b"")
        found.update(np.ascontiguousarray(pixels).tobytes())
    return found.hexdigest()


def _take(path: Path) -> int:
    """Hold a run's state alone: an earlier process of the party must be gone before this one works on it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if time.monotonic() > give_up:
                os.close(handle)
                raise FedVisageError("another process of this party still works on the run") from None
            time.sleep(0.1)
