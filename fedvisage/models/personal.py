"""A party's own model: the network with the party's tensors and, where its method trains one, a personal last layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from fedvisage.core.weights import Weights
from fedvisage.models.backbone import Backbone

LAYER = "transformation."


@contextmanager
def personalised(weights: Weights, tensors: Mapping[str, Tensor]) -> Iterator[Backbone]:
    """The process's one model as a party's own; `transformation.weight` and `.bias` are its last layer, if there.

    It has no centres meanwhile: those of the global model are not its own. Afterwards they are back and the layer is
    gone; the network keeps the party's tensors until others are loaded.
    """
    layer = {name.removeprefix(LAYER): value for name, value in tensors.items() if name.startswith(LAYER)}
    weights.load({name: value for name, value in tensors.items() if not name.startswith(LAYER)})
    model: Backbone = weights.model
    centres, model.centres = model.centres, {}
    if layer:
        size = model.metadata.embedding_size
        transformation = nn.Linear(size, size, device=model.device)
        transformation.load_state_dict(layer)
        model.transformation = transformation
    try:
        yield model
    finally:
        model.transformation, model.centres = None, centres
