from __future__ import annotations

import multiprocessing
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.synthetic import DEFAULT_DOMAIN, DOMAINS, SyntheticFaces, render
from fedvisage.faces.synthetic.camera import COSINES, compress, enlarge
from fedvisage.faces.synthetic.chance import Draws


def people(*identities: int) -> NDArray[np.int64]:
    return np.array(identities, np.int64)


def grid(identities: int, images: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(identities).repeat(images), np.tile(np.arange(images), identities)


def test_images_are_rgb_bytes_of_the_asked_size() -> None:
    images = render(1, people(3, 4, 5), people(0, 0, 9), 40)
    assert images.shape == (3, 40, 40, 3)
    assert images.dtype == np.uint8
    assert render(1, people(), people(), 40).shape == (0, 40, 40, 3)


@pytest.mark.parametrize(("size", "number"), [(32, 60), (90, 16)])
def test_an_image_has_the_same_bits_alone_in_a_batch_and_in_any_order(size: int, number: int) -> None:
    # 600 images fill several batches; some have glasses, caps, masks, occluders, blur and compression, others not.
    # Up to 64 pixels images are rendered at their size, above they are resampled.
    identity, index = grid(number, 10)
    together = render(5, identity, index, size)
    order = np.random.default_rng(0).permutation(len(identity))
    assert np.array_equal(render(5, identity[order], index[order], size), together[order])
    for place in order[:number]:
        alone = render(5, identity[place : place + 1], index[place : place + 1], size)
        assert np.array_equal(alone[0], together[place]), place


def test_a_forked_process_can_render_too() -> None:
    identity, index = grid(20, 2)
    here = render(6, identity, index, 16)  # 40 images: two batches, so the pool of threads has been started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads, which is the point
        with multiprocessing.get_context("fork").Pool(1) as pool:
            there = pool.apply_async(render, (6, identity, index, 16)).get(timeout=30)
    assert np.array_equal(here, there)


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(16, 160),
    seed=st.integers(0, 2**63 - 1),
    identity=st.integers(0, 2**40),
    index=st.integers(0, 2**40),
    domain=st.sampled_from(sorted(DOMAINS)),
)
def test_an_image_is_a_function_of_seed_identity_and_index(
    size: int, seed: int, identity: int, index: int, domain: str
) -> None:
    first, again, other_index, other_identity = render(
        seed, people(identity, identity, identity, identity + 1), people(index, index, index + 1, index), size, domain
    )
    other_seed = render(seed ^ 1, people(identity), people(index), size, domain)[0]
    assert np.array_equal(first, again)
    for other in (other_index, other_identity, other_seed):
        assert not np.array_equal(first, other)
    assert first.std() > 2


def test_a_person_keeps_their_traits_in_every_picture() -> None:
    # Averaging a person's pictures removes pose, light and camera; what is left must tell people apart: the mean of
    # ten pictures is closer to the mean of ten others of the same person than to that of most other people.
    identity, index = grid(30, 20)
    images = render(2, identity, index, 24).astype(np.float64).reshape(30, 20, -1)
    images = (images - images.mean(-1, keepdims=True)) / images.std(-1, keepdims=True)
    one, two = images[:, :10].mean(1), images[:, 10:].mean(1)
    distance = ((one[:, None] - two[None]) ** 2).sum(-1)
    rank = (distance < np.diag(distance)[:, None]).sum(1)
    assert rank.mean() < 3  # of 29 others; chance is 14.5


def test_a_domain_shifts_skin_light_and_camera() -> None:
    identity, index = grid(40, 4)
    shown = {name: render(3, identity, index, 32, name).astype(np.float64) for name in DOMAINS}
    brightness = {name: images.mean() for name, images in shown.items()}
    warmth = {name: (images[..., 0] - images[..., 2]).mean() for name, images in shown.items()}
    assert brightness["lamplight"] < brightness["daylight"] - 20
    assert warmth["lamplight"] > warmth["daylight"] + 10 > warmth["webcam"] + 20
    assert np.ptp(shown["infrared"], axis=-1).max() == 0
    assert np.ptp(shown["daylight"], axis=-1).mean() > 10


