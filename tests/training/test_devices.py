"""Where training runs: what this machine cannot do is refused in words."""

from __future__ import annotations

import pytest
import torch

from fedvisage.core.errors import FedVisageError
from fedvisage.training import autocast, choose_device
from fedvisage.training.devices import cpu_has_bfloat16

NO_GPU = not torch.cuda.is_available()


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
def test_asking_for_a_gpu_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(FedVisageError, match=r"federation\.device is 'cuda', but PyTorch sees no GPU here"):
        choose_device("cuda")


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU here")
@pytest.mark.parametrize("worker", [0, 3])
def test_auto_without_a_gpu_is_the_cpu(worker: int) -> None:
    assert choose_device("auto", worker) == torch.device("cpu")


def test_cpu_is_the_cpu() -> None:
    assert choose_device("cpu", 5) == torch.device("cpu")


def test_full_precision_changes_nothing() -> None:
    with autocast("fp32", torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_reduced_precision_is_tried_before_it_is_used() -> None:
    """Where a bfloat16 convolution ends in an illegal instruction, only the trial process dies."""
    if cpu_has_bfloat16():
        with autocast("bf16", torch.device("cpu")):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    else:
        with pytest.raises(FedVisageError, match=r"this CPU cannot train in bf16: use training\.precision = 'fp32'"):
            autocast("bf16", torch.device("cpu"))
