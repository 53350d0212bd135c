"""What training costs in arithmetic: images seen, operations, and an estimate of GPU hours at a stated throughput.

Counted from the recipe: who takes part in which phase and how many images they hold; multiplications of every
convolution and matrix of the network for one image, twice that as operations, times three for a training step (forward,
and backward through weights and inputs). Hours are operations over the peak of a GPU's data sheet (fp32, no tensor
cores) times `UTILISATION`; nothing here was run on a GPU, so take them as an order of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedvisage.config import Group, Part, Partition, People, Recipe
from fedvisage.core.assembly import Assembly
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Method
from fedvisage.core.phase import SOURCE, TRAINER, VALIDATOR, Phase
from fedvisage.models import Backbone
from fedvisage.work import forward_images, trained_images


class Size(NamedTuple):
    """How large a face set is."""

    people: int
    images: int
    source: str


KNOWN = {
    "casia-webface": Size(10_575, 494_414, "Yi et al. 2014"),
    "ms1mv2": Size(85_742, 5_822_653, "InsightFace's faces_emore"),
    "asian-deepglint": Size(93_979, 2_830_146, "InsightFace's faces_glintasia"),
    "vggface2": Size(8_631, 3_137_807, "InsightFace's faces_vgg_112x112"),
    "ms1m-caucasian": Size(87_072, 4_434_177, "Zhuang et al. 2022, Table 1"),
    "ms1m-african": Size(7_000, 324_376, "Zhuang et al. 2022, Table 1"),
}
"""Face sets that the papers train on, by the name of their folder."""
GPUS = {"GTX 1080 Ti": 11.3, "T4": 8.1, "V100": 15.7, "RTX 3090": 35.6, "A100": 19.5}
"""Peak of fp32 in teraflop per second, as their makers' data sheets have it."""
UTILISATION = 0.35
"""Share of the peak that training convolutions of this size is taken to reach."""
GIVEN, GENERATED = "as given", "as generated"
PASSES = 3
"""A training step costs this many forward passes."""


def set_size(recipe: Recipe, people: int | None = None, images: int | None = None) -> Size | None:
    """How large the recipe's face set is: as given, as generated, or as known of it; None where nobody says."""
    faces = recipe.faces
    if people and images:
        return Size(people, images, GIVEN)
    if faces.source == "synthetic":
        return Size(faces.identities, faces.identities * faces.images_per_identity, GENERATED)
    found = [KNOWN.get(source) for source in _trained_on(recipe)]
    if None in found:
        return None
    known = [size for size in found if size is not None]
    said = "; ".join(dict.fromkeys(size.source for size in known))
    return Size(sum(size.people for size in known), sum(size.images for size in known), said)


def _trained_on(recipe: Recipe) -> list[str]:
    """Names of the sets that parties train on: the domains of their groups where all say one, else all there are."""
    sources = (recipe.faces.source,) if isinstance(recipe.faces.source, str) else recipe.faces.source
    named = [Path(source).name for source in sources]
    domains = [group.domain for group in recipe.partition.groups.values() if group.role != VALIDATOR]
    said = [domain for domain in dict.fromkeys(domains) if domain is not None]
    return said if len(named) > 1 and domains and None not in domains and set(said) <= set(named) else named


class Crowd(NamedTuple):
    """Parties of one role that hold about as much each."""

    role: str
    parties: int
    people: int
    """Of one party."""
    images: float
    """That one party trains on, or validates with; infinite where nobody knows."""


def crowds(recipe: Recipe, size: Size | None) -> list[Crowd]:
    """Who holds how much, group by group; without the set's size the recipe must say how many people a party has."""
    share = recipe.partition
    groups = list(share.groups.values())
    if not groups:
        groups = [Group(parties=share.parties, identities_per_party=share.identities_per_party)]
    if share.validators:
        people = {"identities_per_party": share.identities_per_validator}
        groups.append(Group(role=VALIDATOR, parties=share.validators, **people))
    return [_crowd(recipe, group, groups, size) for group in groups]


def _crowd(recipe: Recipe, group: Group, groups: Sequence[Group], size: Size | None) -> Crowd:
    share, whole = recipe.partition, _set_of(recipe, group, size)
    people = _said(group) or _left(share, group, groups, whole) // group.parties
    if not people and group.role != VALIDATOR:
        if whole is None:
            raise FedVisageError("set partition.identities_per_party to plan for a face folder that is not looked at")
        raise FedVisageError(f"{whole.people:,} identities are too few for this partition")
    if whole is None or not people:
        return Crowd(group.role, group.parties, people, math.inf)
    labelled = group.role in (TRAINER, SOURCE)
    held_out = group.held_out if group.held_out is not None else share.held_out if labelled else 0.0
    each = _each(share, whole, group)
    first = share.held_out_first if labelled and group.held_out is None else None
    return Crowd(group.role, group.parties, people, people * (each - first if first else each * (1 - held_out)))


