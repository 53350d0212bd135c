"""People whom several parties hold: what becomes of their class embeddings where some of the holders are absent."""

from __future__ import annotations

import torch
from torch import Tensor


def follow_present(rows: Tensor, person: Tensor, present: Tensor) -> None:
    """Give absent holders' copies of a person, in place, the mean of the copies that came.

    `rows` (C, d) are class embeddings, `person` (C,) tells whose they are, `present` (C,) which of them came in this
    exchange. A stale copy would pull the mean of a person back to where it was. Of whom no copy came stays.
    """
    number = torch.unique(person, return_inverse=True)[1]
    came = torch.bincount(number[present], minlength=int(number.max()) + 1)
    follows = ~present & (came[number] > 0)
    people = number[follows].unique()
    if not len(people):
        return
    telling = present & torch.isin(number, people)
    sums = rows.new_zeros(len(people), rows.shape[1])
    sums.index_add_(0, torch.searchsorted(people, number[telling]), rows[telling])
    means = sums / came[people].unsqueeze(1)
    rows[follows] = means[torch.searchsorted(people, number[follows])]
