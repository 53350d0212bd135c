"""What class embeddings look like: how close people of different parties are, and whether everybody collapses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._regularisers import check_class_embeddings, check_owner, full, numbered, unit_rows

RESOLUTION = 1 / 2048
"""Width of the bins behind the quantiles of `party_cosines`."""
TILE = 512
"""Rows handled at a time."""


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
    if vectors.shape[0] < vectors.shape[1]:
        rows, _ = unit_rows(vectors.double())
        gram = rows @ rows.T
    else:
        gram = vectors.new_zeros(2 * vectors.shape[1:], dtype=torch.float64)
        for part in torch.split(vectors, TILE):
            rows, _ = unit_rows(part.double())
            gram.addmm_(rows.T, rows)
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
    rows = full(class_embeddings)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        rows, owner = rows[order], owner[order]
    party = numbered(owner)
    across, within = histograms(rows, party)
    total, inside, diagonal = square_sums(rows, party)
    return PartyCosines(
        summary(across, (total - inside) / 2, quantile), summary(within, (inside - diagonal) / 2, quantile)
    )


def square_sums(rows: Tensor, party: Tensor) -> tuple[float, float, float]:
    """Of rows (C, d), at unit length, of ascending parties (C,): |everybody's sum|², Σ |a party's sum|², Σ |a row|².

    In float64, a few rows at a time; the sum of a party that the cut goes through is carried over it.
    """
    everybody = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    carried, last = torch.zeros_like(everybody), -1
    inside = diagonal = 0.0
    for part, of in zip(torch.split(rows, TILE), torch.split(party, TILE), strict=True):
        part = unit_rows(part)[0].double()
        place = of - of[0]
        sums = part.new_zeros(int(place[-1]) + 1, part.shape[1]).index_add_(0, place, part)
        if int(of[0]) == last:
            sums[0] += carried
        else:
            inside += carried.square().sum().item()
        carried, last = sums[-1].clone(), int(of[-1])
        inside += torch.linalg.vector_norm(sums[:-1]).square().item()
        diagonal += torch.linalg.vector_norm(part).square().item()
        everybody += part.sum(dim=0)
    inside += carried.square().sum().item()
    return everybody.square().sum().item(), inside, diagonal


def histograms(rows: Tensor, party: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of the cosines of unordered pairs of rows (C, d), across and within ascending parties (C,)."""
    bins = round(2 / RESOLUTION)
    across, within = torch.zeros(bins, dtype=torch.int64), torch.zeros(bins, dtype=torch.int64)
    parts, owners = torch.split(rows, TILE), torch.split(party, TILE)
    for i, part in enumerate(parts):
        row, _ = unit_rows(part)
        for j, other in enumerate(parts[i:], start=i):
            cosines = row @ unit_rows(other)[0].T
            if owners[i][-1] < owners[j][0]:
                across += count(cosines, bins)
                continue
            same = owners[i][:, None] == owners[j]
            pairs = torch.ones_like(same).triu_(1) if i == j else torch.ones_like(same)
            across += count(cosines[pairs & ~same], bins)
            within += count(cosines[pairs & same], bins)
    return across, within


def count(cosines: Tensor, bins: int) -> Tensor:
    """Histogram of cosines over [-1, 1], those beyond it by rounding in the outer bins; they are overwritten."""
    place = cosines.add_(1).mul_(bins / 2).to(torch.int32).clamp_(0, bins - 1).flatten()
    return place.bincount(minlength=bins).cpu()


def summary(histogram: Tensor, total: float, quantile: float) -> CosineSummary:
    """Pairs, mean and quantile from a histogram of pairs and the sum of their cosines."""
    pairs = int(histogram.sum())
    if pairs == 0:
        return CosineSummary(0, float("nan"), float("nan"))
    wanted = torch.tensor(quantile * pairs, dtype=torch.float64).ceil().clamp_min(1)
    place = int(torch.searchsorted(histogram.cumsum(0).double(), wanted))
    return CosineSummary(pairs, total / pairs, -1 + (place + 1) * RESOLUTION)
