"""True-accept rate at a false-accept rate, by each of the conventions that papers in the field have used.

They agree closely, not exactly, and part ways below the resolution 1/N of N impostor scores, where the target asks for
less than one false accept and no data can answer. The answer is then NaN with the reason, unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import _checks as checks
from fedvisage.evaluation._checks import Bools, Floats, Ints
from fedvisage.evaluation.curves import accept_counts, corners

Convention = Literal["exact", "nearest", "facepy", "histogram", "interpolated"]


@dataclass(frozen=True)
class Rate:
    """A rate at a target: `value` is NaN, and `reason` says why, where the data cannot tell.

    `threshold` is NaN for conventions that interpolate between two thresholds; `accept` says whether a score equal to
    it is accepted. `measured_far` is the share of impostors accepted there, and `resolution` the smallest share that
    the data can show. Stands for its value in float() and in numpy functions.
    """

    value: float
    threshold: float
    far: float
    resolution: float
    reason: str | None = None
    measured_far: float = float("nan")
    accept: Literal[">", ">="] = ">"

    def __float__(self) -> float:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype)


def tar_at_far(
    genuine: ArrayLike,
    impostor: ArrayLike,
    far: float,
    convention: Convention = "exact",
    *,
    below_resolution: Literal["nan", "allow"] = "nan",
) -> Rate:
    """Share of genuine scores (P,) accepted where a share `far` of impostor scores (N,) is; higher means more alike.

    convention="exact": threshold = the (floor(far N) + 1)-th largest impostor score, accept strictly above. The largest
        share that any threshold gives with at most `far` false accepts. At far=1 all are accepted (threshold -inf).
    convention="nearest" (insightface's IJB script): the point of scikit-learn's default ROC curve whose FAR is nearest,
        of two equally near the larger FAR, of equal FARs the larger TAR. May exceed the target.
    convention="facepy" (FedFace): threshold = the floor(far N)-th largest impostor score, or for 0 the largest + 1e-7;
        accept >=. Exceeds the target when impostors tie with the threshold.
    convention="histogram" (FedFR's personalised evaluation): cosines counted in 2001 bins of 0.001, TAR interpolated
        linearly between the bins' edges sorted by FAR. The original leaves open which of several edges of equal FAR
        counts; here the lowest where they have the very FAR asked for, and on the way from a lower FAR the highest.
    convention="interpolated" (opensphere): linear interpolation of scikit-learn's default ROC curve.

    far N is formed with the decimal that `far` was written as: 0.001 of 3000 is 3, 0.29 of 100 is 29. Where it is below
    1, the result is NaN with a reason; below_resolution="allow" gives what the convention's formula yields there.
    """
    rule: Callable[[Floats, Floats, Any], Rate] = checks.choice("TAR@FAR convention", convention, _CONVENTIONS)
    checks.choice("answer below the resolution", below_resolution, {"nan": 0, "allow": 0})
    checks.rational_far(far)
    positive = checks.scores("genuine scores", genuine)
    negative = checks.scores("impostor scores", impostor)
    if below_resolution == "nan" and allowed_accepts(far, negative.size) < 1:
        return unresolved(far, negative.size)
    return rule(positive, negative, far)


def tars_at_fars(
    genuine: ArrayLike, impostor: ArrayLike, fars: Iterable[float], convention: Convention = "exact"
) -> tuple[Rate, ...]:
    """`tar_at_far` at several rates; for convention "exact" the impostor scores are searched once, as they are."""
    targets = list(fars)
    if convention != "exact":
        return tuple(tar_at_far(genuine, impostor, far, convention) for far in targets)
    positive, negative = checks.scores("genuine scores", genuine), checks.finite("impostor scores", impostor)
    allowed = [allowed_accepts(far, negative.size) for far in targets]
    kept = min(max(allowed, default=0) + 1, negative.size)
    top = np.sort(np.partition(negative, negative.size - kept)[negative.size - kept :])[::-1].astype(np.float64)
    return tuple(exact_rate(positive, top, negative.size, far) for far in targets)


def exact_rate(genuine: Floats, largest: Floats, impostors: int, far: Any) -> Rate:
    """Convention "exact" from the floor(far N) + 1 or more `largest` of N impostor scores, descending."""
    accepts = allowed_accepts(far, impostors)
    if accepts < 1:
        return unresolved(far, impostors)
    threshold = -np.inf if accepts == impostors else float(largest[accepts])
    return above(genuine, threshold, far, int(np.count_nonzero(largest[:accepts] > threshold)), impostors)


def allowed_accepts(far: Any, impostors: int) -> int:
    """floor(far * impostors), free of rounding error."""
    return int(checks.rational_far(far) * impostors)


def unresolved(far: Any, impostors: int) -> Rate:
    """The answer to a false-accept rate that so few impostor scores cannot show."""
    nan = float("nan")
    reason = (
        f"far {far} of {impostors} impostor scores is less than one false accept; at least {1 / impostors:.3g} needed"
    )
    return Rate(nan, nan, float(far), 1 / impostors, reason)


def above(genuine: Floats, threshold: float, far: Any, false: int, impostors: int) -> Rate:
    """The rate of genuine scores (P,) strictly above a threshold that `false` of the impostors exceed."""
    value = _share(genuine > threshold)
    cut = float(threshold) + 0.0  # never -0.0, which sorting may or may not put before 0.0
    return Rate(value, cut, float(far), 1 / impostors, None, false / impostors)


def _share(hit: Bools) -> float:
    return int(np.count_nonzero(hit)) / hit.size


def _exact(genuine: Floats, impostor: Floats, far: Any) -> Rate:
    allowed = allowed_accepts(far, impostor.size)
    if allowed == impostor.size:
        return above(genuine, -np.inf, far, impostor.size, impostor.size)
    position = impostor.size - 1 - allowed
    threshold = float(np.partition(impostor, position)[position])
    return above(genuine, threshold, far, int(np.count_nonzero(impostor > threshold)), impostor.size)


def _at_least(genuine: Floats, impostor: Floats, far: Any, threshold: float) -> Rate:
    value, measured = _share(genuine >= threshold), _share(impostor >= threshold)
    return Rate(value, threshold, float(far), 1 / impostor.size, None, measured, ">=")


def _nearest(genuine: Floats, impostor: Floats, far: Any) -> Rate:
    _, false, threshold = corners(*accept_counts(genuine, impostor))
    gap = np.abs(false / false[-1] - float(far))
    return _at_least(genuine, impostor, far, float(threshold[::-1][np.argmin(gap[::-1])]))


def _facepy(genuine: Floats, impostor: Floats, far: Any) -> Rate:
    allowed = allowed_accepts(far, impostor.size)
    if allowed == 0:
        return _at_least(genuine, impostor, far, float(impostor.max()) + 1e-7)
    position = impostor.size - allowed
    return _at_least(genuine, impostor, far, float(np.partition(impostor, position)[position]))


def _between(far: Any, fars: Floats, tars: Floats, impostors: int) -> Rate:
    value = float(np.interp(float(far), fars, tars))
    return Rate(value, float("nan"), float(far), 1 / impostors, None, float(far), ">=")


def _interpolated(genuine: Floats, impostor: Floats, far: Any) -> Rate:
    accepted, false, _ = corners(*accept_counts(genuine, impostor))
    return _between(far, false / false[-1], accepted / accepted[-1], impostor.size)


def _histogram(genuine: Floats, impostor: Floats, far: Any) -> Rate:
    return histogram_rate(genuine, impostor, impostor.size, far)


def histogram_rate(genuine: Floats, largest: Floats, impostors: int, far: Any) -> Rate:
    """Convention "histogram" from the genuine scores (P,) and the `largest` of so many impostor scores.

    Where not all impostor scores are given, they must reach down to one in a lower bin than the (floor(far N) + 1)-th
    largest: what the curve does below that does not matter.
    """
    accepted, false = _at_or_after_bins("genuine", genuine), _at_or_after_bins("impostor", largest)
    if largest.size < impostors:
        lowest = int(bins_of(largest.min())) + 1
        accepted, false = accepted[lowest:], false[lowest:]  # at lower edges not all impostors are known
    # Edges ascend in cosine, so FARs descend: reversed groups of equal FAR, each in ascending order of cosine.
    fars = false / impostors
    order = np.argsort(fars, kind="stable")
    fars, tars = fars[order], accepted[order] / genuine.size
    target = float(far)
    upper = min(max(int(np.searchsorted(fars, target)), 1), fars.size - 1)
    if fars[upper] == target or fars[upper] == fars[upper - 1]:
        value = float(tars[upper])
    else:
        along = (target - fars[upper - 1]) / (fars[upper] - fars[upper - 1])
        value = float(tars[upper - 1] + along * (tars[upper] - tars[upper - 1]))
    return Rate(value, float("nan"), target, 1 / impostors, None, target, ">=")


def bins_of(cosine: Floats) -> Floats:
    """The bins of 0.001 that cosines lie in: 0 to 2000."""
    bins: Floats = np.trunc((cosine + 1) * 1000)
    return bins


def _at_or_after_bins(name: str, cosine: Floats) -> Ints:
    """Numbers (2002,) of the cosines that lie in bin 0 or later, 1 or later, ..., 2001 or later (none)."""
    bins = bins_of(cosine)
    outside = int(np.count_nonzero((bins < 0) | (bins > 2000)))
    if outside:
        raise FedVisageError(
            f"{outside} of {cosine.size} {name} scores are no cosines, which convention 'histogram' needs"
        )
    counts = np.bincount(bins.astype(np.int64), minlength=2001)
    return np.append(np.cumsum(counts[::-1])[::-1], 0)


_CONVENTIONS: dict[str, Callable[[Floats, Floats, Any], Rate]] = {
    "exact": _exact,
    "nearest": _nearest,
    "facepy": _facepy,
    "histogram": _histogram,
    "interpolated": _interpolated,
}
