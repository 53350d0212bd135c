"""How much room embeddings use: the mean cosine of two people, and the effective rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedvisage.evaluation import _checks as checks


@dataclass(frozen=True)
class Spread:
    """How far apart the embeddings of different people lie."""

    impostor: float
    """Mean cosine of two images of different people; 1 where everybody is the same."""
    rank: float
    """Effective rank of the covariance (Roy & Vetterli, EUSIPCO 2007): exp of the entropy of its eigenvalues."""


def spread(embeddings: ArrayLike, labels: ArrayLike) -> Spread:
    """Return the spread of embeddings (M, d) of persons `labels` (M,), over all pairs of images of different people."""
    _, identity = checks.identities(labels)
    unit = np.asarray(checks.unit_rows("embeddings", checks.embeddings("embeddings", embeddings)), np.float64)
    sums = np.zeros((int(identity.max()) + 1, unit.shape[1]))
    np.add.at(sums, identity, unit)
    images = np.bincount(identity)
    pairs = len(unit) ** 2 - int((images**2).sum())
    whole = sums.sum(axis=0)
    impostor = (whole @ whole - np.square(sums).sum()) / pairs if pairs else float("nan")
    values = np.linalg.eigvalsh(np.cov(unit, rowvar=False, bias=True).reshape(unit.shape[1], -1)).clip(min=0)
    shares = values[values > 0] / values.sum() if values.sum() > 0 else np.ones(1)
    return Spread(float(impostor), float(np.exp(-(shares * np.log(shares)).sum())))
