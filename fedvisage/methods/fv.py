"""FV: federated validation (Bai et al., "Federated Face Recognition", arXiv 2105.02501), a weighting for any method.

How much each trainer counts is searched for while training: validators, parties with private pairs of faces, score
mixtures of the trainers' last backbones. In a search the server tries T weightings, the current one first and the
others uniform on the simplex; each candidate (eq. 7, with BatchNorm statistics mixed by the same weights) goes to every
validator, and only its score comes back, an accuracy in percent. Scores are normalised per validator (eq. 8 to 11), the
candidate with the largest sum is chosen (eq. 12), and the weighting moves towards it by phi (eq. 13).

The order of a round: train, absorb with the current weighting, search; the new weighting counts from the next round.
With `overlap` validators search among round r's backbones while trainers are busy with round r + 1, as in the paper;
that round is absorbed with the weighting it began with, and the new one counts from round r + 2. With some trainers
absent the search shares out, among those present, what they had together. `map_every` asks for the whole landscape
besides: all weightings of three trainers on a grid (the paper's Figure 3).

The server holds the trainers' backbones and one candidate, whose memory the next one overwrites: an exchange is over,
and every transport has read or copied what it sent, before the next is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import layout, weighted
from fedvisage.core.method import WEIGHTINGS, Context, Joined, Party, Result, Weighting, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel, Tensors
from fedvisage.core.phase import LEARNERS, VALIDATOR, Audience, Phase
from fedvisage.core.sealing import Answer
from fedvisage.evaluation import kfold_accuracy, make_pairs
from fedvisage.training import embed_images
from fedvisage.training.views import Mixture, Part

FV = "fv"
Scores = NDArray[np.float64]
"""Scores in percent (T, V): a row per candidate, a column per validator."""


@dataclass
class Room:
    """Memory of one candidate by group; it is this process's own, and tells no two weightings apart."""

    groups: dict[str, Tensors] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Room], tuple[()]]:
        return Room, ()  # a worker process gets none

    def mix(self, group: str, terms: Sequence[tuple[float, Tensors]]) -> Tensors:
        """The weighted sum of the terms, where the last candidate's group was."""
        old = self.groups.get(group)
        fits = old is not None and layout(old) == layout(terms[0][1])
        self.groups[group] = weighted(*terms, into=old if fits else None)
        return self.groups[group]


