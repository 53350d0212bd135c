"""FedFR-UDA: federated unsupervised domain adaptation for face recognition (Zhuang et al., ICME 2022).

One party, the source, has labelled faces; the others, the targets, have unlabelled faces of another domain.

1. The source trains the model (phase `pretrain`; none where the run starts from a trained model).
2. Every target embeds its faces under that model, clusters them by C-FINCH with a distance threshold, and takes the
   clusters for people (phase `label`). It may do so again every few rounds, which the paper does not.
3. In rounds, all parties train on their labels or pseudo-labels and the server averages the backbones with equal
   weights (eq. 2). On the source the local work is held near the global model by (λ/2)·||θ - θ_global||², the domain
   constraint loss (eq. 4), so that the many source faces do not undo what targets have learnt.

Only the backbone travels; class embeddings and pseudo-labels stay. A target's true labels are out of the method's reach
(`faces.shares.PartyFaces`). Table 3's ablation: P is the model after stage 1, `source_joins = false` P+C (fine-tuning
on pseudo-labels), `constraint = 0` P+C+FL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedvisage.clustering import c_finch, dbscan, drop_small, finch, k_means
from fedvisage.clustering.neighbours import Metric
from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import METHODS, Context, Images, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.phase import MOST_IMAGES, SOURCE, TARGET, Audience, Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.methods.fedavg import EMBEDDINGS, FedAvg, mean_embeddings
from fedvisage.methods.fedprox import proximal
from fedvisage.training import Correct, embed_images
from fedvisage.training.views import Mixture, Part

PSEUDO_LABELS = "pseudo_labels"
"""In a target's state: a cluster number for each of its images, -1 where the image is left out."""


