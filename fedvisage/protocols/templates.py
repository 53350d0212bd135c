"""Template protocols: IJB-B and IJB-C, and the ten splits of IJB-A."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError
from fedvisage.evaluation import Search, Templates, enrolled, pool_templates, search, tars_at_fars, template_scores
from fedvisage.evaluation.identification import pair_count_place, two_galleries
from fedvisage.evaluation.influence import alarms, listed_pairs, searched_pairs, share_influence, tar_influence
from fedvisage.faces.faceset import Indices
from fedvisage.faces.lists import SubjectList, TemplateList, TemplatePairs
from fedvisage.protocols.protocol import CONVENTION, Options, Result, mean_and_spread, protocol
from fedvisage.protocols.subject import Data, Listed, Subject
from fedvisage.protocols.verification import tar_influences

SPLIT = re.compile(r"(split-\d+)\.(templates|verification|gallery|probes)")


@protocol(
    "ijb",
    "IJB-B and IJB-C: 1:1 over template pairs, 1:N in two galleries, with the switches N, D and F",
    takes=("convention", "centre"),
)
def ijb(data: Data, subject: Subject, options: Options) -> Result:
    """The lists `templates`, `verification`, and `gallery-1`, `gallery-2`, `probes`: what there is of them."""
    if "templates" not in data.lists:
        known = ", ".join(data.lists) or "none"
        raise FedVisageError(f"{data.folder} has no list 'templates'; its lists: {known}")
    result = Result()
    pooled = _pool(data, "templates", subject, options, result)
    fars = options.fars or (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    if "verification" in data.lists:
        pairs = data.list("verification", TemplatePairs)
        scores = _verify(pooled, pairs, fars, options, result)
        if options.influence:
            _verification_influence(data, pooled, pairs, scores, fars, result)
    galleries = sorted(name for name in data.lists if name in ("gallery-1", "gallery-2"))
    if galleries and "probes" in data.lists:
        found = _identify(pooled, data, galleries, "probes", options, result)
        if options.influence:
            _identification_influence(data, pooled, found, result)
    if not result.metrics:
        raise FedVisageError(f"{data.folder} has neither the list 'verification' nor galleries and probes")
    return result


@protocol("ijba", "IJB-A: 1:1 and 1:N over its splits, mean and spread", takes=("convention", "centre"))
def ijba(data: Data, subject: Subject, options: Options) -> Result:
    """The lists `split-01.templates`, `split-01.verification`, `split-01.gallery`, `split-01.probes` and so on."""
    splits = sorted({match[1] for name in data.lists if (match := SPLIT.fullmatch(name))})
    if not splits:
        raise FedVisageError(f"{data.folder} has no lists of splits ('split-01.verification' and so on)")
    each: dict[str, Result] = {}
    result = Result()
    for split in splits:
        try:
            one = each[split] = _split(data, split, subject, options)
        except FedVisageError as error:
            raise FedVisageError(f"{split} of {data.folder}: {error}") from None
        result.details[split] = one.table()
        for text in one.notes:
            result.note(f"{split}: {text}" if "@" in text else text)
    common = [name for name in each[splits[0]].metrics if all(name in one.metrics for one in each.values())]
    if not common:
        raise FedVisageError(f"the {len(splits)} splits of {data.folder} have no measure in common")
    spread = mean_and_spread(each, common)
    result.metrics = {name: mean for name, (mean, _) in spread.items()}
    result.details["std over splits"] = {name: std for name, (_, std) in spread.items()}
    result.counts = {"splits": len(splits)}
    for name in dict.fromkeys(name for one in each.values() for name in one.counts):
        result.counts[name] = sum(one.counts.get(name, 0) for one in each.values())
    return result


def _split(data: Data, split: str, subject: Subject, options: Options) -> Result:
    """What one split's lists give."""
    one = Result()
    shared = "templates" if f"{split}.templates" not in data.lists else f"{split}.templates"
    pooled = _pool(data, shared, subject, options, one)
    if f"{split}.verification" in data.lists:
        pairs = data.list(f"{split}.verification", TemplatePairs)
        _verify(pooled, pairs, options.fars or (1e-3, 1e-2, 1e-1), options, one)
    if f"{split}.gallery" in data.lists and f"{split}.probes" in data.lists:
        _identify(pooled, data, [f"{split}.gallery"], f"{split}.probes", options, one)
    return one


@protocol(
    "ijb-means",
    "IJB-B, IJB-C as FedFace's code scores them: templates are means of unit embeddings, without media",
    takes=("convention", "centre"),
)
def ijb_means(data: Data, subject: Subject, options: Options) -> Result:
    """As `ijb`, with other templates."""
    return ijb(data, subject, _of_means(subject, options))


@protocol(
    "ijba-means",
    "IJB-A as FedFace's code scores it: templates are means of unit embeddings, without media",
    takes=("convention", "centre"),
)
def ijba_means(data: Data, subject: Subject, options: Options) -> Result:
    """As `ijba`, with other templates."""
    return ijba(data, subject, _of_means(subject, options))


def _of_means(subject: Subject, options: Options) -> Options:
    """Unit embeddings of images, each counting alike; no mirrored ones unless they are asked for."""
    return replace(options, keep_norm=False, media=False, detector=False, flip=options.flips(subject, custom=False))


