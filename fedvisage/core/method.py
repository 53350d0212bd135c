"""The contract of a federated method: both halves of the algorithm, its phases, and what crosses in each.

A component brings phases. In each phase the server half plans (what goes down to whom), the party half answers
(what comes up), and the server half absorbs the answers. A method is the component that also makes the first
server state; weightings, the evaluation at parties and BatchNorm recalibration are components too, so they compose with
any method. For a phase called `train` the three parts are `plan_train`, `train` and `absorb_train`. Four
kinds of parts join in the training phases of any method: `Weighting`, `rule.Rule`, `Regulariser` and
`interceptor.Interceptor`.

State is plain data (see `codec.State`): checkpoints, the wire, resume and audits are generic.

A whole method, and one round of it as the core calls it. Each party moves the model by its number of images; the
server takes what the core has averaged:

    >>> import torch
    >>> from torch import nn
    >>> from fedvisage.core.assembly import Assembly
    >>> from fedvisage.core.sealing import lend
    >>> class Drift(Method):
    ...     def phases(self):
    ...         groups = {BACKBONE: "all"}, {BACKBONE: "weighted_sum"}
    ...         return (Phase("train", "round", down=groups[0], up=groups[1], reports=("samples",), trains=True),)
    ...     def plan_train(self, server, cohort, context):
    ...         return broadcast(server, (BACKBONE,), cohort)
    ...     def train(self, party, parcel):
    ...         model = party.load(parcel)
    ...         model.weight.data += len(party.faces.train)
    ...         return party.answer(BACKBONE, samples=len(party.faces.train))
    ...     def absorb_train(self, server, result, context):
    ...         return server | result.reduced
    >>> weights = Weights(nn.Linear(1, 1, bias=False))
    >>> context = Context(Streams(1), 1, 1, {}, {BACKBONE: {"weight": torch.zeros(1, 1)}, BUFFERS: {}}, 1)
    >>> drift = Assembly([Drift()])
    >>> server, phase = drift.start(context), drift.phases["train"]
    >>> answers = {}
    >>> for name, parcel in drift.plan(phase, server, ["ann", "bob"], context).items():
    ...     faces = type("Faces", (), {"train": [0, 1, 2] if name == "ann" else [3]})
    ...     party = Party(name, TRAINER, 1, faces, {}, weights, Streams(1, name))
    ...     answers[name] = drift.local(phase, party, lend(parcel))
    >>> [(name, float(answer[BACKBONE]["weight"])) for name, answer in answers.items()]
    [('ann', 3.0), ('bob', 1.0)]
    >>> mean = {BACKBONE: {"weight": sum(answer[BACKBONE]["weight"] for answer in answers.values()) / 2}}
    >>> result = Result(mean, {}, {}, {"ann": 0.5, "bob": 0.5}, {})
    >>> float(drift.absorb(phase, server, result, context)[BACKBONE]["weight"])
    2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.flat import Layout, layout
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel, Tensors
from fedvisage.core.phase import LEARNERS, SOURCE, TRAINER, Phase
from fedvisage.core.randomness import Streams
from fedvisage.core.registry import Registry
from fedvisage.core.sealing import Answer, Room, sealed, to_load
from fedvisage.core.weights import Weights


class Images(Protocol):
    """Face images with the labels a party may train on (none where it has no labels)."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Class of each image, 0 to classes - 1 (N,), or None."""
        ...

    @property
    def classes(self) -> int:
        """Number of classes."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each class's person, nobody without labels."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images (n, H, W, 3) RGB."""
        ...


class PartyFaces(Protocol):
    """All images a party can reach."""

    @property
    def train(self) -> Images:
        """What it trains on."""
        ...

    @property
    def held_out(self) -> Images | None:
        """Images of the same people that nobody trains on, for the party's own evaluation."""
        ...

    @property
    def public(self) -> Images | None:
        """Public people, where the method needs them at parties."""
        ...

    @property
    def unlabelled(self) -> Images | None:
        """Images without labels beside those it trains on, where a method pools images."""
        ...


Value = TypeVar("Value")
Rates = Callable[[int], float]
"""The learning rate of each round (1 is the first), by the run's one schedule."""


def no_rates(round: int) -> float:
    """What stands where a run has no schedule."""
    raise FedVisageError("there is no learning rate here: nothing was said of a schedule")


