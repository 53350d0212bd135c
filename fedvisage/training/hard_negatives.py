"""Hard negatives: the public images that look like somebody at the party (FedFR, Liu et al., AAAI 2022).

D_HN is every public image whose largest cosine to a local image exceeds a threshold, under the round's global model.
The largest cosine is taken over tiles of a local and a public block: the (n, N) matrix, 10.8 GB in the paper's setting,
is never held.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError

LOCAL, PUBLIC = 2048, 2048


@torch.no_grad()
def hard_negatives(local: Tensor, public: Tensor, threshold: float = 0.4) -> Tensor:
    """Positions, ascending, of the public features (N, d) whose largest cosine to a local one (n, d) exceeds it."""
    if not -1 <= threshold <= 1:
        raise FedVisageError(f"the threshold of hard negatives is {threshold}: it is a cosine, from -1 to 1")
    return (largest_cosines(local, public) > threshold).nonzero().squeeze(1)


@torch.no_grad()
def hardest_negatives(local: Tensor, public: Tensor, share: float) -> Tensor:
    """Positions, ascending, of this share of the public features (N, d), rounded up: those with the largest cosines.

    Of equal ones the first. What a cosine means changes with the network, and with every round of training it; a share
    does not.
    """
    if not 0 < share <= 1:
        raise FedVisageError(f"the share of hard negatives is {share}: it is more than 0 and at most 1")
    order = largest_cosines(local, public).argsort(descending=True, stable=True)
    return order[: math.ceil(share * len(public))].sort().values


@torch.no_grad()
def largest_cosines(local: Tensor, public: Tensor) -> Tensor:
    """For each public feature (N, d) its largest cosine to a local one (n, d), (N,); a zero feature has cosine 0."""
    if local.ndim != 2 or public.ndim != 2 or local.shape[1] != public.shape[1] or 0 in (*local.shape, public.shape[1]):
        raise FedVisageError(
            "hard negatives want local features (n, d), not empty, and public features (N, d); got "
            f"{tuple(local.shape)} and {tuple(public.shape)}"
        )
    near = torch.split(_unit(local), LOCAL)
    result = near[0].new_empty(len(public))
    buffer = near[0].new_empty(len(near[0]) * min(PUBLIC, len(public)))
    for start in range(0, len(public), PUBLIC):
        block = _unit(public[start : start + PUBLIC]).to(near[0].dtype)
        best = result[start : start + len(block)].fill_(-torch.inf)
        for rows in near:
            tile = buffer[: len(rows) * len(block)].view(len(rows), len(block))
            torch.maximum(best, torch.mm(rows, block.T, out=tile).amax(dim=0), out=best)
    return result


def _unit(features: Tensor) -> Tensor:
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    if not bool(length.isfinite().all()):
        raise FedVisageError(f"{int((~length.isfinite()).sum())} features hold NaN, infinite or too large values")
    return features / torch.where(length > 0, length, torch.ones_like(length))
