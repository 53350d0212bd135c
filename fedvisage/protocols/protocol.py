"""What a protocol is: a function from a face set and a model to named metrics, with the counts they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.chosen import models_of, run_of
from fedvisage.core.errors import FedVisageError
from fedvisage.core.registry import Registry
from fedvisage.evaluation import Interval, Rate, Tpir
from fedvisage.evaluation._checks import rational_far
from fedvisage.evaluation.rates import Convention
from fedvisage.evaluation.verification import Rule
from fedvisage.models import NO_CENTRE, OF_PAIRS
from fedvisage.protocols.subject import Data, Subject


@dataclass(frozen=True)
class Options:
    """What a user may change; None is the protocol's own custom."""

    fars: tuple[float, ...] | None = None
    fpirs: tuple[float, ...] | None = None
    ranks: tuple[int, ...] | None = None
    flip: bool | None = None
    keep_norm: bool = True
    media: bool = True
    """Whether the images of a medium, such as the frames of a video, count once in a template."""
    detector: bool | None = None
    rule: Rule | None = None
    convention: Convention | None = None
    centre: str | None = None
    """The name of one of the model's centres, `none`, or `pairs` for the mean over the test pairs."""
    which: Literal["own", "local", "global", "start"] = "own"
    """Of the personal protocol: a party's own model, that without its last layer, the run's model, or its start."""
    noise: Literal["insightface", "megaface", "drop", "keep"] = "insightface"
    """What becomes of images on MegaFace's noise lists: see `protocols.search.CENTRES` for the first two."""
    pairs: int = 3000
    seed: int = 1
    run: Path | None = None
    """The run, or party of a run, whose people an embeddings file is scored on by the personal protocol."""
    resamples: int = 0
    """For confidence intervals over people, where the protocol has them; 0 for none."""
    curves: bool = False
    """Whether the details have the points of the ROC and DET curves, where the protocol scores pairs."""
    influence: bool = False
    """Whether to say how much each person moves each metric, where the protocol can."""

    def __post_init__(self) -> None:
        for name, rates in (("far", self.fars), ("fpir", self.fpirs)):
            for rate in rates or ():
                rational_far(rate, name)

    def flips(self, subject: Subject, custom: bool = True) -> bool:
        """Whether mirrored images' embeddings are added: as asked, or as an embeddings file has it, or by custom."""
        if self.flip is not None:
            return self.flip
        return subject.file.about.flip if subject.file is not None else custom


@dataclass
class Result:
    """The metrics of one model on one face set by one protocol.

    `metrics` are shares (0 to 1) in the order of a results table; NaN where the data cannot tell, and then `notes` says
    why. `counts` are what the metrics were counted over, `details` what a table has no room for.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    influence: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """By metric, where asked for: how much each person of the face set moves it (see `evaluation.influence`)."""
    people: tuple[str, ...] = ()
    """Who they are, where it is not the people of the face set."""

    def rate(self, name: str, rate: Rate | Tpir) -> None:
        """Take in a rate, with the reason where it is NaN."""
        self.metrics[name] = rate.value
        if rate.reason is not None:
            self.note(f"{name}: {rate.reason}")

    def interval(self, name: str, found: Interval) -> None:
        """Take in a metric's confidence interval."""
        self.details.setdefault("intervals", {})[name] = [found.low, found.high]
        lost = f", {found.undefined:,} of which had no value" if found.undefined else ""
        self.note(
            f"{name}: {100 * found.low:.2f} to {100 * found.high:.2f} in {100 * found.level:g}% of "
            f"{found.resamples:,} resamples of the people{lost}"
        )

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def merge(self, prefix: str, other: Result) -> None:
        """Take in another result's numbers under a prefix."""
        self.metrics |= {f"{prefix} {name}": value for name, value in other.metrics.items()}
        self.counts |= {f"{prefix} {name}": value for name, value in other.counts.items()}
        self.details |= {f"{prefix} {name}": value for name, value in other.details.items()}
        self.influence |= {f"{prefix} {name}": value for name, value in other.influence.items()}
        for text in other.notes:
            self.note(f"{prefix}: {text}")

    def table(self) -> dict[str, Any]:
        """Plain data; NaN becomes None, which JSON can say."""
        plain = {name: None if math.isnan(value) else value for name, value in self.metrics.items()}
        return {"metrics": plain, "counts": self.counts, "notes": self.notes, "details": self.details}


@dataclass(frozen=True)
class Protocol:
    """A protocol by name: what it measures, and how."""

    about: str
    run: Callable[[Data, Subject, Options], Result]
    needs_run: bool = False
    """Whether it works on a run's folder alone."""
    by_round: bool = True
    """Whether it scores models, so that those of an earlier round can be scored, too."""
    takes: frozenset[str] = frozenset()
    """Which of `CHOICES` mean something to it; the others are refused."""

    def check(self, name: str, options: Options) -> None:
        """Refuse a choice that this protocol would ignore."""
        asked: dict[str, str | None] = {"rule": options.rule, "convention": options.convention}
        if options.centre not in (None, NO_CENTRE):
            asked[CENTRE_OF_PAIRS if options.centre == OF_PAIRS else "centre"] = options.centre
        for choice, value in asked.items():
            if value is not None and choice not in self.takes:
                known = [other for other, one in PROTOCOLS.items() if choice in one.takes]
                option = choice.partition(" ")[0]
                raise FedVisageError(
                    f"the protocol '{name}' has no use for --{option} {value}: leave it out "
                    f"(it is for {', '.join(known)})"
                )


RULE: Rule = "insightface"
"""The rule of accuracy where none is asked for."""
CONVENTION: Convention = "exact"
"""The convention of TAR at FAR where none is asked for."""
CENTRE_OF_PAIRS = f"centre {OF_PAIRS}"
CHOICES = ("rule", "convention", "centre", CENTRE_OF_PAIRS)
"""What some protocols can be asked for: a rule, a convention, a centre of the model, the mean over the test pairs."""
PROTOCOLS: Registry[Protocol] = Registry("protocol")


def protocol(
    name: str, about: str, needs_run: bool = False, by_round: bool = True, takes: Iterable[str] = ()
) -> Callable[[Callable[[Data, Subject, Options], Result]], Callable[[Data, Subject, Options], Result]]:
    """File a function as the protocol `name`."""

    def add(run: Callable[[Data, Subject, Options], Result]) -> Callable[[Data, Subject, Options], Result]:
        PROTOCOLS.register(name)(Protocol(about, run, needs_run, by_round, frozenset(takes)))
        return run

    return add


def run(name: str, data: Data, subject: Subject, options: Options | None = None) -> Result:
    """A model's result on a face set by the protocol `name`, with what the set's import left out among the notes."""
    chosen = PROTOCOLS[name]
    models, _ = models_of(Path(subject.path))
    if not chosen.by_round and run_of(models) != models:
        raise FedVisageError(f"the protocol '{name}' is of a whole run, not of its chosen round: name the run's folder")
    options = options or Options()
    chosen.check(name, options)
    subject.use_centre(options.centre)
    result = chosen.run(data, subject, options)
    if subject.centre:
        result.note(f"embeddings about the model's centre '{subject.centre}'")
    for text in [] if chosen.needs_run else data.left_out:
        result.note(text)
    return result


def mean_and_spread(results: Mapping[str, Result], names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Mean and population standard deviation of metrics over several results."""
    found = {}
    for name in names:
        values = [result.metrics[name] for result in results.values()]
        mean = sum(values) / len(values)
        found[name] = (mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)))
    return found
