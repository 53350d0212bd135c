"""Schedules and optimisers by name: what the shipped ones do, one's own, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedvisage.build import resolve
from fedvisage.config import Training, load_recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.training import OPTIMISERS, SCHEDULES, Group, TorchOptimiser, make_optimiser, rates_of


def rates(rounds: int, **training: Any) -> list[float]:
    rate = rates_of(Training(learning_rate=0.1, **training), rounds)
    return [rate(round) for round in range(1, rounds + 1)]


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from(["constant", "steps", "cosine"]))
def test_a_warm_up_is_the_other_schedule_times_a_ramp(warm: int, rounds: int, then: str) -> None:
    more: dict[str, Any] = {"milestones": (3, 9), "decay": 0.5}
    found = rates(rounds, schedule="warm-up", schedule_options={"warm": warm, "then": then}, **more)
    plain = rates(rounds, schedule=then, **more)
    assert found == pytest.approx([min(1, n / warm) * rate for n, rate in enumerate(plain, 1)], rel=1e-12)


def test_ones_own_schedule_and_optimiser_are_named_with_their_options() -> None:
    @SCHEDULES.register("square-root")
    def square_root(round: int, rounds: int, *, power: float = 0.5) -> float:
        return max(1, round) ** -power

    @OPTIMISERS.register("rmsprop")
    def rmsprop(groups: Sequence[Group], weight_decay: float, *, alpha: float = 0.99) -> TorchOptimiser:
        return TorchOptimiser(torch.optim.RMSprop, groups, weight_decay=weight_decay, alpha=alpha)

    assert rates(4, schedule="square-root") == pytest.approx([0.1, 0.1 / math.sqrt(2), 0.1 / math.sqrt(3), 0.05])
    assert rates(2, schedule="square-root", schedule_options={"power": 1}) == pytest.approx([0.1, 0.05])
    work = Training(optimiser="rmsprop", optimiser_options={"alpha": 0.5}, weight_decay=0.0)
    assert same_path(work, lambda w: torch.optim.RMSprop([w], lr=0.1, alpha=0.5))


@pytest.mark.parametrize("steps", [1, 2], ids=["in one go", "kept from one stretch to the next"])
def test_adamw_is_pytorchs(steps: int) -> None:
    work = Training(optimiser="adamw", optimiser_options={"beta2": 0.9}, momentum=0.8, weight_decay=0.01)
    assert same_path(work, lambda w: torch.optim.AdamW([w], lr=0.1, betas=(0.8, 0.9), weight_decay=0.01), steps)


def same_path(work: Training, torch_has: Any, stretches: int = 1) -> bool:
    """Whether five gradients a stretch lead to the same bits as PyTorch's own optimiser, which is not begun again."""
    ours, theirs = torch.ones(3).requires_grad_(), torch.ones(3).requires_grad_()
    wanted, state = torch_has(theirs), dict[str, Tensor]()
    for stretch in range(stretches):
        optimiser = make_optimiser(work, [Group({"w": ours}, 0.1, work.momentum)])
        optimiser.restore({name: tensor.clone() for name, tensor in state.items()})
        for step in range(5):
            for parameter, of in ((ours, optimiser), (theirs, wanted)):
                parameter.grad = torch.tensor([1.0, -2.0, 0.1]) * (1 + step + stretch)
                of.step()
        state = optimiser.state()
    return torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"training.schedule_options": {"warm": 2}}, "schedule 'cosine' has no option 'warm': there are none"),
        ({"training.schedule": "warm-up", "training.schedule_options": {"warm": "x"}}, "schedule 'warm-up' fails in"),
        ({"training.schedule": "warm-up", "training.schedule_options": {"warm": 0}}, "at least one round in 'warm'"),
        ({"training.schedule": "warm-up", "training.schedule_options": {"then": "stps"}}, "did you mean 'steps'"),
        ({"training.schedule": "steps", "training.schedule_options": {"decay": 2}}, r"belongs in \[training\]"),
        ({"training.optimiser": "adam"}, "unknown optimiser 'adam': did you mean 'adamw'"),
        ({"training.optimiser": "adamw", "training.optimiser_options": {"beta": 1}}, "did you mean 'beta2'"),
        ({"training.optimiser": "adamw", "training.optimiser_options": {"beta2": 7}}, "cannot use beta2 = 7"),
        ({"training.optimiser": "adamw", "method.name": "pfm"}, "method 'pfm' corrects the steps of SGD"),
        ({"training.optimiser": "adamw", "compare": ["scaffold"]}, "method 'scaffold' corrects the steps of SGD"),
        ({"pretrain.schedule": "none"}, "unknown schedule 'none'"),
    ],
)
def test_what_does_not_exist_or_cannot_be_is_refused_before_anything_runs(changes: Any, message: str) -> None:
    with pytest.raises(FedVisageError, match=message):
        resolve(load_recipe("demo", changes))


def test_a_schedule_that_leaves_no_rate_is_refused() -> None:
    SCHEDULES.register("to-zero")(lambda round, rounds: 1 - round / rounds)
    with pytest.raises(FedVisageError, match="schedule 'to-zero' gives the learning rate 0 in round 7: it must be > 0"):
        rates_of(Training(schedule="to-zero"), 7)
