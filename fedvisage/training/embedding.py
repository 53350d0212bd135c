"""Embeddings of whole image sets, in blocks, with a model's present weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.method import Images
from fedvisage.models import Backbone
from fedvisage.training.features import features_for


def embed_images(
    model: Backbone, images: Images, flip: bool = True, normalise: bool = False, batch_size: int = 128
) -> NDArray[np.float32]:
    """Embeddings (N, d) in evaluation mode; at no time more than one batch of images is in memory.

    Where the features of the model's frozen stages are at hand, they are used instead of the images.
    """
    features = features_for(model, images)
    out = np.empty((len(images), model.metadata.embedding_size), dtype=np.float32)
    for start in range(0, len(images), batch_size):
        chosen = np.arange(start, min(start + batch_size, len(images)))
        if features is not None:
            sides = [
                features.read(chosen, np.full(len(chosen), side)) for side in ((False, True) if flip else (False,))
            ]
            out[chosen] = model.embed_features(*sides, normalise=normalise)
            continue
        out[chosen] = model.embed(images.read(chosen), batch_size, flip, normalise)
    return out
