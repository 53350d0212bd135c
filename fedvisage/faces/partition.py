"""From identities to parties: who is public, who belongs to which party, and who is only tested on.

Public, test, validation, validator and party people are drawn in that order; who is asked for by name or fold is taken
before anybody is drawn. Then each person's images are shared out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedvisage.config import Group, Part, People
from fedvisage.config import Partition as Settings
from fedvisage.core.errors import FedVisageError
from fedvisage.core.phase import SOURCE, TARGET, TRAINER, VALIDATOR
from fedvisage.core.randomness import Streams
from fedvisage.faces.faceset import FaceSet, Indices
from fedvisage.faces.lists import ImageList, list_names, open_list
from fedvisage.faces.pool import Pool
from fedvisage.faces.shares import Partition, PartyFaces, Share, held_out_count, party_faces

TRAIN, HELD_OUT = ".train", ".held-out"
"""How the lists of a party's images end."""

__all__ = ["Partition", "PartyFaces", "Share", "hosted_partition", "make_partition", "party_faces"]


def make_partition(faces: FaceSet, settings: Settings, streams: Streams) -> Partition:
    """The partition a recipe asks for."""
    if settings.file is not None:
        partition = _saved(Path(settings.file), faces)
        partition.check(faces.labels)
        return partition
    pool = Pool(faces, streams, settings.exclude, settings.min_images)
    groups = _groups(settings, faces.domains)
    named, public, test, validation = _reserve(pool, settings, groups)
    judges = {
        f"validator-{number:02d}": pool.take(settings.identities_per_validator, "validators")
        for number in range(settings.validators)
    }
    part = {name: f"groups.{name}" if settings.groups else "parties" for name in groups}
    people = {
        name: named[part[name]] if part[name] in named else pool.take(_with_count(group), part[name])
        for name, group in groups.items()
    }
    if settings.swapped:
        judging = judges | {name: own for name, own in people.items() if groups[name].role == VALIDATOR}
        changed, test = _swapped(judging, test, faces.domain_of_people())
        judges, people = ({name: changed.get(name, own) for name, own in known.items()} for known in (judges, people))
    parties = {name: Share(VALIDATOR, pool.gather(own)) for name, own in judges.items()}
    for name, group in groups.items():
        own = streams.child("group", name) if len(groups) > 1 or settings.groups else streams
        parties |= _shares(pool, name, part[name], group, people[name], settings, own)
    _refuse_too_few_images(parties)
    partition = Partition(
        pool.gather(public, settings.max_images),
        pool.gather(test),
        parties,
        pool.gather(validation),
        pool.probes(test, settings.probes),
    )
    partition.check(faces.labels)
    return partition


def hosted_partition(faces: FaceSet, settings: Settings, roles: Mapping[str, str], streams: Streams) -> Partition:
    """The same public, test and validation people, for parties whose images are on hosts of their own."""
    parties = {name: Share(role, ()) for name, role in roles.items()}
    if settings.file is not None:
        return replace(_saved(Path(settings.file), faces), parties=parties)
    if settings.swapped:
        raise FedVisageError("partition.swapped: validators on hosts of their own cannot change places with the test")
    pool = Pool(faces, streams, settings.exclude, settings.min_images)
    _, public, test, validation = _reserve(pool, settings, _groups(settings, faces.domains))
    kept = pool.gather(validation), pool.probes(test, settings.probes)
    return Partition(pool.gather(public, settings.max_images), pool.gather(test), parties, *kept)


