"""The formats that can be imported: how each is recognised and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.core.errors import FedVisageError, nearest
from fedvisage.faces.importing.bins import read_bin
from fedvisage.faces.importing.fedfr import SIGN, read_fedfr
from fedvisage.faces.importing.finding import AS_LISTED, PathMapping
from fedvisage.faces.importing.ijba import read_ijba
from fedvisage.faces.importing.manifest import read_manifest, read_megaface
from fedvisage.faces.importing.recordio import read_recordio
from fedvisage.faces.importing.source import Source, Tally, images_in, is_image
from fedvisage.faces.importing.templates import read_ijb
from fedvisage.faces.importing.tree import open_tree
from fedvisage.faces.importing.verification import pair_files, read_cfp, read_folders, read_pairs, read_rfw
from fedvisage.faces.pool import read_names
from fedvisage.faces.records import Indices


@dataclass(frozen=True)
class Format:
    """A way that data sets come in."""

    summary: str
    read: Callable[[Path], Source]
    sign: Callable[[list[str]], bool]
    """Whether these files look like it."""
    seen: bool = False
    """Whether it has been read from files that others made."""


def _has(*patterns: str) -> Callable[[list[str]], bool]:
    compiled = [re.compile(rf"(?:.*/)?{pattern}") for pattern in patterns]
    return lambda files: all(any(one.fullmatch(path) for path in files) for one in compiled)


def _never(files: list[str]) -> bool:
    return False


FORMATS: Mapping[str, Format] = {
    "fedfr": Format("FedFR's split of MS1MV2, as its scripts write it", read_fedfr, _has(SIGN)),
    "recordio": Format("InsightFace `train.rec` (with `.idx`, `.lst`, `property`)", read_recordio, _has(r".+\.rec")),
    "bin": Format("InsightFace `.bin` verification set", read_bin, _never),
    "manifest": Format("CSV or Parquet with columns path, identity, domain, split", read_manifest, _never),
    "ijb": Format(
        "IJB-B, IJB-C: loose crops and meta files", lambda p: read_ijb(open_tree(p)), _has(r".*_face_tid_mid\.txt")
    ),
    "ijba": Format(
        "IJB-A: photos and split files",
        lambda p: read_ijba(open_tree(p)),
        _has(r"(?:verify_metadata|search_gallery)_\d+\.csv"),
    ),
    "megaface": Format(
        "MegaFace and FaceScrub: InsightFace's or the devkit's lists, noise lists",
        lambda p: read_megaface(open_tree(p)),
        _has(r"(?:facescrub_lst|facescrub_features_list\.json)"),
    ),
    "rfw": Format(
        "RFW: images, pairs and people per race",
        lambda p: read_rfw(open_tree(p)),
        _has(r"(?:African|Asian|Caucasian|Indian)_pairs\.txt"),
    ),
    "cfp": Format(
        "CFP-FP: images and `Protocol` folder",
        lambda p: read_cfp(open_tree(p)),
        lambda files: any(re.fullmatch(r"(?:.*/)?(?:Pair_list_[FP]|Split/FP/\d+/same)\.txt", path) for path in files),
        seen=True,
    ),
    "cfp-ff": Format("CFP-FF: the same files", lambda p: read_cfp(open_tree(p), "FF"), _never, seen=True),
    "pairs": Format(
        "LFW, SLLFW, CALFW, CPLFW, AgeDB-30, VGG2-FP: images and a list of pairs",
        lambda p: read_pairs(open_tree(p)),
        lambda files: bool(pair_files(_Names(files))),
        seen=True,
    ),
    "folders": Format(
        "image folders, one per person", lambda p: read_folders(open_tree(p)), lambda files: True, seen=True
    ),
}


@dataclass(frozen=True)
class _Names:
    """Files by their names only."""

    files: list[str]
    name: str = ""

    def read(self, path: str, most: int = 0) -> bytes:
        """Nothing."""
        raise FedVisageError(f"{path} is not to be read")


def read_source(
    path: Path,
    name: str | None,
    pairs: Path | None,
    domains: Mapping[str, str],
    mapping: PathMapping = AS_LISTED,
) -> tuple[str, Source]:
    """The format's name and the source at a path; the format is recognised where it is not said."""
    if not path.exists():
        raise FedVisageError(f"there is no {path}")
    name = name or ("pairs" if pairs is not None else detect(path))
    if name not in FORMATS:
        raise FedVisageError(f"no format '{name}': {nearest(name, FORMATS)}")
    if pairs is not None and name != "pairs":
        raise FedVisageError(f"--pairs belongs to the format 'pairs', not '{name}'")
    if mapping != AS_LISTED and name != "pairs":
        raise FedVisageError(f"{mapping.words} belongs to the format 'pairs', not '{name}'")
    source = read_pairs(open_tree(path), pairs, mapping) if name == "pairs" else FORMATS[name].read(path)
    return name, of_domains(source, domains) if domains else source


