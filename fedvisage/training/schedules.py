"""Schedules: the learning rate of each round, the same for the parties and the server.

A schedule is a registered function of the round (1 is the first) and the number of rounds, with its options as
keyword-only parameters. It gives the factor that multiplies `training.learning_rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedvisage.config import Training
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Rates
from fedvisage.core.registry import Registry

SCHEDULES: Registry[Callable[..., float]] = Registry("schedule")
WARM_UP = "warm-up"


@SCHEDULES.register("constant")
def constant(round: int, rounds: int) -> float:
    """The same rate in every round."""
    return 1.0


@SCHEDULES.register("steps")
def steps(round: int, rounds: int, *, milestones: Sequence[int] = (), decay: float = 0.1) -> float:
    """Multiplied by `decay` after each milestone."""
    return decay ** sum(round > milestone for milestone in milestones)


@SCHEDULES.register("cosine")
def cosine(round: int, rounds: int) -> float:
    """Half a cosine, from 1 in the first round to nearly 0 in the last."""
    return 0.5 * (1 + math.cos(math.pi * max(0, round - 1) / max(1, rounds)))


@SCHEDULES.register(WARM_UP)
def warm_up(
    round: int,
    rounds: int,
    *,
    warm: int = 5,
    then: str = "cosine",
    milestones: Sequence[int] = (),
    decay: float = 0.1,
) -> float:
    """Another schedule times a factor that grows evenly to 1 over the first `warm` rounds (Goyal et al., 2017).

    `milestones` and `decay` are for `then = "steps"`.
    """
    if warm < 1 or then == WARM_UP:
        raise FedVisageError(f"schedule '{WARM_UP}' wants at least one round in 'warm' and another schedule in 'then'")
    given = {name: value for name, value in (("milestones", milestones), ("decay", decay)) if _takes(then, name)}
    return min(1.0, max(1, round) / warm) * float(SCHEDULES.with_options(then, given)(round, rounds))


def rates_of(work: Training, rounds: int) -> Rates:
    """The learning rate of each round under the schedule that `work` names; every round is tried here."""
    name = work.schedule
    given = {option: getattr(work, option) for option in ("milestones", "decay") if _takes(name, option)}
    if twice := sorted(given.keys() & work.schedule_options.keys()):
        raise FedVisageError(f"training.schedule_options.{twice[0]} belongs in [training]: {twice[0]} = ...")
    factor = SCHEDULES.with_options(name, given | work.schedule_options)

    def rate(round: int) -> float:
        return work.learning_rate * float(factor(round, rounds))

    for round in range(rounds + 1):
        try:
            value = rate(round)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise FedVisageError(f"schedule '{name}' fails in round {round}: {type(error).__name__}: {error}") from None
        if not 0 < value < math.inf:
            raise FedVisageError(
                f"schedule '{name}' gives the learning rate {value:g} in round {round}: it must be > 0"
            )
    return rate


def _takes(name: str, option: str) -> bool:
    return option in SCHEDULES.options(name)
