"""Small face sets with the lists of each protocol, for the tests of protocols and of documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvisage.faces.faceset import ArrayImages, FaceSet, write_faceset
from fedvisage.faces.lists import ImageList, PairList, SubjectList, TemplateList, TemplatePairs, write_lists

SIZE = 32


def images_of(labels, seed=0):
    """Noise around a picture per person: even an untrained network tells them apart somewhat."""
    rng = np.random.default_rng(seed)
    people = rng.integers(0, 256, (int(max(labels)) + 1, SIZE, SIZE, 3))
    noise = rng.normal(0, 60, (len(labels), SIZE, SIZE, 3))
    return np.clip(people[labels] + noise, 0, 255).astype(np.uint8)


def write(folder: Path, labels, lists, **columns) -> Path:
    labels = np.asarray(labels)
    names = tuple(f"person-{number}" for number in range(int(labels.max()) + 1))
    write_faceset(folder, FaceSet(ArrayImages(images_of(labels)), labels, names, **columns))
    write_lists(folder, lists)
    return folder


def drawn_pairs(labels, count, seed=1):
    rng = np.random.default_rng(seed)
    left = rng.integers(0, len(labels), count)
    right = np.array([rng.choice(np.setdiff1d(np.flatnonzero(labels == labels[i]), [i])) for i in left])
    other = rng.integers(0, len(labels), count)
    same = np.arange(count) % 2 == 0
    right = np.where(same, right, other)
    same = labels[left] == labels[right]
    return PairList(left, right, same, np.arange(count) * 10 // count)


def lfw(folder: Path) -> Path:
    """Twenty people with three images each, 200 pairs in ten folds."""
    labels = np.repeat(np.arange(20), 3)
    return write(folder, labels, {"pairs": drawn_pairs(labels, 200)})


def rfw(folder: Path) -> Path:
    """Two domains of twelve people with pairs of each, queries and a gallery."""
    labels = np.repeat(np.arange(24), 3)
    domain = (labels >= 12).astype(np.int64)
    lists: dict = {"query": None}
    for number, race in enumerate(("african", "caucasian")):
        pairs = drawn_pairs(labels[domain == number], 100, number)
        shift = np.flatnonzero(domain == number)[0]
        lists[f"pairs.{race}"] = PairList(pairs.left + shift, pairs.right + shift, pairs.same, pairs.fold)
    query = np.arange(0, 72, 3)
    gallery = np.setdiff1d(np.arange(72), [*query, 1, 2])  # the first person has no gallery image
    lists["query"] = ImageList(query, labels[query])
    lists["gallery"] = ImageList(gallery, labels[gallery])
    return write(folder, labels, lists, domain=domain, domains=("african", "caucasian"))


def template_lists():
    """24 people with six images each: two templates of three images in two media; the first ones are enrolled."""
    image = np.arange(144)
    template = image // 3 + 100
    media = np.where(image % 3 < 2, 2 * (image // 3), 2 * (image // 3) + 1)
    numbers = np.unique(template)
    subject = (numbers - 100) // 2
    enrolled = (numbers % 2 == 0) & (subject < 20)
    left, right = np.meshgrid(numbers[numbers % 2 == 0], numbers[numbers % 2 == 1])
    left, right = left.ravel(), right.ravel()
    halves = subject[enrolled] % 2 == 0
    gallery = [SubjectList(numbers[enrolled][half], subject[enrolled][half]) for half in (halves, ~halves)]
    probes = SubjectList(numbers[numbers % 2 == 1], subject[numbers % 2 == 1])
    return (
        TemplateList(image, template, media),
        TemplatePairs(left, right, (left - 100) // 2 == (right - 100) // 2),
        gallery,
        probes,
    )


def ijb(folder: Path) -> Path:
    """The templates with verification pairs, two galleries, probes and detector scores; six images are in none."""
    labels = np.concatenate([np.full(6, 24), np.arange(144) // 6])
    templates, pairs, gallery, probes = template_lists()
    templates = TemplateList(templates.image + 6, templates.template, templates.media)
    lists = {"templates": templates, "verification": pairs, "probes": probes}
    lists |= {"gallery-1": gallery[0], "gallery-2": gallery[1]}
    score = np.random.default_rng(5).uniform(0.5, 1, 150).astype(np.float32)
    return write(folder, labels, lists, score=score)
