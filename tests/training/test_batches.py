"""Batches: every image once per epoch, augmentation as a slow loop would do it, and the same with a thread ahead."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import ArrayImages, Faces, FaceSet
from fedvisage.training import augment, batches

CPU = torch.device("cpu")


def faces(count: int, size: int = 4, labelled: bool = True) -> Faces:
    pixels = np.random.default_rng(count).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    whole = FaceSet(ArrayImages(pixels), np.arange(count) % 3, ("a", "b", "c"))
    return Faces(whole, np.arange(count), labelled)


def plain(**work: Any) -> Training:
    return Training(**({"flip": False} | work))


@given(st.integers(2, 40), st.integers(2, 12), st.integers(1, 3))
def test_each_epoch_is_a_permutation_without_a_batch_of_one(count: int, size: int, epochs: int) -> None:
    work = plain(batch_size=size, epochs=epochs)
    made = [batch.indices for batch in batches(faces(count), work, Streams(1), CPU)]
    assert Counter(np.concatenate(made).tolist()) == Counter(dict.fromkeys(range(count), epochs))
    assert all(2 <= len(indices) <= size + 1 for indices in made)
    seen: list[int] = []
    for indices in made:
        seen += indices.tolist()
        if len(seen) == count:
            assert sorted(seen) == list(range(count))
            seen = []


def test_a_remainder_of_one_joins_the_batch_before() -> None:
    sizes = [len(batch.indices) for batch in batches(faces(9), plain(batch_size=4), Streams(1), CPU)]
    assert sizes == [4, 5]


def test_epochs_come_in_different_orders() -> None:
    one, other = (b.indices.tolist() for b in batches(faces(20), plain(batch_size=20, epochs=2), Streams(1), CPU))
    assert one != other


@given(st.integers(2, 20), st.integers(1, 15))
def test_steps_cycle_through_the_images(count: int, steps: int) -> None:
    made = [b.indices for b in batches(faces(count), plain(batch_size=4, steps=steps), Streams(1), CPU)]
    assert len(made) == steps
    counts = Counter(np.concatenate(made).tolist())
    assert max(counts.values()) - min([*counts.values()] if len(counts) == count else [0]) <= 1


def test_images_and_labels_belong_together() -> None:
    some = faces(11)
    assert some.labels is not None
    for batch in batches(some, plain(batch_size=4), Streams(1), CPU):
        assert np.array_equal(batch.images.numpy(), some.read(batch.indices))
        assert batch.labels.tolist() == some.labels[batch.indices].tolist()
        assert batch.labels.dtype == torch.int64


def test_without_labels_every_label_is_minus_one() -> None:
    batch = next(iter(batches(faces(4, labelled=False), plain(batch_size=4), Streams(1), CPU)))
    assert batch.labels.tolist() == [-1] * 4
    assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images_to_train_on_are_refused(count: int) -> None:
    with pytest.raises(FedVisageError, match=f"{count} training image: training needs at least 2"):
        batches(faces(count), plain(), Streams(1), CPU)


def slow_augment(pixels: np.ndarray, flip: bool, crop: int, rng: np.random.Generator) -> np.ndarray:
    """The same draws, then pixel by pixel."""
    count, height, width, _ = pixels.shape
    mirrored = rng.random(count) < 0.5 if flip else np.zeros(count, bool)
    down = rng.integers(-crop, crop + 1, size=(count, 1))[:, 0] if crop else np.zeros(count, int)
    right = rng.integers(-crop, crop + 1, size=(count, 1))[:, 0] if crop else np.zeros(count, int)
    out = np.empty_like(pixels)
    for image in range(count):
        source = pixels[image, :, ::-1] if mirrored[image] else pixels[image]
        shift = -right[image] if mirrored[image] else right[image]
        for row in range(height):
            for column in range(width):
                y = min(max(row + down[image], 0), height - 1)
                x = min(max(column + shift, 0), width - 1)
                out[image, row, column] = source[y, x]
    return out


@given(st.booleans(), st.integers(0, 3), st.integers(0, 100))
def test_flips_and_shifts_equal_a_slow_loop(flip: bool, crop: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 6, 4, 3), dtype=np.uint8)
    ours = augment(pixels, flip, crop, np.random.default_rng(seed))
    assert np.array_equal(ours, slow_augment(pixels, flip, crop, np.random.default_rng(seed)))


def test_about_half_of_the_images_are_mirrored() -> None:
    pixels = np.tile(np.arange(4, dtype=np.uint8)[None, None, :, None], (1000, 2, 1, 3))
    mirrored = int((augment(pixels, True, 0, np.random.default_rng(1))[:, 0, 0, 0] == 3).sum())
    assert 430 < mirrored < 570, "500 expected, 4.4 standard deviations of 15.8 allowed"


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_preparing_ahead_gives_the_same_batches(depth: int) -> None:
    work = Training(batch_size=4, epochs=2, crop=1)
    ahead = work.model_copy(update={"prefetch": depth})
    pairs = zip(batches(faces(15), work, Streams(3), CPU), batches(faces(15), ahead, Streams(3), CPU), strict=True)
    for one, other in pairs:
        assert torch.equal(one.images, other.images)
        assert one.indices.tolist() == other.indices.tolist()


def test_abandoned_batches_end_their_thread() -> None:
    before = threading.active_count()
    made = batches(faces(50), plain(batch_size=2, steps=10_000, prefetch=2), Streams(1), CPU)
    next(made)
    assert threading.active_count() == before + 1
    start = time.monotonic()
    made.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 5
    assert threading.active_count() == before


def test_an_error_while_reading_ahead_reaches_the_trainer() -> None:
    class Broken(Faces):
        def read(self, indices: Any) -> Any:
            raise FedVisageError("image 3 cannot be read")

    whole = FaceSet(ArrayImages(np.zeros((4, 4, 4, 3), np.uint8)), np.zeros(4, int), ("a",))
    with pytest.raises(FedVisageError, match="image 3 cannot be read"):
        list(batches(Broken(whole, np.arange(4)), plain(prefetch=2), Streams(1), CPU))
