"""Server regularisers: the class embeddings of all parties' people, moved apart by the server after each round.

A party that trains against its own people only has no reason to keep them away from the people of others. Each of these
components lets the class embeddings come up party by party, takes one plain step on all of them together (no momentum,
no weight decay, `strength` times the round's learning rate) and gives every party its own back. They compose with any
method whose parties keep class embeddings. The price is the same for all: the server sees every person's class
embedding, which is a face template in all but name.

- `gradient-correction`: FedGC's softmax regulariser (Niu & Deng, AAAI 2022, eq. 5);
- `cosine`: FedCos, the plain inner products it is compared with (ibid., Table 4);
- `spreadout`: the hinge on the distance of unit vectors (FedAwS, Yu et al., ICML 2020; FedFace, Aggarwal et al., 2021).

Embeddings of parties that do not take part in a round stay where the server left them, and count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.codec import State
from fedvisage.core.flat import Layout
from fedvisage.core.method import REGULARISERS, Context, Party, Regulariser, Result
from fedvisage.core.parcel import IDENTITY_TOKENS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.rows import OWN, where
from fedvisage.core.sealing import Answer
from fedvisage.losses import (
    ValueAndGradient,
    average_shared,
    cosine_regulariser_gradient,
    effective_rank,
    gradient_correction_gradient,
    loss_options,
    mined_spreadout_gradient,
    party_cosines,
    spreadout_gradient,
)
from fedvisage.losses._regularisers import ROWS, numbered, to_unit_
from fedvisage.losses.correction import CorrectionForm
from fedvisage.losses.spreadout import SpreadoutDistance


class Separation(Regulariser):
    """What the regularisers share: the step and its diagnostics; subclasses give value and gradient."""

    training: Training = Training()
    strength: Annotated[float, Field(ge=0)]
    """What multiplies the learning rate in the server's step."""
    shared_identities: bool = False
    """Whether people may be at several parties; parties then send keyed hashes of their people's names, once."""
    key: str = ""
    """Of those hashes. Who knows the recipe knows it: server and parties can test a name that they guess."""
    diagnostics_every: Annotated[int, Field(ge=0)] = 1
    """Rounds between measurements of the cosines across and within parties; 0 for none."""

    @model_validator(mode="after")
    def _hashes_need_a_key(self) -> Self:
        if self.shared_identities and not self.key:
            raise ValueError("shared_identities needs a key, a word of this run's own that names are hashed with")
        return self

    def regulariser(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> ValueAndGradient:
        """Value and gradient of the regulariser at all class embeddings (C, d) of parties `owner` (C,)."""
        raise TypeError(f"{type(self).__name__} does not say what it minimises")

    def separate(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None, rate: float) -> tuple[float, Tensor]:
        """The regulariser before the step, and the class embeddings (C, d) after it."""
        value, gradient = self.regulariser(embeddings, owner, identity)
        return value, torch.add(embeddings, gradient, alpha=-self.strength * rate, out=gradient)

    def phases(self) -> tuple[Phase, ...]:
        """Where people may be at several parties: who is where, once."""
        if not self.shared_identities:
            return ()
        return (Phase("identify", "start", sampled=False, up={IDENTITY_TOKENS: "individual"}, keeps_state=False),)

    def plan_identify(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """Nothing goes down."""
        return {party: Parcel() for party in cohort}

    def identify(self, party: Party, parcel: Parcel) -> Answer:
        """A token per person, the same at every party that knows the person by the same name."""
        tokens = [identity_token(self.key, name) for name in party.faces.train.names]
        return party.answer(tensors={IDENTITY_TOKENS: {OWN: torch.tensor(tokens, dtype=torch.int64)}})

    def absorb_identify(self, server: State, result: Result, context: Context) -> State:
        """Keep the tokens in the order of the class embeddings; a party that sent none, or one twice, shares nobody."""
        places, answers = where(context.joined), result.individual[IDENTITY_TOKENS]
        tokens = torch.arange(sum(joined.classes for joined in context.joined.values())).neg_().sub_(1)
        for party, place in places.items():
            own = answers[party][OWN] if party in answers else torch.empty(0)
            if len(own) == place.stop - place.start and len(set(own.tolist())) == len(own):
                tokens[place] = own
        return server | {IDENTITY_TOKENS: tokens}

    def expect(self, phase: Phase, server: State, party: str, parcel: Parcel, context: Context) -> dict[str, Layout]:
        """As many tokens as people."""
        return {IDENTITY_TOKENS: {OWN: ((context.joined[party].classes,), torch.int64)}}

    def step(self, rows: Tensor, owner: Tensor, person: Tensor | None, context: Context) -> Tensor:
        """The embeddings (C, d) after the step; what it did goes into the metrics.

        A person at several parties has one embedding: the mean of the copies, before the step and after it.
        """
        start = rows if person is None else average_shared(rows, person)
        value, after = self.separate(start, owner, person, context.rate)
        after = after if person is None else average_shared(after, person)
        size = float(torch.linalg.vector_norm(rows))
        moved = apart(after, rows) / size if size else 0.0
        numbers = {"regulariser": value, "relative_step": moved}
        every = self.diagnostics_every
        if every and (context.round % every == 0 or context.round == context.rounds):
            cosines = party_cosines(after, owner)
            numbers |= {
                "across_cosine": cosines.across.mean,
                "across_cosine_p99": cosines.across.quantile,
                "within_cosine": cosines.within.mean,
                "effective_rank": effective_rank(after),
            }
        context.numbers |= {name: number for name, number in numbers.items() if math.isfinite(number)}
        return after


def apart(one: Tensor, other: Tensor) -> float:
    """Length of the difference of two (C, d), a few rows at a time."""
    parts = zip(torch.split(one, ROWS), torch.split(other, ROWS), strict=True)
    return math.hypot(*(float(torch.linalg.vector_norm(a - b)) for a, b in parts))


def identity_token(key: str, name: str) -> int:
    """63 bits that stand for a name under a key."""
    digest = blake2b(name.encode(), digest_size=8, key=blake2b(key.encode(), digest_size=32).digest()).digest()
    return int.from_bytes(digest, "little") >> 1


FORM_OF: Mapping[str, CorrectionForm] = {
    "softmax": "softmax",
    "normalised-softmax": "cosface",
    "cosface": "cosface",
    "arcface": "arcface",
}
"""The form of gradient correction that goes with a loss; without a margin CosFace is the normalised softmax."""


@REGULARISERS.register("gradient-correction")
class GradientCorrection(Separation):
    """FedGC's correction; `strength` is the paper's λ."""

    strength: Annotated[float, Field(ge=0)] = 20.0
    form: Literal["loss", "softmax", "cosface", "arcface"] = "loss"
    """The regulariser that goes with the parties' loss (with its scale and margin), or one of the three."""

    @model_validator(mode="after")
    def _loss_has_a_form(self) -> Self:
        work = self.training
        more = dict(work.loss_options) | ({"centre": work.centre} if work.centre != "none" else {})
        if self.form == "loss" and (work.loss not in FORM_OF or more):
            which = ", ".join((f"'{work.loss}'", *(f"{name} = {value!r}" for name, value in more.items())))
            known = ", ".join(f"'{form}'" for form in dict.fromkeys(FORM_OF.values()))
            raise ValueError(f"no form of gradient correction goes with the parties' loss {which}: set form to {known}")
        return self

    def regulariser(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> ValueAndGradient:
        """Eq. 5, summed over all people."""
        form, scale, margin = self._form()
        return gradient_correction_gradient(embeddings, owner, identity, form=form, scale=scale, margin=margin)

    def _form(self) -> tuple[CorrectionForm, float | None, float | None]:
        work = self.training
        form = FORM_OF[work.loss] if self.form == "loss" else self.form
        if form == "softmax" or self.form not in ("loss", work.loss):
            return form, None, None
        defaults = loss_options(work.loss)
        scale = work.scale or float(str(defaults["scale"]))
        margin = work.margin if work.margin is not None else float(str(defaults.get("margin", 0.0)))
        return form, scale, margin


@REGULARISERS.register("cosine")
class Cosine(Separation):
    """FedCos: inner products of people at different parties are made smaller."""

    strength: Annotated[float, Field(ge=0)] = 20.0
    normalised: bool = False
    """Cosines instead of the paper's raw inner products."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over all people, or the paper's sum, which grows without bound from λη = 2 / people on."""

    def regulariser(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> ValueAndGradient:
        """All inner products across parties; a person is moved by the others' sum, or by that over all people."""
        found = cosine_regulariser_gradient(embeddings, owner, identity, normalised=self.normalised)
        if self.reduction == "sum":
            return found
        return ValueAndGradient(found.value / len(embeddings), found.gradient.div_(len(embeddings)))


class Reading(NamedTuple):
    """A way to understand FedFace's server step."""

    size: Callable[[float, float], float]
    """Of a step, from `strength` and the round's learning rate."""
    reduction: Literal["sum", "mean"] = "sum"
    steps: int = 1
    momentum: float = 0.0
    margin: float | None = None


READINGS: Mapping[str, Reading] = {
    "summed": Reading(lambda strength, rate: strength * rate),
    "without-rate": Reading(lambda strength, rate: strength),
    "released-code": Reading(lambda strength, rate: 0.01, "mean", 10, 0.9),
    "fedfr-code": Reading(lambda strength, rate: 0.01, "mean", 20, 0.9, 0.6),
}


@REGULARISERS.register("spreadout")
class Spreadout(Separation):
    """Spreadout; `strength` is the papers' λ. Embeddings go back at unit length.

    FedFace's text and the published codes differ in the step. `summed` steps by λ times the learning rate down the sum
    over ordered pairs, as FedAwS; `without-rate` by λ alone, as FedFace prints it; `released-code` takes ten steps with
    momentum down the mean, `fedfr-code` (FedFR's FedFace baseline, margin 0.6) twenty: both hardly move anything.
    """

    strength: Annotated[float, Field(ge=0)] = 10.0
    margin: Annotated[float, Field(ge=0)] = 0.7
    distance: SpreadoutDistance = "cosine"
    reading: Literal["summed", "without-rate", "released-code", "fedfr-code"] = "summed"
    nearest: Annotated[int, Field(ge=1)] | None = None
    """Push each person only from so many others, the closest (FedAwS's mining); from everybody within the margin."""

    @model_validator(mode="after")
    def _mines_sums(self) -> Self:
        if self.nearest is not None and READINGS[self.reading].reduction != "sum":
            raise ValueError(f"nearest goes with readings that take a sum, not with '{self.reading}'")
        return self

    def regulariser(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None) -> ValueAndGradient:
        """The squared hinge over all ordered pairs of people; who is at several parties counts once."""
        reading = READINGS[self.reading]
        margin = self.margin if reading.margin is None else reading.margin

        def of(people: Tensor) -> ValueAndGradient:
            if self.nearest is not None:
                return mined_spreadout_gradient(people, self.nearest, margin, self.distance)
            return spreadout_gradient(people, margin, self.distance, reduction=reading.reduction)

        if identity is None:
            return of(embeddings)
        person = numbered(identity)
        people = embeddings.new_empty(int(person.max()) + 1, embeddings.shape[1]).index_copy(0, person, embeddings)
        value, gradient = of(people)
        return ValueAndGradient(value, gradient[person])

    def separate(self, embeddings: Tensor, owner: Tensor, identity: Tensor | None, rate: float) -> tuple[float, Tensor]:
        """The reading's steps, and then unit length."""
        reading = READINGS[self.reading]
        first, velocity = self.regulariser(embeddings, owner, identity)
        for step in range(1, reading.steps + 1):
            if step > 1:
                velocity.mul_(reading.momentum).add_(self.regulariser(embeddings, owner, identity).gradient)
            room = velocity if step == reading.steps else None
            embeddings = torch.add(embeddings, velocity, alpha=-reading.size(self.strength, rate), out=room)
        return first, to_unit_(embeddings)