def _pool(data: Data, name: str, subject: Subject, options: Options, result: Result) -> Templates:
    rows = data.list(name, TemplateList)
    flip = options.flips(subject)
    detector = data.faces.score is not None if options.detector is None else options.detector
    if detector and data.faces.score is None:
        raise FedVisageError(f"{data.folder} has no detector scores: say --no-detector-score")
    data.images(rows.image, f"the list '{name}'")
    used, place = np.unique(rows.image, return_inverse=True)
    pooled = pool_templates(
        Listed(subject, data, used, flip),
        place,
        rows.template,
        rows.media if options.media else None,
        detector_scores=data.faces.score[used] if detector and data.faces.score is not None else None,
        keep_norm=options.keep_norm,
    )
    result.note(f"N{int(options.keep_norm)} D{int(detector)} F{int(flip)} (norm kept, detector score, flip)")
    if not options.media:
        result.note("every image of a template counts alike, whatever its medium")
    result.counts |= {"templates": len(pooled), "images in templates": len(used)}
    return pooled


def _verify(
    pooled: Templates, pairs: TemplatePairs, fars: tuple[float, ...], options: Options, result: Result
) -> NDArray[np.float32]:
    same = pairs.same.astype(np.bool_)
    scores = template_scores(pooled, pairs.left, pairs.right)
    genuine, impostor = scores[same], scores[~same]
    convention = options.convention or CONVENTION
    for rate in tars_at_fars(genuine, impostor, fars, convention):
        result.rate(f"TAR@{rate.far:g}", rate)
    result.counts |= {"genuine": len(genuine), "impostor": len(impostor)}
    if convention != CONVENTION:
        result.note(f"TAR by the convention '{convention}'")
    return scores


def _people_of(data: Data, pooled: Templates, templates: Indices) -> Indices:
    """Whom templates show, by the face set's own labels."""
    rows = data.list("templates", TemplateList)
    _, first = np.unique(rows.template, return_index=True)
    people: Indices = data.faces.labels[rows.image[first]][pooled.find(templates, "the lists")]
    return people


def _verification_influence(
    data: Data,
    pooled: Templates,
    pairs: TemplatePairs,
    scores: NDArray[np.float32],
    fars: tuple[float, ...],
    result: Result,
) -> None:
    """How much each person moves the rates; nothing where labels and pairs do not agree on who is who."""
    left, right = (_people_of(data, pooled, side) for side in (pairs.left, pairs.right))
    if np.array_equal(left == right, pairs.same.astype(np.bool_)):
        listed = listed_pairs(scores, left, right, len(data.faces.names))
        result.influence |= tar_influences(listed, fars, result)


def _identification_influence(data: Data, pooled: Templates, found: _Found, result: Result) -> None:
    """How much each probe's person moves the rates, among galleries that stay as they are."""
    people, whose = len(data.faces.names), _people_of(data, pooled, data.list("probes", SubjectList).template)
    each = [alarms(one, whose, people) for one in found.galleries]
    counted = searched_pairs(found.asked, found.known, whose, people, max(found.fpirs))
    told = [name for name, value in result.metrics.items() if np.isfinite(value)]
    for fpir in found.fpirs:
        if (name := f"TPIR@{fpir:g} (nist)") in told:
            result.influence[name] = np.mean([tar_influence(one, fpir) for one in each], axis=0)
        if (name := f"TPIR@{fpir:g} (pair-count)") in told:
            result.influence[name] = tar_influence(counted, fpir)
    mated = found.merged.mated
    for name in told:
        kind, _, k = name.partition("-")
        if kind == "rank":
            right = found.merged.rank[mated] <= int(k)
            result.influence[name] = share_influence(right, whose[mated], people)


@dataclass(frozen=True)
class _Found:
    """What probes were searched in, and what was found in all of it and in each gallery."""

    asked: tuple[NDArray[Any], Indices]
    known: tuple[NDArray[Any], Indices]
    fpirs: tuple[float, ...]
    merged: Search
    galleries: list[Search]


def _identify(
    pooled: Templates, data: Data, galleries: list[str], probes: str, options: Options, result: Result
) -> _Found:
    """Rank-k and pair-count TPIR in the merged gallery, NIST's TPIR per gallery and averaged."""
    fpirs, ranks = options.fpirs or (0.01, 0.1), options.ranks or (1, 5, 10)
    asked = data.list(probes, SubjectList)
    vectors, who = enrolled(pooled, asked.template, asked.subject, f"the list '{probes}'")
    lists = [data.list(name, SubjectList) for name in galleries]
    known = [
        enrolled(pooled, one.template, one.subject, f"the list '{name}'")
        for name, one in zip(galleries, lists, strict=True)
    ]
    kept = max(pair_count_place(len(who), fpir) for fpir in fpirs)
    entries, people = (np.concatenate(side) for side in zip(*known, strict=True))
    merged = search(vectors, who, entries, people, largest=kept, dtype=np.float32)
    closed = merged.cmc(ranks, without_mate="leave out")
    result.metrics |= {f"rank-{k}": value for k, value in closed.rates.items()}
    if closed.without_mate:
        result.note(f"{closed.without_mate} of {len(who)} probes have no mate in any gallery: rank-k leaves them out")
    each: list[Search] = [merged]
    if len(known) > 1:
        each = [search(vectors, who, entry, person, dtype=np.float32) for entry, person in known]
    for fpir in fpirs:
        rates = [one.tpir(fpir, "nist") for one in each]
        result.rate(f"TPIR@{fpir:g} (nist)", two_galleries(rates) if len(rates) > 1 else rates[0])
        result.rate(f"TPIR@{fpir:g} (pair-count)", merged.tpir(fpir, "pair-count"))
    result.counts |= {"probes": len(who), "gallery templates": sum(len(person) for _, person in known)}
    result.counts |= {"probes without mate": closed.without_mate}
    return _Found((vectors, who), (entries, people), fpirs, merged, each)
