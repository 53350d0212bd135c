"""Batches of augmented images in an order drawn from a stream, optionally prepared ahead in a thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Queue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Images
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import Features


class Batch(NamedTuple):
    """Images (n, H, W, 3) uint8, or what frozen stages made of them (n, C, h, w) float32: what `features_of` takes.

    With them their labels (n,), their numbers in the set (n,), and what networks that only look on make of them (n, d).
    """

    images: Tensor
    labels: Tensor
    indices: NDArray[np.int64]
    looked_on: tuple[Tensor, ...] = ()


def batches(
    images: Images, work: Training, streams: Streams, device: torch.device, features: Features | None = None
) -> Iterator[Batch]:
    """The batches of one stretch of local work: whole epochs, or a number of steps cycling through the images.

    With `features` they are read instead of the images, under the same draws.
    """
    if features is not None and work.crop:
        raise FedVisageError("training.crop moves images before the frozen stages see them: set backbone.cache = false")
    if len(images) < 2:
        raise FedVisageError(f"{len(images)} training image: training needs at least 2")
    plan = itertools.islice(_orders(len(images), work, streams), work.steps)
    made = (_make(images, chosen, work, streams.child(step), device, features) for step, chosen in enumerate(plan))
    return _ahead(made, work.prefetch) if work.prefetch else made


def count_steps(count: int, work: Training) -> int:
    """Batches in one stretch of local work on `count` images."""
    return work.steps or (work.local_epochs or 1) * (len(_cuts(count, work.batch_size)) + 1)


def _cuts(count: int, size: int) -> range:
    """Where an epoch is cut into batches; one image left over joins the batch before it."""
    cuts = range(size, count, size)
    return cuts[:-1] if cuts and count - cuts[-1] == 1 else cuts


def _orders(count: int, work: Training, streams: Streams) -> Iterator[NDArray[np.int64]]:
    epochs = itertools.count() if work.local_epochs is None else range(work.local_epochs)
    for epoch in epochs:
        order = streams.numpy("order", epoch).permutation(count)
        yield from np.split(order, _cuts(count, work.batch_size))


def _make(
    images: Images,
    chosen: NDArray[np.int64],
    work: Training,
    streams: Streams,
    device: torch.device,
    features: Features | None,
) -> Batch:
    inputs: NDArray[np.uint8] | NDArray[np.float32]
    if features is not None:
        inputs = features.read(chosen, mirrors(len(chosen), streams.numpy("augment")) & work.flip)
    else:
        inputs = images.read(chosen)
        if work.flip or work.crop:
            inputs = augment(inputs, work.flip, work.crop, streams.numpy("augment"))
    labels = images.labels[chosen] if images.labels is not None else np.full(len(chosen), -1)
    return Batch(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device), chosen)


def mirrors(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of some images are mirrored, each with probability one half (n,)."""
    return rng.random(count) < 0.5


def augment(pixels: NDArray[np.uint8], flip: bool, crop: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each image (n, H, W, 3) mirrored with probability one half and shifted by up to `crop` pixels each way.

    What a shift uncovers repeats the image's border.
    """
    count, height, width, channels = pixels.shape
    mirrored = mirrors(count, rng) if flip else np.zeros(count, bool)
    shifts = [rng.integers(0, 2 * crop + 1, count) for _ in range(2)] if crop else [np.zeros(count, np.int64)] * 2
    border = (crop, crop)
    edged = np.pad(pixels, ((0, 0), border, border, (0, 0)), mode="edge") if crop else np.ascontiguousarray(pixels)
    whole = edged.view(np.dtype((np.void, channels)))[..., 0]  # pixels move as one, not channel by channel
    moved = np.empty((count, height, width), whole.dtype)
    for image, (row, column, back) in enumerate(zip(*shifts, mirrored, strict=True)):
        window = whole[image, row : row + height, column : column + width]
        moved[image] = window[:, ::-1] if back else window
    return moved[..., None].view(np.uint8)


@dataclass
class _Raised:
    error: BaseException


def _ahead(made: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """Items of `made`, prepared by a thread that stays at most `depth` ahead."""
    queue: Queue[Batch | _Raised | None] = Queue(depth)
    stop = threading.Event()

    def produce() -> None:
        try:
            for item in made:
                queue.put(item)
                if stop.is_set():
                    return
            queue.put(None)
        except BaseException as error:
            queue.put(_Raised(error))

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, _Raised):
                raise item.error
            yield item
    finally:
        stop.set()
        while thread.is_alive():
            while not queue.empty():
                queue.get()
            thread.join(0.01)
