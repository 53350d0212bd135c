"""Identification protocols by image: queries and galleries (FedFRBench), probes among distractors (MegaFace)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.core.randomness import Streams
from fedvisage.evaluation import among_distractors, replace_noisy_probes, search
from fedvisage.evaluation.influence import MOST_PAIRS, pairs_among, share_influence
from fedvisage.faces.faceset import Indices
from fedvisage.faces.lists import ImageList
from fedvisage.protocols.protocol import Options, Result, protocol
from fedvisage.protocols.subject import Data, Listed, Subject
from fedvisage.protocols.verification import rfw, tar_influences

CENTRES: Mapping[str, Literal["sum", "mean"]] = {"insightface": "sum", "megaface": "mean"}
"""What noisy probes become before noise is added to it, by the name of the reading."""


@protocol(
    "query-gallery",
    "rank-1 of query images among gallery images, per domain where the face set names domains",
    takes=("centre",),
)
def query_gallery(data: Data, subject: Subject, options: Options) -> Result:
    """The lists `query` and `gallery`; without them one random image of everybody with two or more, among the rest."""
    query, who, gallery, known, drawn = _queries(data, options.seed)
    flip = options.flips(subject)
    domain, names = data.faces.domain, data.faces.domains
    result = Result()
    if drawn:
        result.note(f"queries drawn with seed {options.seed}: one image of everybody with two or more")
    if domain is None or len(np.unique(domain[np.concatenate([query, gallery])])) < 2:
        return _ranks(result, subject, data, (query, who, gallery, known), options, flip)
    for number in np.unique(domain[query]):
        here, there = domain[query] == number, domain[gallery] == number
        if not there.any():
            raise FedVisageError(f"domain '{names[number]}' has {int(here.sum())} queries and no gallery image")
        part = (query[here], who[here], gallery[there], known[there])
        result.merge(names[number], _ranks(Result(), subject, data, part, options, flip))
    return result


@protocol(
    "fedfrbench",
    "FedFRBench: RFW's accuracy and TAR per race, and rank-1 per domain",
    takes=("rule", "convention", "centre"),
)
def fedfrbench(data: Data, subject: Subject, options: Options) -> Result:
    """What Zhuang et al. report: `rfw` and `query-gallery` side by side."""
    result = rfw(data, subject, options)
    found = query_gallery(data, subject, options)
    result.metrics |= found.metrics
    result.counts |= found.counts
    for text in found.notes:
        result.note(text)
    return result


@protocol(
    "megaface",
    "rank-1 and TAR at FAR of probes among distractors of any number, with MegaFace's noise lists",
    takes=("centre",),
)
def megaface(data: Data, subject: Subject, options: Options) -> Result:
    """The lists `probes`, `distractors` and, where there is one, `noise`."""
    flip = options.flips(subject)
    probes, distractors = data.list("probes", ImageList), data.list("distractors", ImageList)
    probe = data.images(probes.image, "the list 'probes'")
    other = data.images(distractors.image, "the list 'distractors'")
    if not len(other):
        raise FedVisageError(f"the list 'distractors' of {data.folder} is empty")
    overlap = np.intersect1d(probe, other)
    if overlap.size:
        raise FedVisageError(f"{overlap.size} images of {data.folder} are probes and distractors, first {overlap[0]}")
    noisy: Indices = np.empty(0, np.int64)
    if "noise" in data.lists and options.noise != "keep":
        noisy = data.images(data.list("noise", ImageList).image, "the list 'noise'")
    result = Result()
    bad_probe, bad_other = np.isin(probe, noisy), np.isin(other, noisy)
    who = probes.subject
    if options.noise == "drop":
        probe, who, other = probe[~bad_probe], who[~bad_probe], other[~bad_other]
        bad_other = bad_other[~bad_other]
    vectors = subject.chosen(data, probe, flip)
    if options.noise in CENTRES and bad_probe.any():
        rng = Streams(options.seed).numpy("noisy probes")
        vectors = replace_noisy_probes(vectors, who, bad_probe, rng, CENTRES[options.noise])
    found = among_distractors(
        vectors,
        who,
        Listed(subject, data, other, flip),
        ranks=options.ranks or (1,),
        fars=options.fars or (1e-6,),
        noisy_distractors=bad_other if bad_other.any() else None,
    )
    result.metrics = {f"rank-{k}": value for k, value in found.ranks.items()}
    if options.influence:
        people, whose = len(data.faces.names), data.faces.labels[probe][found.probe]
        result.influence = {f"rank-{k}": share_influence(hits, whose, people) for k, hits in found.right.items()}
    for rate in found.rates:
        result.rate(f"TAR@{rate.far:g}", rate)
    labels = data.faces.labels[probe]
    if options.influence and not noisy.size and found.impostor <= MOST_PAIRS and np.array_equal(labels, who):
        sides = labels, subject.chosen(data, other, flip), data.faces.labels[other]
        pairs = pairs_among(vectors, *sides, len(data.faces.names))
        result.influence |= tar_influences(pairs, tuple(rate.far for rate in found.rates), result)
    result.counts = {"probes": found.probes, "distractors": found.distractors, "trials": found.trials}
    result.counts |= {"genuine": found.genuine, "impostor": found.impostor, "probes without mate": found.without_mate}
    if noisy.size:
        how = "noisy images left out"
        if options.noise in CENTRES:
            centre = f"the {CENTRES[options.noise]} of their person's other embeddings"
            how = f"noisy probes became {centre}, noisy distractors never match"
        on_list = f"{len(np.unique(noisy))} images on the noise list"
        result.note(f"{on_list}: {how}")
    return result


def _queries(data: Data, seed: int) -> tuple[Indices, Indices, Indices, Indices, bool]:
    """Queries and gallery with the person of each, and whether they were drawn here."""
    if "query" in data.lists:
        asked, known = data.list("query", ImageList), data.list("gallery", ImageList)
        data.images(asked.image, "the list 'query'")
        data.images(known.image, "the list 'gallery'")
        both = np.intersect1d(asked.image, known.image)
        if both.size:
            raise FedVisageError(f"{both.size} images of {data.folder} are in the query and the gallery")
        return asked.image, asked.subject, known.image, known.subject, False
    labels = data.faces.labels
    rng = Streams(seed).numpy("queries")
    order = rng.permutation(len(labels))
    _, first = np.unique(labels[order], return_index=True)
    query = np.sort(order[first])
    query = query[np.bincount(labels)[labels[query]] >= 2]
    if not query.size:
        raise FedVisageError(f"nobody in {data.folder} has two images: there is no query to look for")
    gallery = np.setdiff1d(np.arange(len(labels)), query)
    return query, labels[query], gallery, labels[gallery], True


def _ranks(
    result: Result,
    subject: Subject,
    data: Data,
    part: tuple[Indices, Indices, Indices, Indices],
    options: Options,
    flip: bool,
) -> Result:
    query, who, gallery, known = part
    probes, entries = subject.chosen(data, query, flip), subject.chosen(data, gallery, flip)
    found = search(probes, who, entries, known, dtype=np.float32).cmc(options.ranks or (1,), without_mate="miss")
    result.metrics |= {f"rank-{k}": value for k, value in found.rates.items()}
    result.counts |= {
        "queries": len(query),
        "gallery images": len(gallery),
        "gallery people": len(np.unique(known)),
        "queries without mate": found.without_mate,
    }
    if found.without_mate:
        result.note(f"{found.without_mate} of {len(query)} queries have no mate in the gallery and count as misses")
    return result