def _saved(path: Path, faces: FaceSet) -> Partition:
    """A partition from its file, or from the lists of one of the folders that the faces are from."""
    if not path.is_dir():
        return Partition.load(path)
    starts = {folder.resolve(): start for folder, start in faces.folders}
    if path.resolve() not in starts:
        raise FedVisageError(f"partition.file = '{path}': this folder is none of faces.source")
    start = starts[path.resolve()]
    end = min((other for other in starts.values() if other > start), default=len(faces))
    parts = {name: tuple((_images_of(path, name, end - start) + start).tolist()) for name in list_names(path)}
    trained = [name.removesuffix(TRAIN) for name in parts if name.endswith(TRAIN)]
    if not trained:
        raise FedVisageError(f"partition.file = '{path}': there is no list 'PARTY{TRAIN}' in this folder")
    parties = {name: Share(TRAINER, parts[name + TRAIN], parts.get(name + HELD_OUT, ())) for name in trained}
    return Partition(parts.get("public", ()), parts.get("test", ()), parties, parts.get("validation", ()))


def _images_of(folder: Path, name: str, count: int) -> Indices:
    """The images of a list; none of a list of something else."""
    listed = open_list(folder, name)
    images = listed.image if isinstance(listed, ImageList) else np.empty(0, np.int64)
    if len(images) and not 0 <= images.min() <= images.max() < count:
        raise FedVisageError(f"the list '{name}' of {folder} names images that are not there")
    return images


def _swapped(
    judging: Mapping[str, list[int]], test: list[int], domain: Indices
) -> tuple[dict[str, list[int]], list[int]]:
    """The test people dealt out to the validators of their domain, and the validators' people as the test."""
    changed: dict[str, list[int]] = {name: [] for name in judging}
    dealt: Counter[int] = Counter()
    for person in test:
        takers = [name for name, people in judging.items() if domain[person] in domain[people]]
        if takers:
            changed[takers[dealt[domain[person]] % len(takers)]].append(person)
            dealt[domain[person]] += 1
    if dealt.total() != len(test) or not judging or not all(changed.values()):
        raise FedVisageError("partition.swapped needs test people and validators in the same domains")
    return changed, [person for people in judging.values() for person in people]


def _reserve(
    pool: Pool, settings: Settings, groups: Mapping[str, Group]
) -> tuple[dict[str, list[int]], list[int], list[int], list[int]]:
    """Take who is asked for by name or fold, then draw the public, the test and the validation people."""
    asked: dict[str, Part] = {"public": settings.public, "test": settings.test, "validation": settings.validation}
    asked |= {f"groups.{name}": group for name, group in groups.items()}
    named = {part: pool.take(who, part) for part, who in asked.items() if _is_named(who)}
    public, test, validation = (
        named[part] if part in named else pool.take(asked[part], part) for part in ("public", "test", "validation")
    )
    return named, public, test, validation


def _is_named(who: Part) -> bool:
    if isinstance(who, tuple):
        return all(map(_is_named, who))
    return isinstance(who, People) and bool(who.names or who.folds)


def _groups(settings: Settings, domains: tuple[str, ...]) -> dict[str, Group]:
    """The groups of parties: the recipe's own, one of everybody, or one per domain."""
    if settings.groups:
        return dict(settings.groups)
    same = {name: getattr(settings, name) for name in ("sizes", "identities_per_party", "shared", "holders")}
    if settings.by == "identity":
        return {"party": Group(parties=settings.parties, **same)}
    if not domains:
        raise FedVisageError("partition.by = 'domain', but these faces have no domains")
    each, rest = divmod(settings.parties, len(domains))
    if rest:
        raise FedVisageError(f"{settings.parties} parties cannot be shared out evenly over {len(domains)} domains")
    names = [re.sub(r"[^a-z0-9]+", "-", domain.lower()).strip("-") or "domain" for domain in domains]
    names = [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)]
    return {n: Group(parties=each, domain=domain, **same) for n, domain in zip(names, domains, strict=True)}


def _with_count(group: Group) -> Group:
    """The group, asking for as many people as its parties are said to have."""
    if group.identities_per_party is None or group.sizes != "equal" or group.count is not None:
        return group
    return group.model_copy(update={"count": group.parties * group.identities_per_party})