def test_images_use_the_range_of_values_without_being_mostly_clipped() -> None:
    images = render(4, *grid(40, 4), 32)
    assert 70 < images.mean() < 150
    assert (images == 255).mean() < 0.05
    assert (images == 0).mean() < 0.05


def test_a_source_reads_its_images_in_any_order() -> None:
    faces = SyntheticFaces(seed=1, identities=4, images_per_identity=3, size=24)
    assert len(faces) == 12
    assert faces.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert faces.labels.dtype == np.int64
    assert faces.domain == DEFAULT_DOMAIN
    read = faces.read(np.array([11, 0, 4, 4]))
    assert np.array_equal(read, render(1, people(3, 0, 1, 1), people(2, 0, 1, 1), 24))
    assert faces.read(np.array([], np.int64)).shape == (0, 24, 24, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"domain": "daylihgt"}, "did you mean 'daylight'"),
        ({"size": 8}, "16 to 1024 pixels"),
        ({"seed": -1}, "seed"),
        ({"identities": 0}, "at least 1 identity"),
        ({"images_per_identity": 0}, "at least 1 identity"),
    ],
)
def test_a_source_that_cannot_be_is_refused(arguments: dict[str, int | str], message: str) -> None:
    valid: dict[str, int | str] = {"seed": 0, "identities": 2, "images_per_identity": 2, "size": 32}
    with pytest.raises(FedVisageError, match=message):
        SyntheticFaces(**{**valid, **arguments})  # type: ignore[arg-type]


def test_bad_places_and_identities_are_refused() -> None:
    faces = SyntheticFaces(0, 2, 2, 16)
    for places in ([4], [-1]):
        with pytest.raises(FedVisageError, match="from 0 to 3"):
            faces.read(np.array(places))
    with pytest.raises(FedVisageError, match="of one length"):
        render(0, people(1, 2), people(1), 16)
    with pytest.raises(FedVisageError, match="integers"):
        render(0, np.array([0.5]), people(1), 16)  # type: ignore[arg-type]
    with pytest.raises(FedVisageError, match="no synthetic domain"):
        render(0, people(1), people(1), 16, "moonlight at sea")


def test_draws_are_uniform_and_normal() -> None:
    draws = Draws(np.arange(20_000))
    uniform, normal = draws.uniform(), draws.normal(2.0, 3.0)
    assert abs(uniform.mean() - 0.5) < 0.01  # five standard errors: 5 * 0.29 / sqrt(20000)
    assert abs(normal.mean() - 2.0) < 0.11
    assert abs(normal.std() - 3.0) < 0.08
    assert abs(np.corrcoef(uniform, normal)[0, 1]) < 0.04
    assert draws.chance(0.25).mean() == pytest.approx(0.25, abs=0.016)


def test_compression_is_a_quantised_cosine_transform() -> None:
    assert np.allclose(COSINES @ COSINES.T, np.eye(8), atol=1e-6)
    image = np.random.default_rng(0).random((3, 2, 20, 20), np.float32)
    fine, coarse = image.copy(), image.copy()
    compress(np.full((2, 1, 1), 1e-5, np.float32), fine)
    compress(np.full((2, 1, 1), 0.2, np.float32), coarse)
    grey = np.tensordot([0.3, 0.59, 0.11], image, 1)
    assert np.allclose(np.tensordot([0.3, 0.59, 0.11], fine, 1), grey, atol=1e-3)  # only colour lost resolution
    assert np.abs(np.tensordot([0.3, 0.59, 0.11], coarse, 1) - grey).mean() > 0.05


def test_enlarging_interpolates_linearly() -> None:
    ramp = np.linspace(0, 240, 61).astype(np.uint8)  # steps of 4
    planes = np.zeros((3, 2, 61, 61), np.uint8)
    planes[0], planes[1] = ramp, ramp[:, None]
    larger = enlarge(planes, 80)
    expected = np.clip((np.arange(80) + 0.5) * 61 / 80 - 0.5, 0, 60) * 4
    assert larger.shape == (2, 80, 80, 3)
    assert np.abs(larger[..., 0] - expected).max() <= 0.52  # rounding, and shares of 128ths
    assert np.abs(larger[..., 1] - expected[:, None]).max() <= 0.52
    assert (larger[..., 2] == 0).all()