@dataclass
class Party:
    """What a method's party half works with: its faces, its private state, the process's one model, its streams."""

    name: str
    role: str
    round: int
    faces: PartyFaces
    state: State
    weights: Weights
    streams: Streams
    start_batchnorm: Tensors = field(default_factory=dict)
    """BatchNorm of the run's start model: where a party that keeps its own begins."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """What `once` computed in this exchange; the host empties it between exchanges."""
    stepped: Any = None
    """What a step taken together with other parties gave this one, where the recipe asks for that."""
    rates: Rates = no_rates
    live: bool = False
    """Whether the core knows that nobody writes to the model after the answer, which then need not be copied."""
    room: Room = field(default_factory=Room)
    """Where the model's copy is put."""
    extra: Callable[[Party], dict[str, Tensors]] | None = None
    """What the core adds to the answer at the moment when it is made."""
    keep: Callable[[Party], None] | None = None
    """Puts what the core keeps of the trained model into the state, at the moment of the answer."""

    @property
    def rate(self) -> float:
        """The learning rate of this round: the server's `Context.rate` is the same."""
        return self.rates(self.round)

    def answer(self, *groups: str, tensors: Mapping[str, Tensors] | None = None, **statistics: float) -> Answer:
        """Make what leaves the party, sealed: groups of the model as it is now, other `tensors` by group, and numbers.

        Empty groups are left out. Nothing that is done to the model or to the tensors afterwards changes the answer.
        """
        for group in groups:
            if group not in (BACKBONE, BUFFERS):
                raise FedVisageError(f"'{group}' is no group of the network: give its tensors by name")
        if self.keep is not None:
            self.keep(self)
        own: dict[str, Tensors] = {group: getattr(self.weights, group) for group in groups}
        tensors = dict(tensors or {}) | (self.extra(self) if self.extra is not None else {})
        model = own if self.live else {group: self.room.copy(values) for group, values in own.items() if values}
        return Answer(self, model | sealed(tensors), statistics)

    def load(self, parcel: Parcel) -> Any:
        """Put the parcel's backbone and buffers (and this party's own BatchNorm, if it keeps one) into the model."""
        weights = self.weights
        weights.load(to_load(parcel, BACKBONE))
        weights.load(to_load(parcel, BUFFERS))
        if weights.local:
            weights.load(self.state.get("batchnorm") or self.start_batchnorm)
        return weights.model

    def once(self, key: Any, compute: Callable[[], Value]) -> Value:
        """Compute something that is equal for all parties of this process and exchange only once."""
        if key not in self.memo:
            self.memo[key] = compute()
        value: Value = self.memo[key]
        return value


@dataclass(frozen=True, slots=True)
class Joined:
    """What a party said when it joined; fixed from then on."""

    role: str
    samples: int
    classes: int
    """0 where the party has no labels."""


LONGEST_REASON = 300
"""Characters of a reason to end a run that are kept."""


@dataclass
class Context:
    """What the server half may use besides its state."""

    streams: Streams
    round: int
    rounds: int
    joined: Mapping[str, Joined]
    initial: State
    """Where the run starts: `backbone`, `buffers` and, after public pre-training, `class_embeddings.public`.

    For `start` only; in the rounds it is empty, and a method that needs something of it puts it into its state.
    """
    embedding_size: int
    repeat: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    """What the server half wants in the metrics of this exchange."""
    rates: Rates = no_rates
    ended: str = ""
    """Why the run ends with this round; empty while it goes on."""

    @property
    def rate(self) -> float:
        """The learning rate of this round: the parties' `Party.rate` is the same."""
        return self.rates(self.round)

    def end(self, reason: str) -> None:
        """End the run: what is left of this round and the phases of the end still run; the report shows the reason."""
        self.ended = " ".join(reason.split())[:LONGEST_REASON] or "no reason given"


@dataclass
class Result:
    """The accepted answers of one exchange, reduced as declared."""

    reduced: dict[str, Tensors]
    """Weighted means (`weighted_sum`, divided by the accepted weight) and plain means, by group."""
    individual: dict[str, Mapping[str, Tensors]]
    """Answers party by party, by group and party, for the groups declared so."""
    statistics: dict[str, dict[str, float]]
    weights: dict[str, float]
    """Share of each accepted party, summing to one."""
    absent: dict[str, str]
    """Parties whose answer was refused or never came, with the reason."""

    def average(self, name: str) -> float:
        """Weighted average of a number over the parties that reported it."""
        parties = [party for party, numbers in self.statistics.items() if name in numbers]
        total = math.fsum(self.weights[party] for party in parties)
        if total <= 0:
            return math.fsum(self.statistics[party][name] for party in parties) / len(parties)
        return math.fsum(self.weights[party] * self.statistics[party][name] for party in parties) / total