def _shares(
    pool: Pool, name: str, part: str, group: Group, people: Sequence[int], settings: Settings, streams: Streams
) -> dict[str, Share]:
    """The shares of a group's parties."""
    if len(people) < group.parties:
        raise FedVisageError(f"partition.{part}: {group.parties:,} parties, but {len(people):,} people are left")
    held_out, first = group.held_out, None
    if held_out is None:
        learns = group.role in (TRAINER, SOURCE)
        held_out, first = (settings.held_out, settings.held_out_first) if learns else (0.0, None)
    if held_out and group.role == TARGET:
        raise FedVisageError(f"partition.{part}: a target has no labels to score held-out images with; use a test")
    take = iter(people)
    homes = [sorted(next(take) for _ in range(count)) for count in _sizes(group, len(people), part, streams)]
    most = settings.max_images
    dealt = _deal(pool, part, group, homes, most) if group.shared else {}
    digits = max(2, len(str(group.parties - 1)))
    parties = {}
    for number, own in enumerate(homes):
        images = [(person, dealt[number, person] if dealt else pool.images(person, most)) for person in own]
        parties[f"{name}-{number:0{digits}d}"] = _share(pool, group.role, images, held_out, first)
    return parties


def _sizes(group: Group, left: int, part: str, streams: Streams) -> list[int]:
    """Identities per party."""
    count = group.parties
    if group.sizes == "log-normal":
        shares = np.exp(streams.numpy("sizes").standard_normal(count))
        sizes = np.floor(shares / shares.sum() * (left - count)).astype(int) + 1
        for place in np.argsort(-shares, kind="stable")[: left - int(sizes.sum())]:
            sizes[place] += 1
        return [int(size) for size in sizes]
    each = group.identities_per_party or left // count
    if each * count > left:
        raise FedVisageError(f"partition.{part}: {count} parties of {each} people each, but only {left:,} people")
    return [each] * count


def _deal(
    pool: Pool, part: str, group: Group, homes: list[list[int]], most: int | None
) -> dict[tuple[int, int], Indices]:
    """Give some people to further parties; the images of a person are dealt out to all who hold them."""
    if group.holders > len(homes):
        raise FedVisageError(f"partition.{part}: {group.holders} holders of a person, but {len(homes)} parties")
    dealt = {(home, person): pool.images(person, most) for home, people in enumerate(homes) for person in people}
    names, least, count = pool.faces.names, 2 * group.holders, round(group.shared * len(dealt))
    able = sorted((names[person], home, person) for (home, person), own in dealt.items() if len(own) >= least)
    if len(able) < count:
        raise FedVisageError(
            f"partition.{part}: {count} people are to be shared, but only {len(able)} have the {least} images "
            f"that {group.holders} holders need"
        )
    for place in pool.streams.numpy("shared").permutation(len(able))[:count]:
        name, home, person = able[place]
        drawn = pool.streams.numpy("holders", name).permutation(len(homes)).tolist()
        holders = [home, *(other for other in drawn if other != home)][: group.holders]
        images = pool.shuffled("shares", person, dealt[home, person])
        for holder, own in zip(holders, np.array_split(images, group.holders), strict=True):
            dealt[holder, person] = np.sort(own)
            if holder != home:
                homes[holder] = sorted([*homes[holder], person])
    return dealt


def _share(pool: Pool, role: str, people: Sequence[tuple[int, Indices]], held_out: float, first: int | None) -> Share:
    """The images a party trains on and those it keeps for its own evaluation."""
    train: list[int] = []
    kept: list[int] = []
    for person, images in people:
        own = images if first else pool.shuffled("held-out", person, images)
        count = held_out_count(len(own), held_out, first)
        kept += sorted(own[:count].tolist())
        train += sorted(own[count:].tolist())
    return Share(role, tuple(train), tuple(kept))


def _refuse_too_few_images(parties: dict[str, Share]) -> None:
    for name, share in parties.items():
        if len(share.train) < 2:
            raise FedVisageError(f"party '{name}' has {len(share.train)} training image; training needs at least 2")
