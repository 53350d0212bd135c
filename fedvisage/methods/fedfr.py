"""FedFR: a better generic model and a personal one for every party (Liu, Wang, Chien & Lai, AAAI 2022).

Every party holds, besides its own people, the public people that the start model was trained on. In a round it

- picks the public images whose largest cosine to any of its own images exceeds a threshold under the round's global
  model (hard negatives, `hard_public_images`);
- trains on both with CosFace over [its own, the public] class embeddings (eq. 3);
- keeps features near the global model's and away from its own last model's (eq. 5, `losses.model_contrastive`). Before
  it has trained once its last model is the global one: the term is log 2 and its gradient zero;
- trains a personal branch beside it: a linear transformation of the feature and one binary classifier per own person,
  in which public images are nobody (eq. 6, `losses.binary_margin`). Its gradient reaches the backbone.

Backbone and public class embeddings come up and are averaged (eq. 2 and 4); what belongs to the party's people, the
branch and the last local model stay. The personal model is the local one, before averaging, with the transformation.

Every row of Tables 1 to 3 is a setting: `public = "none"`, `contrastive = 0` and `branch = "none"` switch the modules
off, `branch = "cosface"` and `second_stage` are Table 2's alternatives, and evaluation at the parties scores the
global, the local and the personal model (Table 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedvisage.core.assembly import with_groups
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, Context, Images, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, PUBLIC_EMBEDDINGS, Parcel, Tensors
from fedvisage.core.phase import MOST_IMAGES, Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.losses import binary_margin, binary_margin_bias, cosface, loss_options, model_contrastive, unit
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg
from fedvisage.models import Backbone
from fedvisage.training import Batch, Loss, embed_images, hard_negatives, hardest_negatives, loss_of
from fedvisage.training.views import Mixture, Part

LOCAL, BRANCH, ADAPTED = "local_model", "branch", "adapted_model"
PUBLIC = "public"
WEIGHT, BIAS, CLASSIFIERS, OFFSETS = "transformation.weight", "transformation.bias", "classifiers", "offsets"
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


@METHODS.register("fedfr")
class FedFR(FedAvg):
    """Public hard negatives, contrastive regularisation and a personal branch."""

    summary: ClassVar[str] = "public people at every party hold the generic model; a personal model for each party"

    classifier: Literal["private"] = "private"
    public: Literal["hard", "all", "none"] = "hard"
    """Which public images a party trains on; with none the public class embeddings are left out, too."""
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.4
    """The cosine above which a public image is a hard negative."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Beyond the paper: the share of the public images, those with the largest cosines, in place of the threshold."""
    contrastive: NotNegative = 5.0
    temperature: Positive = 0.5
    branch: Literal["binary", "cosface", "none"] = "binary"
    branch_weight: Positive = 10.0
    branch_scale: Positive = 30.0
    branch_margin: Annotated[float, Field(ge=0, le=2)] = 0.4
    branch_balance: Annotated[float, Field(gt=0, lt=1)] = 0.7
    branch_power: Annotated[float, Field(ge=1)] = 3.0
    branch_bias: Literal["zero", "balanced"] = "zero"
    """Where the classifiers' offsets start: as in the authors' code, or where both classes pull alike."""
    branch_reaches_backbone: bool = True
    second_stage: Literal["none", "fine-tune", "distil"] = "none"
    """After the last round every party adapts the global model by itself (Table 2)."""
    second_stage_epochs: Annotated[int, Field(ge=1)] = 4
    distil_weight: Positive = 1.0
    distil_temperature: Positive = 1.0

    @property
    def needs_public_embeddings(self) -> bool:
        """Unless parties train on their own people only."""
        return self.public != "none"

    @property
    def keeps_class_embeddings(self) -> bool:
        """Unless a second stage goes on with them where no server can reach."""
        return super().keeps_class_embeddings and self.second_stage == "none"

    def phases(self) -> tuple[Phase, ...]:
        """As in FedAvg, with public class embeddings both ways; and the second stage, if any."""
        join, train = super().phases()
        if self.needs_public_embeddings:
            train = with_groups(train, down={PUBLIC_EMBEDDINGS: "all"}, up={PUBLIC_EMBEDDINGS: "weighted_sum"})
            train = with_groups(train, reports=("hard_negatives",), largest={"hard_negatives": MOST_IMAGES})
        if self.second_stage == "none":
            return join, train
        return join, train, Phase("adapt", "end", sampled=False, down=dict(train.down), reports=("loss",))

    def start(self, context: Context) -> State:
        """The start model and the public class embeddings it was trained with."""
        server = super().start(context)
        if not self.needs_public_embeddings:
            return server
        public = context.initial.get(PUBLIC_EMBEDDINGS)
        if not public:
            raise FedVisageError("fedfr needs public people: set partition.public, or method.public = 'none'")
        return server | {PUBLIC_EMBEDDINGS: public}

    def join(self, party: Party, parcel: Parcel) -> Answer:
        """Class embeddings as in FedAvg; the branch begins as the identity with classifiers at the embeddings."""
        answer = super().join(party, parcel)
        if self.branch != "none":
            embeddings: Tensor = party.state[EMBEDDINGS]
            classes, size = embeddings.shape
            scale, margin, balance = self.branch_scale, self.branch_margin, self.branch_balance
            offset = 0.0
            if self.branch_bias == "balanced" and classes > 1:
                offset = binary_margin_bias(classes, scale, margin, balance, self.branch_power)
            party.state[BRANCH] = {WEIGHT: torch.eye(size), BIAS: torch.zeros(size), CLASSIFIERS: embeddings.clone()}
            if self.branch == "binary":
                party.state[BRANCH][OFFSETS] = torch.full((classes,), offset)
        return answer

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """A round of local work; backbone and public class embeddings come up."""
        model = party.load(parcel)
        images, hard = self.images(party, model)
        party.memo["training images", party.name] = images
        trainer = self.trainer(party, model, self._others(party, parcel))
        if self.keeps_momentum:
            trainer.restore(party.state.get("optimiser", {}))
        loss, onlookers = self.total_loss(trainer.others), self.onlookers(party)
        fit = trainer.fit(images, loss, party.streams.child("train"), self.correction(party, parcel), onlookers)
        if self.keeps_momentum:
            party.state["optimiser"] = trainer.state()
        self._keep(party, trainer.values())
        party.state[LOCAL] = party.weights.all()
        numbers = {"samples": len(party.faces.train), "loss": fit.loss}
        sent: dict[str, Tensors] = {}
        if self.needs_public_embeddings:
            sent[PUBLIC_EMBEDDINGS] = {"all": trainer.values()[PUBLIC]}
            numbers["hard_negatives"] = hard
        return party.answer(BACKBONE, BUFFERS, tensors=sent, **numbers)

    def training_images(self, party: Party) -> Images:
        """What the round's training was begun with: the party's own images and the chosen public ones."""
        begun: Images = party.memo.get(("training images", party.name), party.faces.train)
        return begun

    def images(self, party: Party, model: Backbone) -> tuple[Images, int]:
        """What a party trains on under the round's global model, and how many public images are in it."""
        own, public = party.faces.train, party.faces.public
        if not self.needs_public_embeddings:
            return own, 0
        if public is None or public.labels is None or own.labels is None:
            raise FedVisageError(f"{party.name} has no public people: fedfr needs them at every party")
        chosen = np.arange(len(public)) if self.public == "all" else self.hard_public_images(party, model)
        parts = [
            Part(own, np.arange(len(own)), own.labels),
            Part(public, chosen, own.classes + public.labels[chosen]),
        ]
        return Mixture(parts, own.classes + public.classes), len(chosen)

    def hard_public_images(self, party: Party, model: Backbone) -> NDArray[np.int64]:
        """Public images nearest to any own image; public features are computed once per process."""
        public, own = party.faces.public, party.faces.train
        assert public is not None
        key = ("public features", party.name if party.weights.local else "")
        theirs = party.once(key, lambda: torch.from_numpy(embed_images(model, public, flip=False)))
        ours = torch.from_numpy(embed_images(model, own, flip=False))
        if self.share is not None:
            return np.asarray(hardest_negatives(ours, theirs, self.share))
        return np.asarray(hard_negatives(ours, theirs, self.threshold))

    def total_loss(self, others: Mapping[str, Tensor]) -> Loss:
        """Eq. 3 + contrastive * eq. 5 + branch_weight * eq. 6 of a batch."""
        criterion = loss_of(self.training)

        def loss(features: Tensor, batch: Batch) -> Tensor:
            value = criterion(features, _class_embeddings(others), batch.labels)
            if self.contrastive:
                near, far = batch.looked_on
                value = value + self.contrastive * model_contrastive(features, near, far, self.temperature)
            if self.branch != "none":
                value = value + self.branch_weight * self.branch_loss(features, others, batch.labels)
            return value

        return loss

    def onlookers(self, party: Party) -> tuple[Backbone, ...]:
        """The round's global model and the party's last local one, which is the global one before it has trained."""
        if not self.contrastive:
            return ()
        return party.weights.twin("global", {}), party.weights.twin("previous", party.state.get(LOCAL, {}))

    def branch_loss(self, features: Tensor, others: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """Eq. 6 on transformed features (or CosFace over the party's people, Table 2); public images are nobody."""
        if not self.branch_reaches_backbone:
            features = features.detach()
        moved = functional.linear(features, others[WEIGHT], others[BIAS])
        classifiers = others[CLASSIFIERS]
        if self.branch == "cosface":
            own = labels < len(classifiers)
            if not bool(own.any()):
                return moved.sum() * 0.0
            return cosface(moved[own], classifiers, labels[own], scale=self.branch_scale, margin=self.branch_margin)
        cosines = functional.linear(unit(moved), unit(classifiers))
        labels = torch.where(labels < len(classifiers), labels, -1)
        return binary_margin(
            cosines,
            labels,
            self.branch_scale,
            self.branch_margin,
            self.branch_balance,
            self.branch_power,
            others[OFFSETS],
        )

    def plan_adapt(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The final global model."""
        groups = [BACKBONE, BUFFERS, *([PUBLIC_EMBEDDINGS] if self.needs_public_embeddings else [])]
        return broadcast(server, groups, cohort)

    def adapt(self, party: Party, parcel: Parcel) -> Answer:
        """Train the global model on, alone; with `distil` its logits also stay near the global model's."""
        model = party.load(parcel)
        images, _ = self.images(party, model)
        others = self._others(party, parcel)
        work = self.training.model_copy(update={"epochs": self.second_stage_epochs, "steps": None})
        alone = self.model_copy(update={"training": work})
        trainer = alone.trainer(party, model, {name: others[name] for name in (EMBEDDINGS, PUBLIC) if name in others})
        teacher = [party.weights.twin("global", {})] if self.second_stage == "distil" else []
        loss = alone.second_loss(trainer.others)
        fit = trainer.fit(images, loss, party.streams.child("adapt"), onlookers=teacher)
        party.state[ADAPTED] = party.weights.all()
        return party.answer(loss=fit.loss)

    def second_loss(self, others: Mapping[str, Tensor]) -> Loss:
        """CosFace, and for `distil` the divergence from the global model's logits."""
        criterion, heat = loss_of(self.training), self.distil_temperature
        loss_scale = self.training.scale or float(str(loss_options(self.training.loss).get("scale", 1.0)))
        fixed = unit(_class_embeddings(others).detach().clone())

        def loss(features: Tensor, batch: Batch) -> Tensor:
            value = criterion(features, _class_embeddings(others), batch.labels)
            if self.second_stage == "fine-tune":
                return value
            scale = loss_scale / heat
            [teachers] = batch.looked_on
            wanted = functional.log_softmax(scale * unit(teachers) @ fixed.T, dim=1)
            given = functional.log_softmax(scale * unit(features) @ unit(_class_embeddings(others)).T, dim=1)
            apart = functional.kl_div(given, wanted, log_target=True, reduction="batchmean")
            return value + self.distil_weight * heat**2 * apart

        return loss

    def absorb_adapt(self, server: State, result: Result, context: Context) -> State:
        """The server learns nothing."""
        return server

    def personal(self, state: State) -> Tensors | None:
        """The adapted model, or the local one, with the branch's transformation where there is a branch."""
        own: Tensors | None = state.get(ADAPTED) or state.get(LOCAL)
        if ADAPTED in state or self.branch == "none" or own is None:
            return own
        layer: Tensors = {name: state[BRANCH][name] for name in (WEIGHT, BIAS)}
        return {**own, **layer}

    def _others(self, party: Party, parcel: Parcel) -> Tensors:
        """What is trained beside the backbone."""
        others: Tensors = {EMBEDDINGS: party.state[EMBEDDINGS]}
        if self.needs_public_embeddings:
            others[PUBLIC] = parcel[PUBLIC_EMBEDDINGS]["all"]
        return {**others, **party.state.get(BRANCH, {})}

    def _keep(self, party: Party, values: Tensors) -> None:
        party.state[EMBEDDINGS] = values[EMBEDDINGS]
        if self.branch != "none":
            party.state[BRANCH] = {name: values[name] for name in party.state[BRANCH]}


def _class_embeddings(others: Mapping[str, Tensor]) -> Tensor:
    """[own, public] class embeddings (K_l + K_g, d)."""
    return torch.cat([others[EMBEDDINGS], others[PUBLIC]]) if PUBLIC in others else others[EMBEDDINGS]
