"""What training costs in arithmetic: images seen, operations, and an estimate of GPU hours at a stated throughput.

Counted from the recipe: multiplications of every convolution and matrix of the network for one image, twice that as
operations, times three for a training step (forward, and backward through weights and inputs). Hours are operations
over the peak of a GPU's data sheet (fp32, no tensor cores) times `UTILISATION`; nothing here was run on a GPU, so take
them as an order of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedvisage.build import Parts
from fedvisage.config import People, Recipe
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import VALIDATOR
from fedvisage.models import Backbone


class Size(NamedTuple):
    """How large a face set is."""

    people: int
    images: int
    source: str


KNOWN = {
    "casia-webface": Size(10_575, 494_414, "Yi et al. 2014"),
    "ms1mv2": Size(85_742, 5_822_653, "InsightFace's faces_emore"),
    "ms1mv2-10k": Size(10_000, 1_000_000, "Liu et al. 2022: 10,000 people of nominally 100 images"),
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
PASSES = 3
"""A training step costs this many forward passes."""


def set_size(recipe: Recipe, people: int | None = None, images: int | None = None) -> Size | None:
    """How large the recipe's face set is: as given, as generated, or as known of it; None where nobody says."""
    faces = recipe.faces
    if people and images:
        return Size(people, images, "as given")
    if faces.source == "synthetic":
        return Size(faces.identities, faces.identities * faces.images_per_identity, "as generated")
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


def with_people(recipe: Recipe, size: Size | None) -> Recipe:
    """The recipe with the number of people per party said, where the set's size tells it and the recipe does not."""
    share = recipe.partition
    if size is None or share.identities_per_party or _group_people(recipe):
        return recipe
    left = size.people - sum(_counted(part) for part in (share.public, share.test, share.validation))
    each = (left - share.validators * share.identities_per_validator) // share.parties
    if each < 1:
        raise FedVisageError(f"{size.people:,} people are too few for this partition")
    return recipe.model_copy(update={"partition": share.model_copy(update={"identities_per_party": each})})


def _counted(part: int | People | tuple[People, ...]) -> int:
    """How many people a part of the partition says it has; one that does not say counts as nobody."""
    if isinstance(part, int):
        return part
    several = part if isinstance(part, tuple) else (part,)
    return sum(some.count or 0 for some in several)


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


def compute(recipe: Recipe, parts: Parts, model: Backbone, size: Size, parties: int) -> dict[str, Any]:
    """Images and operations of the whole run, and hours on each GPU; `parties` take part in a round."""
    public, own = _shares(recipe, size)
    work, method = recipe.training, parts.method
    epochs = work.local_epochs
    trained = own * epochs if epochs is not None else (work.steps or 1) * work.batch_size
    rounds = recipe.federation.rounds
    passes = method.forward_images(own, public)
    start = public * recipe.pretrain.epochs
    once = operations(model)
    training = rounds * parties * trained + start
    forward = rounds * parties * passes
    total = once * (PASSES * training + forward)
    return {
        "data": size._asdict(),
        "images_per_party": round(own),
        "operations_per_image": once,
        "trained_images": round(training),
        "forward_images": round(forward),
        "operations": float(total),
        "utilisation": UTILISATION,
        "gpu_hours": {name: total / (peak * 1e12 * UTILISATION) / 3600 for name, peak in GPUS.items()},
    }


def _shares(recipe: Recipe, size: Size) -> tuple[float, float]:
    """Public images, and a party's training images on average."""
    share = recipe.partition
    each = size.images / size.people
    if share.max_images:
        each = min(each, share.max_images)
    people = share.identities_per_party or _group_people(recipe)
    return _counted(share.public) * each, people * each * (1 - share.held_out)


def _group_people(recipe: Recipe) -> float:
    groups = [group for group in recipe.partition.groups.values() if group.role != VALIDATOR]
    said = [group.identities_per_party * group.parties for group in groups if group.identities_per_party]
    return sum(said) / recipe.partition.parties if groups and len(said) == len(groups) else 0.0