@METHODS.register("feduda")
class FedUDA(FedAvg):
    """A labelled source, unlabelled targets, pseudo-labels by clustering."""

    summary: ClassVar[str] = "a labelled source and unlabelled targets that cluster their faces into pseudo-labels"
    roles: ClassVar[frozenset[str]] = frozenset({SOURCE, TARGET})
    default_weighting: ClassVar[str] = "equal"

    classifier: Literal["private"] = "private"
    pretrain_rounds: Annotated[int, Field(ge=0)] = 0
    """Stretches of the source's local work before anybody else joins in (stage 1)."""
    constraint: Annotated[float, Field(ge=0)] = 0.01
    """λ of the domain constraint on the source."""
    source_joins: bool = True
    """Whether the source takes part in the rounds, or only lets the targets go on from its model."""
    clustering: Literal["c-finch", "finch", "k-means", "dbscan"] = "c-finch"
    distance: Annotated[float, Field(gt=0)] = 0.9
    """Of C-FINCH's links (by `metric`) and DBSCAN's neighbours (Euclidean), between unit vectors."""
    metric: Metric = "euclidean"
    """What C-FINCH calls a distance; DBSCAN and K-means are Euclidean, FINCH goes by the cosine."""
    centroids: Literal["unit", "mean"] = "unit"
    """C-FINCH's centroids: means of members, brought to unit length or left as they are."""
    merge: Literal["first-neighbours", "mutual"] = "first-neighbours"
    """How C-FINCH merges: as published, or by a safer rule that is not in the paper (see `clustering.finch`)."""
    partition: Annotated[int, Field(ge=-1)] = -1
    """Which of FINCH's partitions, from the finest (0) on, or the coarsest there is (-1), which is one cluster."""
    clusters: Annotated[int, Field(ge=1)] = 100
    """For k-means, which has to be told."""
    smallest_cluster: Annotated[int, Field(ge=1)] = 1
    """Images of smaller clusters are left out."""
    relabel_every: Annotated[int, Field(ge=0)] = 0
    """Rounds between clusterings under the present model; 0 for the one at the start only."""

    @property
    def keeps_class_embeddings(self) -> bool:
        """A target's clusters are no people that the server could count on: nothing acts on their embeddings."""
        return False

    def phases(self) -> tuple[Phase, ...]:
        """Join; stage 1 at the source; stage 2 at the targets; rounds."""
        join, train = super().phases()
        model: dict[str, Audience] = {BACKBONE: "all", BUFFERS: "all"}
        members = frozenset({SOURCE, TARGET} if self.source_joins else {TARGET})
        phases = [replace(join, roles=frozenset({SOURCE, TARGET}))]
        if self.pretrain_rounds:
            first = frozenset({SOURCE})
            phases.append(replace(train, name="pretrain", when="start", repeats=self.pretrain_rounds, roles=first))
        label = Phase(
            "label",
            "start",
            sampled=False,
            roles=frozenset({TARGET}),
            down=model,
            reports=_FOUND,
            largest=dict.fromkeys(_FOUND, MOST_IMAGES),
        )
        phases.append(label)
        if self.relabel_every:
            phases.append(replace(label, name="relabel", when="round", every=self.relabel_every, also_last=False))
        phases.append(replace(train, roles=members, always=frozenset({SOURCE})))
        return tuple(phases)

    def join(self, party: Party, parcel: Parcel) -> Answer:
        """The source's class embeddings as in FedAvg; a target has none yet."""
        if party.role == SOURCE:
            return super().join(party, parcel)
        return party.answer(samples=len(party.faces.train))

    def plan_pretrain(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The model so far, to the source."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    @ends_with_answer
    def pretrain(self, party: Party, parcel: Parcel) -> Answer:
        """Stage 1: local work as in FedAvg."""
        return super().train(party, parcel)

    def absorb_pretrain(self, server: State, result: Result, context: Context) -> State:
        """The source's model is the model."""
        return server | result.reduced

    def plan_label(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The model to embed with."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    def plan_relabel(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The same under the present model."""
        return self.plan_label(server, cohort, context)

    def label(self, party: Party, parcel: Parcel) -> Answer:
        """Stage 2: cluster the party's faces under the model; every cluster becomes a class."""
        model = party.load(parcel)
        labels = self.cluster(embed_images(model, party.faces.train), party)
        if labels.max(initial=-1) < 0:
            raise FedVisageError(f"{party.name}: no cluster has {self.smallest_cluster} images; use a larger distance")
        party.state[PSEUDO_LABELS] = torch.from_numpy(labels)
        images = pseudo_labelled(party.faces.train, labels)
        size = model.metadata.embedding_size
        if self.embeddings_start == "mean":
            party.state[EMBEDDINGS] = mean_embeddings(model, images)
        else:
            party.state[EMBEDDINGS] = self.random_embeddings(images.classes, size, party.streams)
        party.state.pop("optimiser", None)
        return party.answer(clusters=images.classes, labelled=len(images))

    def relabel(self, party: Party, parcel: Parcel) -> Answer:
        """Stage 2 again; class embeddings start anew, since the clusters are others."""
        return self.label(party, parcel)

    def absorb_label(self, server: State, result: Result, context: Context) -> State:
        """Nothing but the counts was said."""
        return server

    def absorb_relabel(self, server: State, result: Result, context: Context) -> State:
        """Nothing but the counts was said."""
        return server

    @ends_with_answer
    def train(self, party: Party, parcel: Parcel) -> Answer:
        """As in FedAvg; a target that could not be labelled at the start is labelled first."""
        if party.role == TARGET and PSEUDO_LABELS not in party.state:
            self.label(party, parcel)
        return super().train(party, parcel)

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        idle = [
            name for name, usual in (("metric", "euclidean"), ("centroids", "unit")) if getattr(self, name) != usual
        ]
        if idle and self.clustering != "c-finch":
            raise ValueError(f"{self.clustering} makes no use of {' and '.join(idle)}, which C-FINCH goes by")
        return self

    def cluster(self, embeddings: NDArray[np.float32], party: Party) -> NDArray[np.int64]:
        """A cluster number for each embedding (N, d), -1 for those left out."""
        match self.clustering:
            case "c-finch":
                unit = self.centroids == "unit"
                labels = c_finch(
                    embeddings, self.distance, metric=self.metric, normalise_centroids=unit, merge=self.merge
                )
            case "finch":
                levels = finch(embeddings)
                labels = levels[min(self.partition, len(levels) - 1)]
            case "k-means":
                labels = k_means(embeddings, min(self.clusters, len(embeddings)), party.streams.numpy("k-means"))
            case "dbscan":
                labels = dbscan(embeddings, self.distance)
        return drop_small(labels, self.smallest_cluster)

    def training_images(self, party: Party) -> Images:
        """A target's images under the numbers of their clusters."""
        if party.role == SOURCE:
            return party.faces.train
        return pseudo_labelled(party.faces.train, party.state[PSEUDO_LABELS].numpy())

    def correction(self, party: Party, parcel: Parcel) -> Correct | None:
        """Eq. 4's second term, on the source only; in stage 1 there is nothing to hold on to."""
        if party.role != SOURCE or not self.constraint or not party.round:
            return None
        return proximal(parcel[BACKBONE], self.constraint)


_FOUND = ("clusters", "labelled")


def pseudo_labelled(images: Images, labels: NDArray[np.int64]) -> Mixture:
    """The images that have a label, with it."""
    kept = np.flatnonzero(labels >= 0)
    return Mixture([Part(images, kept, labels[kept])], int(labels.max(initial=-1)) + 1)
