"""Our PReLU has the values and gradients of PyTorch's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedvisage.models.prelu import PReLU


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 7), st.integers(1, 7)),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
    st.integers(0, 9),
)
def test_values_and_gradients_have_pytorchs_bits(
    shape: tuple[int, int, int, int], layout: torch.memory_format, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, above = (torch.randn(shape, generator=generator).contiguous(memory_format=layout) for _ in range(2))
    x[x.abs() < 0.1] = 0.0
    found = []
    for kind in (PReLU, nn.PReLU):
        layer, point = kind(shape[1]), x.clone().requires_grad_()
        with torch.no_grad():
            layer.weight.copy_(torch.randn(shape[1], generator=torch.Generator().manual_seed(seed + 10)))
        out = layer(point)
        out.backward(above)
        found.append((out.detach(), point.grad, layer.weight.grad))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 2, 4)])
def test_gradients_are_those_of_the_function(shape: tuple[int, ...]) -> None:
    layer = PReLU(3).double()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(layer, {"weight": w}, (x,)), (x, layer.weight)
    )