@WEIGHTINGS.register("fv")
class FederatedValidation(Weighting):
    """Weights searched for with the validators' help; see the module."""

    individual: ClassVar[frozenset[str]] = frozenset({BACKBONE, BUFFERS})

    start_weights: Literal["equal", "samples"] = "equal"
    candidates: Annotated[int, Field(ge=1)] = 3
    """T in the paper, the current weighting included."""
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Phi."""
    norm: Literal["local", "moving", "none"] = "local"
    epsilon: Annotated[float, Field(gt=0)] = 0.001
    moving_rate: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Gamma of the moving norm."""
    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between searches."""
    searches: Annotated[int, Field(ge=1)] = 1
    """Searches in such a round, one after the other."""
    overlap: bool = False
    """Whether a round's searches run while trainers are at the next round, and count one round later."""
    pairs: Annotated[int, Field(ge=2)] = 600
    """Pairs each validator draws among its own people, half of them genuine."""
    folds: Annotated[int, Field(ge=2)] = 5
    map_every: Annotated[int, Field(ge=0)] = 0
    """Rounds between maps of the scores of all weightings; 0 for none, otherwise there must be three trainers."""
    map_steps: Annotated[int, Field(ge=1, le=50)] = 10
    """Steps from one corner of the map to another."""
    _room: Room = PrivateAttr(default_factory=Room)

    def phases(self) -> tuple[Phase, ...]:
        """Validators enrol once; after each training that is due, one exchange per candidate."""
        model: dict[str, Audience] = {BACKBONE: "all", BUFFERS: "all"}
        validators = frozenset({VALIDATOR})
        enrol = Phase(
            "enrol",
            "start",
            roles=validators,
            sampled=False,
            reports=("samples",),
            may_report=("classes",),
            counts=True,
        )
        scoring = {"roles": validators, "sampled": False, "down": model, "reports": ("score",), "keeps_state": False}
        times = {"every": self.every, "repeats": self.candidates * self.searches}
        validate = Phase("validate", beside="train" if self.overlap else "", **times, **scoring)  # type: ignore[arg-type]
        if not self.map_every:
            return enrol, validate
        grid = (self.map_steps + 1) * (self.map_steps + 2) // 2
        scoring |= {"reports": (), "may_report": ("score",)}
        return enrol, validate, Phase("survey", every=self.map_every, repeats=grid, **scoring)  # type: ignore[arg-type]

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """The trainer's present weight; validators count the same."""
        weights: Mapping[str, float] = server[FV]["weights"]
        return weights.get(party, 1.0)

    def start(self, context: Context) -> State:
        """Nobody is known yet."""
        return {FV: {"weights": {}, "scores": [], "norms": {}, "backbones": {}, "buffers": {}}}

    def plan_enrol(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """Nothing goes down."""
        return {party: Parcel() for party in cohort}

    def enrol(self, party: Party, parcel: Parcel) -> Answer:
        """Draw the validator's pairs, which stay the same for the whole run and never leave."""
        faces = party.faces.train
        if faces.labels is None:
            raise FedVisageError(f"validator '{party.name}' has no labels to draw pairs by")
        left, right, same = make_pairs(faces.labels, self.pairs, party.streams.numpy("validation pairs"), self.folds)
        party.state["pairs"] = {"left": torch.from_numpy(left), "right": torch.from_numpy(right)}
        party.state["pairs"]["same"] = torch.from_numpy(same)
        return party.answer(samples=len(faces), classes=faces.classes)

    def absorb_enrol(self, server: State, result: Result, context: Context) -> State:
        """The trainers have joined before: they get their first weights."""
        counts = {party: j.samples for party, j in context.joined.items() if j.role in LEARNERS}
        if self.map_every and len(counts) != 3:
            raise FedVisageError(
                f"[weighting] map_every draws a triangle of three trainers, but there are {len(counts)}"
            )
        shares = counts if self.start_weights == "samples" else dict.fromkeys(counts, 1)
        total = sum(shares.values())
        weights = {party: shares[party] / total for party in sorted(shares)}
        return server | {FV: {**server[FV], "weights": weights}}

    def keep(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        """Keep the trainers' backbones until the searches among them are over: once each, not per candidate."""
        if not any(self.due(name, context) for name in ("validate", "survey")):
            return server
        kept = {
            name: dict(result.individual.get(group, {}))
            for name, group in (("backbones", BACKBONE), ("buffers", BUFFERS))
        }
        return server | {FV: {**server[FV], **kept, "scores": []}}

    def due(self, phase: str, context: Context) -> bool:
        """Whether this round's backbones are searched (`validate`) or mapped (`survey`)."""
        every = {"validate": self.every, "survey": self.map_every}[phase]
        return bool(every) and (context.round % every == 0 or context.round == context.rounds)

    def last_need(self, context: Context) -> str:
        """The phase after which this round's backbones can go: a search that waits for the next round, else the map."""
        waits = self.overlap and context.round < context.rounds and self.due("validate", context)
        return "survey" if self.due("survey", context) and not waits else "validate"

    def plan_validate(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The next candidate, the same to every validator."""
        weights = self.tried(server, context)[context.repeat % self.candidates]
        return self.send(server, weights, cohort)

    def send(self, server: State, weights: Mapping[str, float], cohort: Sequence[str]) -> dict[str, Parcel]:
        """Eq. 7: the trainers' backbones, and their BatchNorm statistics, mixed where the last candidate was."""
        state = server[FV]
        mixed = {
            group: self._room.mix(group, [(weights[party], kept[party]) for party in weights])
            if kept and any(kept.values())
            else {}
            for group, kept in ((BACKBONE, state["backbones"]), (BUFFERS, state["buffers"]))
        }
        return broadcast(mixed, (BACKBONE, BUFFERS), cohort)

    def tried(self, server: State, context: Context) -> list[dict[str, float]]:
        """The candidates of the present search: the weighting just used, then uniform draws from the simplex."""
        state = server[FV]
        parties = sorted(state["backbones"])
        current = np.array([state["weights"][party] for party in parties])
        rng = context.streams.numpy("candidate weightings", context.round, context.repeat // self.candidates)
        drawn = rng.dirichlet(np.ones(len(parties)), self.candidates - 1)
        rows = [current / current.sum(), *drawn]
        return [dict(zip(parties, map(float, row), strict=True)) for row in rows]

    def validate(self, party: Party, parcel: Parcel) -> Answer:  # type: ignore[override]
        """The candidate's k-fold accuracy on the validator's pairs, in percent."""
        return party.answer(score=pair_accuracy(party, parcel, self.folds))

    def absorb_validate(self, server: State, result: Result, context: Context) -> State:
        """Collect scores; after the last candidate of a search choose one and move towards it."""
        state = dict(server[FV])
        state["scores"] = [*state["scores"], {party: numbers["score"] for party, numbers in result.statistics.items()}]
        if context.repeat % self.candidates == self.candidates - 1:
            tried = self.tried(server, context)
            validators, scores = answered_all(state["scores"])
            divisors, state["norms"] = self.divisors(validators, scores, state["norms"])
            best = choose(scores / divisors)
            state["weights"] = move(state["weights"], tried[best], self.smoothing)
            state["scores"] = []
            context.numbers["chosen"] = float(best)
            if validators:
                context.numbers |= {f"candidate_{n}": float(row.mean()) for n, row in enumerate(scores, 1)}
            context.numbers |= {f"weight/{party}": weight for party, weight in state["weights"].items()}
        last = context.repeat == self.candidates * self.searches - 1
        return server | {FV: self.forget(state) if last and self.last_need(context) == "validate" else state}

    def divisors(
        self, validators: Sequence[str], scores: Scores, norms: Mapping[str, Sequence[float]]
    ) -> tuple[Scores, dict[str, Sequence[float]]]:
        """What each validator's scores are divided by (V,), and the moving means and variances from now on."""
        if self.norm == "none":
            return np.ones(len(validators)), {}
        if self.norm == "local":
            return np.sqrt(scores.var(axis=0) + self.epsilon), {}
        moved = {v: moving(norms.get(v), scores[:, n], self.moving_rate) for n, v in enumerate(validators)}
        return np.sqrt(np.array([moved[v][1] for v in validators]) + self.epsilon), {**norms, **moved}

    def plan_survey(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The next weighting of the grid; nothing in a round in which not all three trainers were counted."""
        if len(server[FV]["backbones"]) != 3:
            return {party: Parcel() for party in cohort}
        return self.send(server, self.surveyed(server, context), cohort)

    def surveyed(self, server: State, context: Context) -> dict[str, float]:
        """The grid's weighting that is asked about now."""
        return dict(zip(sorted(server[FV]["backbones"]), grid(self.map_steps)[context.repeat], strict=True))

    def survey(self, party: Party, parcel: Parcel) -> Answer:
        """As for a candidate."""
        return self.validate(party, parcel) if parcel.tensors else party.answer()

    def absorb_survey(self, server: State, result: Result, context: Context) -> State:
        """The weighting beside its score in the metrics; nothing is learnt from it."""
        if result.statistics and len(server[FV]["backbones"]) == 3:
            context.numbers |= {f"weight/{party}": weight for party, weight in self.surveyed(server, context).items()}
        last = context.repeat == len(grid(self.map_steps)) - 1
        return server | {FV: self.forget(server[FV])} if last and self.last_need(context) == "survey" else server

    def forget(self, state: State) -> State:
        """The backbones and the candidate's memory have done their work."""
        self._room.groups.clear()
        return {**state, "backbones": {}, "buffers": {}}


def pair_accuracy(party: Party, parcel: Parcel, folds: int) -> float:
    """K-fold accuracy in percent of a candidate on the party's pairs; each of their images is embedded once."""
    model, pairs, faces = party.load(parcel), party.state["pairs"], party.faces.train
    shown, places = np.unique(torch.stack([pairs["left"], pairs["right"]]).numpy(), return_inverse=True)
    left, right = places.reshape(2, -1)
    labels = np.zeros(len(shown), np.int64)  # of no use to an embedding
    embeddings = embed_images(model, Mixture([Part(faces, shown, labels)], 1), flip=False)
    return 100 * kfold_accuracy(embeddings[left], embeddings[right], pairs["same"].numpy(), folds).mean


def answered_all(scores: Sequence[Mapping[str, float]]) -> tuple[list[str], Scores]:
    """The validators that scored every candidate, and their scores."""
    validators = sorted(set.intersection(*(set(row) for row in scores)))
    return validators, np.array([[row[v] for v in validators] for row in scores]).reshape(len(scores), len(validators))


def choose(scores: Scores) -> int:
    """Eq. 12: the first candidate with the largest sum over validators, so that a tie leaves the weighting alone."""
    return int(np.argmax(scores.sum(axis=1)))


def moving(last: Sequence[float] | None, scores: Scores, rate: float) -> list[float]:
    """Eq. 9 and 10: a validator's moving mean and variance; they start at its first search's own."""
    if last is None:
        return [float(scores.mean()), float(scores.var())]
    mean = (1 - rate) * last[0] + rate * float(scores.mean())
    return [mean, (1 - rate) * last[1] + rate * float(np.square(scores - mean).mean())]


def move(weights: Mapping[str, float], chosen: Mapping[str, float], smoothing: float) -> dict[str, float]:
    """Eq. 13 among the trainers that were there; the others keep theirs, and the sum stays what it was."""
    together = sum(weights[party] for party in chosen)
    moved = {party: (1 - smoothing) * weights[party] + smoothing * together * chosen[party] for party in chosen}
    return {**weights, **moved}


def grid(steps: int) -> list[tuple[float, float, float]]:
    """All weightings of three trainers in whole multiples of 1 / steps."""
    return [
        (first / steps, second / steps, (steps - first - second) / steps)
        for first in range(steps + 1)
        for second in range(steps + 1 - first)
    ]
