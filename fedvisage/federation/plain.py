"""Whether a tensor is plain numbers in memory, one place for each: anything else is no answer that can be summed."""

from __future__ import annotations

import torch


def strangeness(tensor: object) -> str:
    """What is strange about something that should be a plain tensor; empty where nothing is."""
    if not isinstance(tensor, torch.Tensor):
        return f"is a {type(tensor).__name__} and no tensor"
    if tensor.layout is not torch.strided:
        return f"is a {str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.is_meta:
        return "is a meta tensor, without values"
    if tensor.is_quantized or tensor.is_nested:
        return "is a quantized or nested tensor"
    if not tensor.is_contiguous() and _overlaps(tensor):
        return "has elements that overlap in memory"
    return ""


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether strides may lead several indices to one place: each dimension must step over all smaller ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
