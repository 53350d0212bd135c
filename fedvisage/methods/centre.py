"""Centres of the trained model, as a sum over the parties' training people.

After the last round every party gets the final model. Per group of parties it answers with the sum of its people's mean
unit embeddings and, as the last number, how many people these are; the centre is the one divided by the other. A party
answers with zeros for a group that it does not belong to, and where it has fewer than `LEAST_PEOPLE` people: their sum
is close to their templates, and the server of an open federation sees each answer. Held-out images and people who are
tested on take no part. A person at several parties counts once at each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.core.codec import State
from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.core.flat import Layout, layout
from fedvisage.core.method import Component, Context, Images, Joined, Party, Result, broadcast
from fedvisage.core.parcel import BACKBONE, BUFFERS, CENTRES, Parcel, Tensors
from fedvisage.core.phase import LEARNERS, Phase
from fedvisage.core.sealing import Answer
from fedvisage.faces.shares import POOLED
from fedvisage.models import LEAST_PEOPLE, check_centre_name
from fedvisage.training import means_of_people

ALL = "all"
"""The group of all parties."""
PHASE = "centre"
MOST_PEOPLE = 1e6
"""No party has more people, and no number of their sum of unit vectors is larger."""


class FitCentres(Component):
    """Fits a centre for each group of parties after the last round."""

    groups: Mapping[str, str] = {ALL: ""}
    """Groups by name, with the domain of their people, which tells them apart where a method pools the images."""

    def phases(self) -> tuple[Phase, ...]:
        """One exchange at the end, with everybody who learns."""
        return (
            Phase(
                PHASE,
                "end",
                sampled=False,
                down={BACKBONE: "all", BUFFERS: "all"},
                up={CENTRES: "mean"},
                largest={CENTRES: MOST_PEOPLE},
                keeps_state=False,
            ),
        )

    def plan_centre(self, server: State, cohort: Sequence[str], context: Context) -> dict[str, Parcel]:
        """The final model."""
        return broadcast(server, (BACKBONE, BUFFERS), cohort)

    def centre(self, party: Party, parcel: Parcel) -> Answer:
        """The party's sum for each group."""
        model, faces = party.load(parcel), party.faces.train
        people = {group: self._people(party.name, group, faces) for group in self.groups}
        enough = [group for group, own in people.items() if np.count_nonzero(own) >= LEAST_PEOPLE]
        means = means_of_people(model, faces) if enough else np.empty((0, 0))
        sums: Tensors = {}
        for group, own in people.items():
            sums[group] = torch.zeros(model.metadata.embedding_size + 1, dtype=torch.float64)
            if group in enough:
                sums[group][:-1] = torch.from_numpy(means[own].sum(axis=0))
                sums[group][-1] = int(np.count_nonzero(own))
        return party.answer(tensors={CENTRES: sums})

    def _people(self, party: str, group: str, faces: Images) -> NDArray[np.bool_]:
        """Which of a party's people (C,) are of a group; nobody without labels."""
        domains = np.array([name.rpartition("/")[0] for name in faces.names], dtype=np.str_)
        if party == POOLED and group != ALL:
            own: NDArray[np.bool_] = (domains == self.groups[group]) & (self.groups[group] != "")
            return own
        return np.full(len(domains), belongs(party, group))

    def expect(self, phase: Phase, server: State, party: str, parcel: Parcel, context: Context) -> dict[str, Layout]:
        """A sum for each group."""
        total = torch.empty(context.embedding_size + 1, dtype=torch.float64, device="meta")
        return {CENTRES: layout(dict.fromkeys(self.groups, total))}

    def absorb_centre(self, server: State, result: Result, context: Context) -> State:
        """The sums of the groups that have people."""
        sums = {group: total * len(result.statistics) for group, total in result.reduced[CENTRES].items()}
        found = {group: total for group, total in sums.items() if round(float(total[-1])) >= LEAST_PEOPLE}
        context.numbers.update({f"people of centre {group}": float(total[-1]) for group, total in found.items()})
        return server | {CENTRES: found}


def belongs(party: str, group: str) -> bool:
    """Whether a party is of a group: all, those of a group of the recipe's partition, or the one of this name."""
    return group in (ALL, party, party.rpartition("-")[0])


def check(groups: Iterable[str], parties: Collection[str]) -> None:
    """Refuse a group that cannot be a centre's name, or that no party is of."""
    for group in groups:
        check_centre_name(group)
        if not any(belongs(party, group) for party in parties):
            known = {ALL, *parties, *(party.rpartition("-")[0] for party in parties)} - {""}
            raise FedVisageError(f"centre.groups: no party belongs to '{group}': {nearest(group, known)}")


def shortfalls(components: Iterable[Component], server: State, joined: Mapping[str, Joined]) -> list[str]:
    """What a user must be told: centres that were not given, and parties that have no part in one."""
    found: list[str] = []
    why = f"with fewer than {LEAST_PEOPLE} labelled people a party's sum is close to their templates"
    for group in (group for part in components if isinstance(part, FitCentres) for group in part.groups):
        own = {party: one for party, one in joined.items() if one.role in LEARNERS and belongs(party, group)}
        few = sorted(party for party, one in own.items() if one.classes < LEAST_PEOPLE)
        if group not in server.get(CENTRES, {}):
            found.append(f"the model has no centre '{group}': no party gave a sum for it, since {why}")
        elif few:
            found.append(f"the centre '{group}' is without {', '.join(few)}: {why}")
    return found