class Component(BaseModel):
    """Something that takes part in rounds; its fields are its hyper-parameters, validated from the recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def phases(self) -> tuple[Phase, ...]:
        """The phases this component brings, in the order they run."""
        return ()

    def plan(self, phase: Phase, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """What goes down, per party."""
        answer: dict[str, Parcel] = getattr(self, f"plan_{phase.name}")(server, cohort, context)
        return answer

    def local(self, phase: Phase, party: Party, parcel: Parcel) -> Answer:
        """What comes up, made by `party.answer`; runs at the party."""
        answer: Answer = getattr(self, phase.name)(party, parcel)
        return answer

    def absorb(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        """The server state after the accepted answers."""
        answer: State = getattr(self, f"absorb_{phase.name}")(server, result, context)
        return answer

    def start(self, context: Context) -> State:
        """What this component puts into the first server state."""
        return {}

    def local_steps(self, joined: Joined) -> int:
        """Local steps that a party with these counts takes in a training phase; the guard compares updates by them."""
        return 1

    def expect(self, phase: Phase, server: State, party: str, parcel: Parcel, context: Context) -> dict[str, Layout]:
        """Shapes and dtypes of the answer's groups: by default those that went down under the same name.

        An empty group is not expected, nor sent: a network without BatchNorm has no buffers.
        """
        shapes = {group: layout(parcel.get(group)) for group in phase.up}
        return {group: shape for group, shape in shapes.items() if shape}


class Regulariser(Component):
    """What the server does to the class embeddings of all parties' people after each round (see `core.rows`)."""

    def step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        """The rows (C, d) after the step, in the same order.

        `owner` (C,) numbers the parties by name. Rows of one person who is at several parties have one number in
        `person` (C,), which is None where nothing is known of that.
        """
        raise TypeError(f"{type(self).__name__} does not say what it does to class embeddings")


class Weighting(Component):
    """How much each party's answer counts; the federation normalises over the accepted answers."""

    individual: ClassVar[frozenset[str]] = frozenset()
    """Groups whose answers it needs one by one, besides their sum."""

    def weight(self, server: State, party: str, joined: Joined, statistics: Mapping[str, float]) -> float:
        """Weight of one answer, at least 0."""
        raise TypeError(f"{type(self).__name__} does not say how much an answer counts")

    def keep(self, phase: Phase, server: State, result: Result, context: Context) -> State:
        """The server state with what the weighting needs of a training phase's answers later on."""
        return server

    def most(self, joined: Collection[Joined]) -> float:
        """Largest weight that an answer may have among parties that joined with these counts."""
        return math.inf


class Method(Component):
    """A federated method. Subclasses register under a name in `METHODS`."""

    pools: ClassVar[bool] = False
    """Whether it breaks the constraint by pooling parties' images (upper bounds and comparators only)."""
    pools_without_labels: ClassVar[frozenset[str]] = frozenset()
    """Of the roles whose images it pools, those whose labels it does not see."""
    has_no_global_model: ClassVar[bool] = False
    """Whether only the parties' own models mean anything."""
    roles: ClassVar[frozenset[str]] = frozenset({TRAINER, SOURCE})
    """Who may be in a partition besides validators: everybody else would be left out, or could not train."""
    needs_mean: ClassVar[bool] = False
    """Whether its sums mean something else than an average of answers, so that no other aggregation rule will do."""
    default_weighting: ClassVar[str] = "samples"
    default_regulariser: ClassVar[str] = ""
    """The server regulariser that belongs to the method, if any."""
    summary: ClassVar[str] = ""
    """One line for listings."""

    def start(self, context: Context) -> State:
        """The first server state."""
        return {BACKBONE: context.initial[BACKBONE], BUFFERS: context.initial[BUFFERS]}

    @property
    def pooled_roles(self) -> frozenset[str]:
        """Whose images it pools, if it does."""
        return LEARNERS

    @property
    def needs_public_embeddings(self) -> bool:
        """Whether the run must bring class embeddings of public people, and public people's images to every party."""
        return False

    @property
    def keeps_class_embeddings(self) -> bool:
        """Whether parties keep the class embeddings of their own people, which a server regulariser can act on."""
        return False

    def personal(self, state: State) -> Tensors | None:
        """A party's own model, if the method gives it one: all tensors of the network, and of a personal last layer.

        That layer is `transformation.weight` and `transformation.bias` (see `models.personalised`).
        """
        return None


METHODS: Registry[type[Method]] = Registry("method")
REGULARISERS: Registry[type[Regulariser]] = Registry("regulariser")
WEIGHTINGS: Registry[type[Weighting]] = Registry("weighting")


def broadcast(server: State, groups: Iterable[str], cohort: Sequence[str]) -> dict[str, Parcel]:
    """The same groups of the server state to everybody, without copies."""
    shared = {group: server[group] for group in groups if server[group]}
    return {party: Parcel(dict(shared)) for party in cohort}
