"""What class embeddings look like: how close people of different parties are, and whether everybody collapses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._regularisers import check_class_embeddings, check_owner, full, numbered, unit_rows

RESOLUTION = 1 / 2048
"""Width of the bins behind the quantiles of `party_cosines`."""
TILE = 1024


class CosineSummary(NamedTuple):
    """Cosines of a kind of pairs: how many unordered ones, their mean, and a quantile; NaN where there are none."""

    pairs: int
    mean: float
    quantile: float


class PartyCosines(NamedTuple):
    """Cosines of class embeddings across parties and within them."""

    across: CosineSummary
    within: CosineSummary


@torch.no_grad()
def mean_cosine(vectors: Tensor) -> float:
    """Mean cosine over all pairs of rows (N, d), exact; NaN for a single row. All rows alike, a collapse, gives 1."""
    check_class_embeddings(vectors)
    rows, _ = unit_rows(vectors.double())
    count = len(rows)
    if count == 1:
        return float("nan")
    return ((rows.sum(dim=0).square().sum() - rows.square().sum()) / (count * (count - 1))).item()


@torch.no_grad()
def effective_rank(vectors: Tensor) -> float:
    """Effective rank (Roy and Vetterli, 2007) of the unit rows of (N, d): e to the entropy of their singular values.

    From 1, where all rows lie on one line, to min(N, d), where all directions are used alike.
    """
    check_class_embeddings(vectors)
    rows, _ = unit_rows(vectors.double())
    gram = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
    values = torch.linalg.eigvalsh(gram)
    values = values.clamp_min(len(gram) * torch.finfo(values.dtype).eps * values[-1]).sqrt()
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


@torch.no_grad()
def party_cosines(class_embeddings: Tensor, owner: Tensor, quantile: float = 0.99) -> PartyCosines:
    """Mean and `quantile` of the cosines of class embeddings (C, d) across parties and within, by `owner` (C,).

    Means are exact. The quantile comes from a histogram: the upper edge of the bin of width `RESOLUTION` that holds
    it. It looks at every unordered pair, a tile at a time.
    """
    check_owner(class_embeddings, owner)
    if not 0 < quantile <= 1:
        raise FedVisageError(f"quantile must lie in (0, 1], got {quantile}")
    order = owner.argsort(stable=True)
    party = numbered(owner[order])
    rows, _ = unit_rows(full(class_embeddings)[order])
    across, within = histograms(rows, party)
    sums = rows.new_zeros(int(party[-1]) + 1, rows.shape[1], dtype=torch.float64).index_add_(0, party, rows.double())
    inside = sums.square().sum().item()
    total = sums.sum(dim=0).square().sum().item()
    diagonal = rows.double().square().sum().item()
    return PartyCosines(
        summary(across, (total - inside) / 2, quantile), summary(within, (inside - diagonal) / 2, quantile)
    )


def histograms(rows: Tensor, party: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of the cosines of unordered pairs of unit rows (C, d), across and within ascending parties (C,)."""
    bins = round(2 / RESOLUTION)
    across, within = torch.zeros(bins, dtype=torch.int64), torch.zeros(bins, dtype=torch.int64)
    parts, owners = torch.split(rows, TILE), torch.split(party, TILE)
    for i, row in enumerate(parts):
        for j, column in enumerate(parts[i:], start=i):
            cosines = row @ column.T
            if owners[i][-1] < owners[j][0]:
                across += count(cosines, bins)
                continue
            same = owners[i][:, None] == owners[j]
            pairs = torch.ones_like(same).triu_(1) if i == j else torch.ones_like(same)
            across += count(cosines[pairs & ~same], bins)
            within += count(cosines[pairs & same], bins)
    return across, within


def count(cosines: Tensor, bins: int) -> Tensor:
    """Histogram of cosines over [-1, 1], those beyond it by rounding in the outer bins."""
    place = cosines.flatten().add(1).mul_(bins / 2).to(torch.int32).clamp_(0, bins - 1)
    return place.bincount(minlength=bins).cpu()


def summary(histogram: Tensor, total: float, quantile: float) -> CosineSummary:
    """Pairs, mean and quantile from a histogram of pairs and the sum of their cosines."""
    pairs = int(histogram.sum())
    if pairs == 0:
        return CosineSummary(0, float("nan"), float("nan"))
    wanted = torch.tensor(quantile * pairs, dtype=torch.float64).ceil().clamp_min(1)
    place = int(torch.searchsorted(histogram.cumsum(0).double(), wanted))
    return CosineSummary(pairs, total / pairs, -1 + (place + 1) * RESOLUTION)
