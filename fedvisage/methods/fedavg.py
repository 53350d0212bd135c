"""FedAvg and FedPE: averaging backbones of parties that train on their own people.

FedAvg (McMahan et al., AISTATS 2017): in each round every party trains the global model on its own data and the server
averages the results in proportion to the parties' images. For face recognition the class embeddings, one vector per
person, are the question. The papers use the name FedAvg for both answers:

- `classifier = "private"`: each party keeps the embeddings of its own people and trains against those only. This is
  FedPE (federated averaging with private embeddings; Niu & Deng, AAAI 2022). Nothing about a person leaves.
- `classifier = "shared"`: all embeddings of all parties' people go to every party and are averaged like the backbone.
  Every party then holds what amounts to a face template of every person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.config import Training
from fedvisage.core.codec import State
from fedvisage.core.method import METHODS, Context, Images, Joined, Method, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, EMBEDDINGS, PRIVATE_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.phase import Audience, Phase, Reduction
from fedvisage.core.randomness import Streams
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.together import Outcome, Stepped, step_together
from fedvisage.models import Backbone
from fedvisage.training import Batch, Correct, Fit, Loss, Trainer, count_steps, embed_images, loss_of

__all__ = ["EMBEDDINGS", "FedAvg", "FedPE", "mean_embeddings"]


@METHODS.register("fedavg")
class FedAvg(Method):
    """Federated averaging; see the module."""

    summary: ClassVar[str] = "average the backbones; class embeddings private (FedPE) or shared with everybody"

    backbone_momentum: ClassVar[float | None] = None
    """For methods that bring the backbone's momentum themselves, for plain SGD; None is the recipe's."""

    training: Training = Training()
    rounds: int = 1
    classifier: Literal["private", "shared"] = "private"
    embeddings_start: Literal["random", "mean"] = "random"
    """Private class embeddings start at random, or at the mean embedding of each person's images."""
    embeddings_deviation: Annotated[float, Field(gt=0)] = 0.1
    """Of class embeddings that start at random; the shorter they are, the sooner training turns them."""
    embeddings: Literal["trained", "fixed"] = "trained"
    """Whether the class embeddings are trained, or stay where they start."""

    def phases(self) -> tuple[Phase, ...]:
        """Join once, then train in every round."""
        model: dict[str, Audience] = {BACKBONE: "all", BUFFERS: "all"}
        down, up = dict(model), dict[str, Reduction]({BACKBONE: "weighted_sum", BUFFERS: "weighted_sum"})
        if self.classifier == "shared":
            down[PRIVATE_EMBEDDINGS] = "all"
            up[PRIVATE_EMBEDDINGS] = "weighted_sum"
        sends = ("class_offset",) if self.classifier == "shared" else ()
        first = model if self.starts_at_mean else {}
        return (
            Phase(
                "join", "start", sampled=False, down=first, reports=("samples",), may_report=("classes",), counts=True
            ),
            Phase("train", down=down, up=up, sends=sends, reports=("samples", "loss"), trains=True),
        )

    def _train_phase(self) -> Phase:
        return next(phase for phase in self.phases() if phase.name == "train")

    @property
    def keeps_class_embeddings(self) -> bool:
        """Where they are private and may move."""
        return self.classifier == "private" and self.embeddings == "trained"

    @property
    def keeps_momentum(self) -> bool:
        """Whether a party goes on with the momentum of its last round."""
        return self.training.optimiser_state == "keep"

    @property
    def starts_at_mean(self) -> bool:
        """Whether parties need the start model to make their first class embeddings."""
        return self.embeddings_start == "mean" and self.classifier == "private"

    def plan_join(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The start model, where the first class embeddings are means of its embeddings."""
        return broadcast(server, (BACKBONE, BUFFERS) if self.starts_at_mean else (), cohort)

    def join(self, party: Party, parcel: Parcel) -> Answer:
        """Make the private class embeddings and say how many images and people there are."""
        faces = party.faces.train
        if self.classifier == "private":
            size = party.weights.model.metadata.embedding_size
            if self.starts_at_mean:
                party.state[EMBEDDINGS] = mean_embeddings(party.load(parcel), faces)
            else:
                party.state[EMBEDDINGS] = self.random_embeddings(faces.classes, size, party.streams)
        counts: dict[str, Any] = {"samples": len(faces)}
        if faces.labels is not None:
            counts["classes"] = faces.classes
        return party.answer(**counts)

    def absorb_join(self, server: State, result: Result, context: Context) -> State:
        """With shared class embeddings: one matrix over all people, each party's rows following the one before."""
        if self.classifier == "private":
            return server
        offsets, total = {}, 0
        for party in sorted(context.joined):
            offsets[party], total = total, total + context.joined[party].classes
        everybody = self.random_embeddings(total, context.embedding_size, context.streams)
        return server | {"offsets": offsets, PRIVATE_EMBEDDINGS: {"all": everybody}}

    def plan_train(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The global model to everybody."""
        parcels = broadcast(server, (group for group in self._train_phase().down if group in server), cohort)
        if self.classifier == "shared":
            for party, parcel in parcels.items():
                parcel.statistics["class_offset"] = server["offsets"][party]
        return parcels

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """Local work from the global model; backbone and buffers come up."""
        shared = self.classifier == "shared"
        if isinstance(party.stepped, Stepped):
            embeddings, fit = party.stepped.embeddings, party.stepped.fit
        else:
            model = party.load(parcel)
            start = parcel[PRIVATE_EMBEDDINGS]["all"].clone() if shared else party.state[EMBEDDINGS]
            offset = int(parcel.statistics.get("class_offset", 0))
            embeddings, fit = self.fit(party, parcel, model, start, offset)
        if not shared:
            party.state[EMBEDDINGS] = embeddings
        sent = {PRIVATE_EMBEDDINGS: {"all": embeddings}} if shared else {}
        samples = len(party.faces.train)
        return party.answer(BACKBONE, BUFFERS, tensors=sent, samples=samples, loss=fit.loss)

    def fit(
        self, party: Party, parcel: Parcel, model: Backbone, embeddings: Tensor, offset: int = 0
    ) -> tuple[Tensor, Fit]:
        """Train backbone and class embeddings (C, d) on the party's images; the embeddings afterwards."""
        trainer = self.trainer(party, model, {EMBEDDINGS: self.tidy(embeddings)})
        if self.keeps_momentum:
            trainer.restore(party.state.get("optimiser", {}))
        loss = self.objective(party, trainer.others[EMBEDDINGS], offset)
        images = self.training_images(party)
        fit = trainer.fit(images, loss, party.streams.child("train"), self.correction(party, parcel))
        if self.keeps_momentum:
            party.state["optimiser"] = trainer.state()
        return self.tidy(trainer.values()[EMBEDDINGS]), fit

    def random_embeddings(self, classes: int, size: int, streams: Streams) -> Tensor:
        """Class embeddings (C, d) drawn at random."""
        return torch.randn(classes, size, generator=streams.torch("class embeddings")) * self.embeddings_deviation

    def tidy(self, embeddings: Tensor) -> Tensor:
        """What a method brings class embeddings (C, d) to before and after local work; here nothing."""
        return embeddings

    def embeddings_at_start(self, party: Party, parcel: Parcel) -> Tensor:
        """The private class embeddings that local work begins with: those that came down, or the party's own."""
        own: Tensor = (parcel.get(PRIVATE_EMBEDDINGS) or {"own": party.state[EMBEDDINGS]})["own"]
        return own

    def step_together(
        self, parties: Sequence[Party], parcels: Sequence[Parcel], weights: Sequence[float]
    ) -> list[Outcome]:
        """The single step of several parties at once; see `together`."""
        return step_together(self, parties, parcels, weights)

    def why_not_together(self, model: Backbone) -> str:
        """Why the parties' steps cannot be computed at once; empty where they can."""
        hooks = ("train", "fit", "trainer", "correction")
        own = [hook for hook in hooks if getattr(type(self), hook) is not getattr(FedAvg, hook)]
        norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
        mixes = any(p.requires_grad for norm in norms for p in norm.parameters())
        reasons = {
            f"its '{', '.join(own)}' is not that of plain averaging": bool(own),
            "shared class embeddings are changed by every party": self.classifier == "shared",
            "a party takes more than one step; set training.steps = 1": self.training.steps != 1,
            "the step is not that of SGD; set training.optimiser = 'sgd'": self.training.optimiser != "sgd",
            "a party goes on with its momentum; set training.optimiser_state = 'reset'": self.keeps_momentum,
            "BatchNorm mixes the images of a batch; set training.batchnorm = 'fixed'": (
                mixes and self.training.batchnorm == "batch"
            ),
            "reduced precision rounds otherwise; set training.precision = 'fp32'": self.training.precision != "fp32",
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def local_steps(self, joined: Joined) -> int:
        """Steps over the images that the party joined with."""
        return count_steps(joined.samples, self.training)

    def training_images(self, party: Party) -> Images:
        """What a party trains on."""
        return party.faces.train

    def trainer(self, party: Party, model: Backbone, others: Tensors) -> Trainer:
        """What takes the steps: by default the recipe's optimiser on everything, with the recipe's momentum."""
        fixed = () if self.embeddings == "trained" else (EMBEDDINGS,)
        return Trainer(model, others, self.training, party.rate, fixed=fixed, backbone_momentum=self.backbone_momentum)

    def objective(self, party: Party, embeddings: Tensor, offset: int) -> Loss:
        """The loss of a batch: the recipe's margin loss against the class embeddings."""
        criterion = loss_of(self.training)

        def loss(features: Tensor, batch: Batch) -> Tensor:
            return criterion(features, embeddings, batch.labels + offset)

        return loss

    def correction(self, party: Party, parcel: Parcel) -> Correct | None:
        """How this method changes gradients before each step; plain averaging does not."""
        return None

    def absorb_train(self, server: State, result: Result, context: Context) -> State:
        """The average becomes the global model."""
        return server | result.reduced


@METHODS.register("fedpe")
class FedPE(FedAvg):
    """FedAvg with private class embeddings, under the name the FedGC paper gives it."""

    summary: ClassVar[str] = "average the backbones; class embeddings stay private"

    classifier: Literal["private"] = "private"


def mean_embeddings(model: Backbone, faces: Images) -> Tensor:
    """Mean embedding of each person's images, normalised (C, d)."""
    assert faces.labels is not None
    embeddings = embed_images(model, faces, flip=False).astype(np.float64)
    sums = np.zeros((faces.classes, embeddings.shape[1]))
    np.add.at(sums, faces.labels, embeddings)
    return torch.from_numpy((sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32))
