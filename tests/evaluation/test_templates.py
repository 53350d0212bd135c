"""Templates pooled in blocks are the plain loops of the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import enrolled, pool_templates, template_scores
from fedvisage.evaluation import templates as module


def plain(embeddings, image, template, media, detector, keep_norm):
    """Image by image: unit length or not, times the detector's score; mean per medium; sum; unit length."""
    result = {}
    for number in sorted(set(template)):
        members = [r for r in range(len(image)) if template[r] == number]
        total = 0
        for medium in sorted({media[r] for r in members}):
            parts = []
            for r in members:
                if media[r] == medium:
                    feature = embeddings[image[r]].astype(float)
                    feature = feature if keep_norm else feature / np.linalg.norm(feature)
                    parts.append(feature * (1 if detector is None else detector[image[r]]))
            total = total + np.mean(parts, axis=0)
        result[number] = total / np.linalg.norm(total)
    return result


@st.composite
def template_lists(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images, count = draw(st.integers(1, 40)), draw(st.integers(1, 60))
    chosen = np.unique(np.stack([rng.integers(0, images, count), rng.integers(0, 9, count) * 7], axis=1), axis=0)
    chosen = chosen[rng.permutation(len(chosen))]
    media = rng.integers(-3, 3, len(chosen))
    embeddings = rng.normal(size=(images, 5)) * rng.uniform(0.1, 10, (images, 1))
    return embeddings, chosen[:, 0], chosen[:, 1], media, rng.uniform(0.1, 1, images)


@cases(300)
@given(template_lists(), st.booleans(), st.booleans(), st.integers(1, 50))
def test_pooling_is_the_plain_loop_under_every_switch(case, keep_norm, with_detector, block):
    embeddings, image, template, media, detector = case
    detector = detector if with_detector else None
    reference = plain(embeddings, image, template, media, detector, keep_norm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        pooled = pool_templates(embeddings, image, template, media, detector_scores=detector, keep_norm=keep_norm)
    assert pooled.numbers.tolist() == sorted(reference)
    assert np.allclose(pooled.vectors, [reference[n] for n in pooled.numbers], atol=1e-6)


def test_frames_of_one_video_count_as_one_picture():
    frames = np.array([[1.0, 0], [1.0, 0], [0, 1.0]])
    pooled = pool_templates(frames, [0, 1, 2], [7, 7, 7], [1, 1, 2])
    assert np.allclose(pooled.vectors, [[0.5**0.5, 0.5**0.5]])
    alone = pool_templates(frames, [0, 1, 2], [7, 7, 7])
    assert np.allclose(alone.vectors, np.array([[2, 1]]) / 5**0.5)


def test_scores_of_pairs_are_dot_products():
    rng = np.random.default_rng(0)
    pooled = pool_templates(rng.normal(size=(1000, 16)), np.arange(1000), np.arange(1000) // 2 * 3)
    left, right = rng.choice(pooled.numbers, (2, 3001))
    scores = template_scores(pooled, left, right)
    expected = np.sum(pooled.vectors[left // 3].astype(float) * pooled.vectors[right // 3], axis=1)
    assert np.allclose(scores, expected, atol=1e-6)


def test_bad_input_is_named_with_counts():
    good = np.eye(3)
    broken, zero = np.eye(3), np.eye(3)
    broken[0, 0], zero[1, 1] = np.nan, 0
    for embeddings, image, template, detector, words in [
        (broken, [0, 1, 2], [1, 1, 2], None, "1 of 3 embeddings in embeddings hold NaN"),
        (zero, [0, 1, 2], [1, 1, 2], None, "1 of 3 embeddings in embeddings are zero"),
        (good, [0, 5, -1], [1, 4, 2], None, "2 of 3 rows of the templates name images that are missing, first image 5"),
        (good, [0, 0, 1], [1, 1, 2], None, "1 images are listed more than once in one template"),
        (good, [], [], None, "empty"),
        (good, [0, 1], [1], None, "columns of one list"),
        (good, [0, 1], [1, 2], [1.0, 0.5], "2 detector scores for 3 images"),
        (good, [0, 1], [1, 2], [1.0, np.nan, 1], "1 of 3 detector scores are NaN"),
        (good, [0, 1], [1, 2], [1.0, -1, 1], "1 of 3 detector scores are negative"),
        (good, [0, 1], [1, 2], [0, 1.0, 1], "1 of 2 templates sum to zero, first template 1"),
        (np.array([[1.0], [-1.0]]), [0, 1], [1, 1], None, "1 of 1 templates sum to zero"),
    ]:
        with pytest.raises(FedVisageError, match=words):
            pool_templates(embeddings, image, template, detector_scores=detector)
    pooled = pool_templates(good, [0, 1, 2], [1, 2, 3])
    with pytest.raises(FedVisageError, match=r"1 templates of the right side .* first template 9 \(2 of 3 rows\)"):
        template_scores(pooled, [1, 2, 3], [9, 1, 9])
    with pytest.raises(FedVisageError, match="gallery-1 lists 1 templates more than once, first template 2"):
        enrolled(pooled, [1, 2, 2], [5, 6, 7], "gallery-1")
