"""The face set a recipe names: synthetic faces, one folder, or several folders joined, each a domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedvisage.config import Faces as Settings
from fedvisage.core.errors import FedVisageError
from fedvisage.faces.decoding import fit
from fedvisage.faces.faceset import FaceSet, ImageSource, open_faceset, write_faceset
from fedvisage.faces.records import Indices, Pixels, in_threads
from fedvisage.faces.synthetic import SyntheticFaces


def open_source(settings: Settings, cache: Path, only_labels: bool = False) -> FaceSet:
    """The face set of a recipe, every image `settings.size` pixels wide; synthetic ones are rendered into `cache` once.

    A folder of another size is refused, or scaled as it is read where the recipe says `resize`. With `only_labels`
    nothing is rendered ahead.
    """
    if settings.source == "synthetic":
        if only_labels:
            return synthetic_faces(settings)
        if not (cache / "faces.json").exists():
            write_faceset(cache, synthetic_faces(settings))
        return open_faceset(cache)
    if isinstance(settings.source, str):
        return _sized(open_faceset(Path(settings.source)), settings, settings.source)
    folders = [Path(source) for source in settings.source]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise FedVisageError(f"faces.source: folders are told apart by their names, and these are {', '.join(names)}")
    return joined({n: _sized(open_faceset(f), settings, str(f)) for n, f in zip(names, folders, strict=True)})


def synthetic_faces(settings: Settings) -> FaceSet:
    """The synthetic faces of a recipe; over several domains, each has its own people."""
    several = not isinstance(settings.domain, str)
    domains = (settings.domain,) if isinstance(settings.domain, str) else settings.domain
    if len(set(domains)) < len(domains):
        raise FedVisageError(f"faces.domain names a domain twice: {', '.join(domains)}")
    sets: dict[str, FaceSet] = {}
    for number, domain in enumerate(domains):
        people = settings.identities // len(domains) + (number < settings.identities % len(domains))
        source = SyntheticFaces(settings.seed + number, people, settings.images_per_identity, settings.size, domain)
        width = len(str(people - 1))
        names = tuple(f"person-{person:0{width}d}" for person in range(people))
        sets[domain] = FaceSet(source, np.asarray(source.labels), names)
    return joined(sets) if several else sets[domains[0]]


def joined(sets: Mapping[str, FaceSet]) -> FaceSet:
    """Several sets as one: each set is a domain, and its people are called `domain/name`."""
    if not sets:
        raise FedVisageError("there are no face sets to join")
    shapes = {name: faces.images.read(np.zeros(1, np.int64)).shape[1:] for name, faces in sets.items() if len(faces)}
    if len(set(shapes.values())) > 1:
        sizes = ", ".join(f"{name} {shape[1]}x{shape[0]}" for name, shape in shapes.items())
        raise FedVisageError(f"face sets of different sizes cannot be joined: {sizes}")
    labels: list[Indices] = []
    domain: list[Indices] = []
    names: list[str] = []
    domains: list[str] = []
    folders: list[tuple[Path, int]] = []
    images = 0
    for name, faces in sets.items():
        folders += [(folder, start + images) for folder, start in faces.folders]
        images += len(faces)
        labels.append(faces.labels + len(names))
        domain.append((faces.domain if faces.domain is not None else np.zeros(len(faces), np.int64)) + len(domains))
        names += [f"{name}/{person}" for person in faces.names]
        domains += [f"{name}/{inner}" for inner in faces.domains] or [name]
    scores = [faces.score for faces in sets.values() if faces.score is not None]
    return FaceSet(
        JoinedImages([faces.images for faces in sets.values()]),
        np.concatenate(labels),
        tuple(names),
        np.concatenate(domain),
        tuple(domains),
        np.concatenate(scores) if len(scores) == len(sets) else None,
        folders=tuple(folders),
    )


class JoinedImages:
    """The images of several sources, one after another."""

    def __init__(self, sources: Sequence[ImageSource]) -> None:
        self._sources = sources
        self._starts = np.cumsum([0, *map(len, sources)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Indices) -> Pixels:
        """Images (n, H, W, 3) RGB."""
        if len(indices) and not 0 <= np.min(indices) <= np.max(indices) < len(self):
            raise FedVisageError(f"images go from 0 to {len(self) - 1}, not {np.min(indices)} to {np.max(indices)}")
        home = np.searchsorted(self._starts, indices, side="right") - 1
        out: Pixels | None = None
        for number in np.unique(home) if len(indices) else [0]:
            chosen = home == number
            part = self._sources[number].read(indices[chosen] - self._starts[number])
            if out is None:
                out = np.empty((len(indices), *part.shape[1:]), np.uint8)
            out[chosen] = part
        assert out is not None
        return out

    @property
    def bare(self) -> JoinedImages | None:
        """The same of sources that know pixels only, if all can."""
        parts = [getattr(source, "bare", None) for source in self._sources]
        known = [part for part in parts if part is not None]
        return JoinedImages(known) if len(known) == len(parts) else None


class ResizedImages:
    """The central square of each image of a source, scaled when it is read."""

    def __init__(self, source: ImageSource, size: int) -> None:
        self._source, self._size = source, size

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Indices) -> Pixels:
        """Images (n, size, size, 3) RGB."""
        whole = self._source.read(indices)
        out = np.empty((len(indices), self._size, self._size, 3), np.uint8)

        def scale(start: int) -> None:
            for place in range(start, min(start + 16, len(out))):
                out[place] = fit(whole[place], self._size)

        in_threads(scale, range(0, len(out), 16))
        return out

    @property
    def bare(self) -> ResizedImages | None:
        """The same of a source that knows pixels only, if it can."""
        source = getattr(self._source, "bare", None)
        return None if source is None else ResizedImages(source, self._size)


def _sized(faces: FaceSet, settings: Settings, where: str) -> FaceSet:
    if not len(faces):
        raise FedVisageError(f"there are no images in {where}")
    height, width = faces.images.read(np.zeros(1, np.int64)).shape[1:3]
    if height == width == settings.size:
        return faces
    if not settings.resize:
        known = f"set faces.size = {width}, or " if height == width else ""
        raise FedVisageError(
            f"the faces in {where} are {width}x{height}, but faces.size is {settings.size}: "
            f"{known}let them be scaled when read with faces.resize = true"
        )
    return FaceSet(
        ResizedImages(faces.images, settings.size),
        faces.labels,
        faces.names,
        faces.domain,
        faces.domains,
        faces.score,
        folders=faces.folders,
    )
