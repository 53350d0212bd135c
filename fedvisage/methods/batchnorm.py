"""BatchNorm recalibration: after averaging, parties re-estimate the running statistics under the global model.

Averaged weights do not go with averaged statistics. With `federation.batchnorm = "recalibrate"` every party passes its
training images through the new global model once, without training, and the server averages the statistics it finds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from fedvisage.core.codec import State
from fedvisage.core.method import Component, Context, Images, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel
from fedvisage.core.phase import Phase
from fedvisage.core.sealing import Answer, ends_with_answer
from fedvisage.models import Backbone

BATCH = 64


class Recalibrate(Component):
    """Re-estimates running means and variances at the parties after each round's averaging."""

    def phases(self) -> tuple[Phase, ...]:
        """One exchange per round, with the round's participants."""
        down, up = {BACKBONE: "all", BUFFERS: "all"}, {BUFFERS: "weighted_sum"}
        return (Phase("recalibrate", down=down, up=up, keeps_state=False),)  # type: ignore[arg-type]

    def plan_recalibrate(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The new global model."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    @ends_with_answer
    def recalibrate(self, party: Party, parcel: Parcel) -> Answer:
        """Under the global model, on the party's training images."""
        estimate_statistics(party.load(parcel), party.faces.train)
        return party.answer(BUFFERS)

    def absorb_recalibrate(self, server: State, result: Result, context: Context) -> State:
        """The averaged statistics replace the old ones."""
        return server | result.reduced


def estimate_statistics(model: Backbone, images: Images) -> None:
    """Make the running statistics those of the images: cumulative averages, in training mode, without gradients."""
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    before, training = [layer.momentum for layer in norms], model.training
    cuts = [cut for cut in range(BATCH, len(images), BATCH) if len(images) - cut > 1]
    model.train()
    try:
        with torch.no_grad():
            for step, chosen in enumerate(np.split(np.arange(len(images)), cuts), 1):
                for layer in norms:
                    layer.momentum = 1 / step
                model(model.preprocess(images.read(chosen)))
    finally:
        model.train(training)
        for layer, momentum in zip(norms, before, strict=True):
            layer.momentum = momentum
