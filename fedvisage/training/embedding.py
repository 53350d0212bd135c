"""Embeddings of whole image sets, in blocks, with a model's present weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.method import Images
from fedvisage.models import Backbone


def embed_images(
    model: Backbone, images: Images, flip: bool = True, normalise: bool = False, batch_size: int = 128
) -> NDArray[np.float32]:
    """Embeddings (N, d) in evaluation mode; at no time more than one batch of images is in memory."""
    out = np.empty((len(images), model.metadata.embedding_size), dtype=np.float32)
    for start in range(0, len(images), batch_size):
        chosen = np.arange(start, min(start + batch_size, len(images)))
        out[chosen] = model.embed(images.read(chosen), batch_size, flip, normalise)
    return out
