"""The schedule of a run: every exchange in its order, and the parties that take part in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedvisage.core.assembly import Assembly
from fedvisage.core.method import Component
from fedvisage.core.phase import Phase
from fedvisage.core.randomness import Streams


@dataclass(frozen=True)
class Step:
    """One exchange of the schedule."""

    round: int
    phase: Phase
    repeat: int = 0
    last_of_round: bool = False
    beside: tuple[Step, ...] = ()
    """Exchanges of the round before with other parties, one after the other while this one goes on."""


def schedule(components: Sequence[Component], rounds: int) -> list[Step]:
    """Every exchange of a run, in order."""
    steps: list[Step] = []
    later: list[Step] = []
    phases = Assembly(components).phases.values()
    for number in range(rounds + 2):
        when = "start" if number == 0 else "round" if number <= rounds else "end"
        here = [
            Step(min(number, rounds), phase, repeat)
            for phase in phases
            if phase.when == when
            and (when != "round" or number % phase.every == 0 or (number == rounds and phase.also_last))
            for repeat in range(phase.repeats)
        ]
        here = _overlapped(here, later)
        later = [step for step in here if step.phase.beside and step.round == number < rounds]
        here = [step for step in here if step not in later]
        if when == "round" and here:
            here[-1] = replace(here[-1], last_of_round=True)
        steps += here
    return steps


def shortened(components: Sequence[Component], steps: Sequence[Step], count: int) -> list[Step]:
    """The schedule of a run that ends in the round of its exchange number `count`.

    What is left of that round follows, and the phases of the end.
    """
    *done, last = steps[:count]
    past = {(one.round, one.phase.name, one.repeat) for step in (*done, last) for one in (step, *step.beside)}
    rest = [step for step in schedule(components, last.round) if (step.round, step.phase.name, step.repeat) not in past]
    over = last.phase.when == "round" and all(step.phase.when != "round" for step in rest)
    return [*done, replace(last, last_of_round=over), *rest]


def _overlapped(steps: Sequence[Step], before: Sequence[Step]) -> list[Step]:
    """Steps of a round with those left from the one before: beside the phase they name, or first if it is not due."""
    for index, step in enumerate(steps):
        if before and step.phase.name == before[0].phase.beside:
            return [*steps[:index], replace(step, beside=tuple(before)), *steps[index + 1 :]]
    return [*before, *steps]


def draw_cohort(phase: Phase, roles: Mapping[str, str], share: float, streams: Streams, round: int) -> list[str]:
    """Who takes part in a round: a share of each role, drawn without regard to who took part before."""
    cohort: list[str] = []
    for role in sorted(phase.roles):
        parties = [party for party, own in roles.items() if own == role]
        if phase.sampled and role not in phase.always and share < 1 and parties:
            count = max(1, math.ceil(share * len(parties) - 1e-9))
            chosen = streams.numpy("participation", round, role).choice(len(parties), count, replace=False)
            parties = [parties[index] for index in sorted(chosen)]
        cohort += parties
    return sorted(cohort)
