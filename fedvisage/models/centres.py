"""Centres: means of unit embeddings that a model carries by name, and embeddings about one of them.

A centre is the mean, over people, of each person's mean unit embedding, by the very model that carries it; it is not
normalised. Embeddings of a network that lie on one side of the origin are all alike by cosine; about a centre of people
like those they show, they are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedvisage.core.errors import FedVisageError

NO_CENTRE = "none"
OF_PAIRS = "pairs"
"""In evaluation: the mean over the test pairs, which no model carries."""
LEAST_PEOPLE = 20
"""The mean of fewer people is close to their templates, so no centre is made of them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Centre:
    """The mean of so many people's mean unit embeddings, `vector` (d,)."""

    vector: Tensor
    people: int


def about(features: Tensor, centre: Tensor) -> Tensor:
    """Embeddings (N, d) in the direction of unit(f) - c, as long as f."""
    moved = functional.normalize(functional.normalize(features, dim=1) - centre.to(features), dim=1)
    length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return moved * length


def centre_named(centres: Mapping[str, Centre], name: str, of: str) -> Centre:
    """The centre of this name; a model that lacks it is refused with the names it has."""
    if name not in centres:
        known = f"its centres: {', '.join(sorted(centres))}" if centres else "it has none"
        raise FedVisageError(f"{of} has no centre '{name}'; {known}")
    return centres[name]


def check_centre_name(name: str) -> str:
    """The name, if a centre may have it."""
    if not _NAME.fullmatch(name) or name in (NO_CENTRE, OF_PAIRS):
        raise FedVisageError(
            f"no centre can be called '{name}': use up to 64 letters, digits, '.', '_' and '-', "
            f"and neither '{NO_CENTRE}' nor '{OF_PAIRS}'"
        )
    return name


def centres_of(sums: Mapping[str, Tensor]) -> dict[str, Centre]:
    """Centres by name, from the sums of people's mean unit embeddings with how many people at the end (d + 1,)."""
    return {
        name: Centre((total[:-1] / total[-1]).to(torch.float32), round(float(total[-1])))
        for name, total in sorted(sums.items())
    }
