"""Exact t-SNE for some hundred points: no randomness, the same picture every time.

Van der Maaten & Hinton, "Visualizing Data using t-SNE", JMLR 2008: perplexity by bisection, early exaggeration,
momentum and gains as in the paper; the start is the plane of the two largest principal components.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEPS, EARLY = 500, 100
"""All steps, and those at the beginning with exaggerated attraction."""
EXAGGERATION = 4.0
RATE = 50.0
TINY = 1e-12


def tsne(points: NDArray[np.floating], perplexity: float = 20.0) -> Floats:
    """Places (N, 2) in the unit square for points (N, d): near together where the points are."""
    count = len(points)
    if count < 4:
        return np.stack([np.linspace(0.1, 0.9, count), np.full(count, 0.5)], axis=1) if count else np.empty((0, 2))
    x = points.astype(np.float64)
    x = x - x.mean(axis=0)
    joint = _joint(_squared_distances(x), min(perplexity, (count - 1) / 3))
    y = _principal(x)
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    for step in range(STEPS):
        factor, momentum = (EXAGGERATION, 0.5) if step < EARLY else (1.0, 0.8)
        slope = _gradient(y, joint * factor)
        gains = np.where(np.sign(slope) == np.sign(velocity), gains * 0.8, gains + 0.2).clip(0.01)
        velocity = momentum * velocity - RATE * gains * slope
        y = y + velocity
        y -= y.mean(axis=0)
    low, high = y.min(axis=0), y.max(axis=0)
    placed: Floats = (y - (low + high) / 2) / max(float((high - low).max()), TINY) + 0.5
    return placed


def _squared_distances(x: Floats) -> Floats:
    norms = (x**2).sum(axis=1)
    found: Floats = np.maximum(norms[:, None] + norms - 2 * x @ x.T, 0.0)
    return found


def _joint(distances: Floats, perplexity: float) -> Floats:
    """Symmetric neighbour probabilities (N, N), each row's bandwidth found by bisection."""
    count = len(distances)
    scale = max(float(distances.mean()), TINY)
    distances = distances / scale
    precision = np.ones(count)
    low, high = np.zeros(count), np.full(count, np.inf)
    target = np.log(perplexity)
    chances = np.zeros((count, count))
    away = np.where(np.eye(count, dtype=bool), np.inf, distances)
    nearest = away.min(axis=1, keepdims=True)
    for _ in range(60):
        with np.errstate(invalid="ignore"):
            chances = np.exp(-(away - nearest) * precision[:, None])
        chances[np.isnan(chances)] = 0.0
        np.fill_diagonal(chances, 0.0)
        chances /= chances.sum(axis=1, keepdims=True)
        entropy = -(chances * np.log(np.maximum(chances, TINY))).sum(axis=1)
        wide = entropy > target
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isinf(high), precision * 2, (low + np.where(np.isinf(high), 0, high)) / 2)
    joint: Floats = np.maximum((chances + chances.T) / (2 * count), TINY)
    return joint


def _principal(x: Floats) -> Floats:
    """The first two principal components (N, 2), small as t-SNE wants its start; signs fixed."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    found = left[:, :2] * values[:2]
    if found.shape[1] < 2:
        found = np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
    axes = right[: found.shape[1]]
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    found[:, : len(signs)] *= signs
    found += 1e-3 * np.abs(found).max() * np.stack([np.cos(np.arange(len(x))), np.sin(np.arange(len(x)))], axis=1)
    small: Floats = found / max(float(found.std()), TINY) * 1e-2
    return small


def _gradient(y: Floats, joint: Floats) -> Floats:
    kernel = 1 / (1 + _squared_distances(y))
    np.fill_diagonal(kernel, 0.0)
    pull = (joint - np.maximum(kernel / kernel.sum(), TINY)) * kernel
    slope: Floats = 4 * (pull.sum(axis=1)[:, None] * y - pull @ y)
    return slope
