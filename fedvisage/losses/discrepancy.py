"""The multi-kernel maximum mean discrepancy of two samples (Long et al., ICML 2015: DAN).

With k the mean of Gaussian kernels exp(-||x - y||² / (b σ²)), σ² the median squared distance of the two samples
together and b a bandwidth, the squared discrepancy of S and T is

    mean k(s, s') + mean k(t, t') - 2 mean k(s, t)

over all pairs, which is never negative and zero where both samples are one. The paper also learns how much each kernel
counts; here all count the same. Features are brought to unit length first, since faces are compared by cosines.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvisage.core.errors import FedVisageError
from fedvisage.losses._cosines import full_precision, unit, without_autocast

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def multi_kernel_mmd(source: Tensor, target: Tensor, bandwidths: Sequence[float] = BANDWIDTHS) -> Tensor:
    """Squared discrepancy of features (N, d) and (M, d); σ² is not learnt through."""
    if source.ndim != 2 or target.ndim != 2 or source.shape[1:] != target.shape[1:] or 0 in source.shape + target.shape:
        raise FedVisageError(
            "multi_kernel_mmd wants features (N, d) and (M, d), none of them empty; got "
            f"{tuple(source.shape)} and {tuple(target.shape)}"
        )
    if not bandwidths or not all(b > 0 for b in bandwidths):
        raise FedVisageError(f"bandwidths multiply a squared distance and must be positive, got {tuple(bandwidths)}")
    with without_autocast(source):
        source, target = full_precision(source, target)
        both = unit(torch.cat([source, target]))
        squared = (2 - 2 * both @ both.T).clamp_min(0)
        apart = squared.detach()[~torch.eye(len(both), dtype=torch.bool, device=both.device)]
        middle = apart.median().clamp_min(torch.finfo(squared.dtype).tiny)
        kernel = torch.stack([torch.exp(-squared / (b * middle)) for b in bandwidths]).mean(dim=0)
        n = len(source)
        return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
