"""Embeddings of whole image sets, in blocks, with a model's present weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Images
from fedvisage.models import LEAST_PEOPLE, NO_CENTRE, Backbone, Centre
from fedvisage.training.features import features_for


def embed_images(
    model: Backbone,
    images: Images,
    flip: bool = True,
    normalise: bool = False,
    batch_size: int = 128,
    centre: str | None = None,
) -> NDArray[np.float32]:
    """Embeddings (N, d) in evaluation mode, as `Backbone.embed`; at no time is more than one batch of images in memory.

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
            out[chosen] = model.embed_features(*sides, normalise=normalise, centre=centre)
            continue
        out[chosen] = model.embed(images.read(chosen), batch_size, flip, normalise, centre)
    return out


def means_of_people(model: Backbone, faces: Images, flip: bool = True) -> NDArray[np.float64]:
    """Mean unit embedding of each person's images, not normalised (C, d); `flip` adds mirrored images."""
    assert faces.labels is not None
    unit = embed_images(model, faces, flip, normalise=True, centre=NO_CENTRE).astype(np.float64)
    sums = np.zeros((faces.classes, unit.shape[1]))
    np.add.at(sums, faces.labels, unit)
    means: NDArray[np.float64] = sums / np.bincount(faces.labels, minlength=faces.classes)[:, None]
    return means


def fit_centre(model: Backbone, faces: Images) -> Centre:
    """The centre of a model for the people of a face set, of whom there must be enough."""
    if faces.classes < LEAST_PEOPLE:
        raise FedVisageError(
            f"a centre of {faces.classes} people is close to their templates: it needs at least {LEAST_PEOPLE} people"
        )
    means = means_of_people(model, faces)
    return Centre(torch.from_numpy(means.mean(axis=0).astype(np.float32)), len(means))