def _set_of(recipe: Recipe, group: Group, size: Size | None) -> Size | None:
    """The faces that a group's people are taken of: its domain's, or all."""
    sources, domains = recipe.faces.source, recipe.faces.domain
    if group.domain is None or size is None or size.source == GIVEN:
        return size
    if sources == "synthetic" and isinstance(domains, tuple):
        return Size(size.people // len(domains), size.images // len(domains), size.source)
    return KNOWN.get(group.domain) if isinstance(sources, tuple) else size


def _said(group: Group) -> int:
    """People of one of the group's parties, if the recipe tells; else 0."""
    return group.identities_per_party or (group.count or 0) // group.parties


def _left(share: Partition, group: Group, groups: Sequence[Group], whole: Size | None) -> int:
    """People whom nobody else takes, for all parties of a group that says no number of its own; 0 where it is open."""
    parts = [who for part in (share.public, share.test, share.validation) for who in _several(part)]
    same = [who for who in parts if group.domain in (None, who.domain)]
    if whole is None or group.folds or group.names or (whole.source == GENERATED and any(_open(who) for who in same)):
        return 0
    others = [other for other in groups if group.domain in (None, other.domain)]
    taken = sum(who.count or 0 for who in same) + sum(_said(other) * other.parties for other in others)
    return (whole.people - taken) * group.parties // sum(other.parties for other in others if not _said(other))


def _open(who: People) -> bool:
    return who.count is None


def _several(part: Part) -> list[People]:
    """A part of the partition as people; a number is so many of all."""
    if isinstance(part, int):
        return [People(count=part)] if part else []
    return list(part) if isinstance(part, tuple) else [part]


def _each(share: Partition, size: Size, who: People) -> float:
    """Images of a person that are used: as many as people of the set have, or the middle of the asked-for range."""
    some = size.images / size.people
    if who.most_images:
        some = ((who.min_images or share.min_images) + who.most_images) / 2
    return min(some, share.max_images or math.inf)


def pooled(crowd: Sequence[Crowd], method: Method) -> list[Crowd]:
    """One party with what those hold whose images the method pools; its people are those whose labels it sees."""
    held = [some for some in crowd if some.role in method.pooled_roles]
    people = sum(some.people * some.parties for some in held if some.role not in method.pools_without_labels)
    return [Crowd(TRAINER, 1, people, sum(some.images * some.parties for some in held))]


def taking_part(phase: Phase, role: str, crowd: Sequence[Crowd], share: float) -> int:
    """Parties of a role in one exchange of a phase."""
    count = sum(some.parties for some in crowd if some.role == role) if role in phase.roles else 0
    return math.ceil(share * count - 1e-9) if phase.sampled and role not in phase.always else count


def exchanges(phase: Phase, rounds: int) -> int:
    """Exchanges of a phase in a whole run."""
    times = 1 if phase.when != "round" else -(-rounds // phase.every) if phase.also_last else rounds // phase.every
    return times * phase.repeats


def operations(model: Backbone) -> int:
    """Floating-point operations of one image's forward pass: two for each multiplication with a weight."""
    total = 0

    def count(layer: nn.Module, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            area = layer.kernel_size[0] * layer.kernel_size[1] * layer.in_channels // layer.groups
            total += 2 * area * output[0].numel()
        elif isinstance(layer, nn.Linear):
            total += 2 * layer.in_features * output[0].numel()

    watch_pass(model, model.modules(), count)
    return total


def watch_pass(model: Backbone, layers: Iterable[nn.Module], watch: Callable[[nn.Module, Any, Any], None]) -> None:
    """Send two images without content through a network on the device `meta`, and show `watch` what layers give."""
    hooks = [layer.register_forward_hook(watch) for layer in layers]
    try:
        size = model.metadata.image_size
        model(torch.empty(2, 3, size, size, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()


def compute(
    recipe: Recipe, method: Method, assembly: Assembly, model: Backbone, size: Size, crowd: Sequence[Crowd]
) -> dict[str, Any]:
    """Images and operations of the whole run, and hours on each GPU, by who takes part in which phase."""
    share = recipe.partition
    public = sum((who.count or 0) * _each(share, size, who) for who in _several(share.public))
    work, settings = recipe.training, recipe.federation
    before = public * recipe.pretrain.epochs
    training, forward = before, 0.0
    trainers = dict[Crowd, None]()
    for phase in assembly.phases.values():
        for some in crowd:
            there = taking_part(phase, some.role, crowd, settings.participation)
            if not there:
                continue
            role_has = sum(other.parties for other in crowd if other.role == some.role)
            times = exchanges(phase, settings.rounds) * there * some.parties / role_has
            if phase.trains:
                trainers[some] = None
                epochs = work.local_epochs
                once = (
                    epochs * trained_images(method, some.images, public)
                    if epochs
                    else work.batch_size * (work.steps or 1)
                )
                training += times * once
            forward += times * forward_images(assembly.owner(phase), phase, some.role, some.images, public)
    once = operations(model)
    total = once * (PASSES * training + forward)
    return {
        "data": size._asdict(),
        "images_per_party": round(sum(c.images * c.parties for c in trainers) / sum(c.parties for c in trainers)),
        "operations_per_image": once,
        "trained_images": round(training),
        "forward_images": round(forward),
        "operations": float(total),
        "utilisation": UTILISATION,
        "gpu_hours": gpu_hours(total),
        "pretraining": {"images": round(before), "gpu_hours": gpu_hours(once * PASSES * before)},
    }


def gpu_hours(total: float) -> dict[str, float]:
    """Hours that so many operations take on each GPU."""
    return {name: total / (peak * 1e12 * UTILISATION) / 3600 for name, peak in GPUS.items()}