def detect(path: Path) -> str:
    """The format that the files at a path look like."""
    if path.is_file() and path.suffix.lower() != ".zip":
        known = {".rec": "recordio", ".bin": "bin", ".csv": "manifest", ".parquet": "manifest"}
        if path.suffix.lower() not in known:
            raise FedVisageError(f"{path} is in no format that is known by its ending: say which with --format")
        return known[path.suffix.lower()]
    tree = open_tree(path)
    others = [file for file in tree.files if not is_image(file)]
    found = next(name for name, kind in FORMATS.items() if kind.sign(others))
    if found == "folders" and not images_in(tree):
        raise FedVisageError(f"there are no images in {path}")
    return found


def of_domains(source: Source, domains: Mapping[str, str]) -> Source:
    """The source with its people in domains by lists of names, as in FedFRBench; people in no list are left out."""
    place = {name: number for number, name in enumerate(source.names)}
    home = np.full(len(source.names), -1, dtype=np.int64)
    for number, (domain, file) in enumerate(domains.items()):
        names = read_names(file)
        absent = [name for name in names if name not in place]
        if absent:
            source.notes.append(f"{domain}: {len(absent):,} of {len(names):,} people are not there")
        for name in names:
            if name in place:
                if home[place[name]] not in (-1, number):
                    raise FedVisageError(f"'{name}' is in the lists of two domains")
                home[place[name]] = number
    chosen = np.flatnonzero(home[source.labels] >= 0)
    if not len(chosen):
        raise FedVisageError(f"nobody in the lists of {', '.join(domains)} is in the images")
    return _chosen(source, chosen, home, tuple(domains))


def _chosen(source: Source, chosen: Indices, home: Indices, domains: tuple[str, ...]) -> Source:
    """These images of a source, each in the domain of its person; the lists go by all images."""
    read, called, lists, tally, count = source.read, source.called, source.lists, source.tally, len(source)

    def spread(kept: Indices) -> Indices:
        whole = np.full(count, -1, dtype=np.int64)
        whole[chosen] = kept
        return whole

    def tallied(there: NDArray[np.bool_]) -> dict[str, Tally]:
        """Images of people who were not chosen are not missing."""
        whole = np.ones(count, dtype=np.bool_)
        whole[chosen] = there
        return tally(whole) if tally is not None else {}

    return replace(
        source,
        labels=source.labels[chosen],
        read=lambda number: read(int(chosen[number])),
        called=lambda number: called(int(chosen[number])),
        domain=home[source.labels[chosen]],
        domains=domains,
        score=source.score[chosen] if source.score is not None else None,
        landmarks=source.landmarks[chosen] if source.landmarks is not None else None,
        boxes=source.boxes[chosen] if source.boxes is not None else None,
        lists=(lambda kept: lists(spread(kept))) if lists is not None else None,
        tally=tallied,
    )
