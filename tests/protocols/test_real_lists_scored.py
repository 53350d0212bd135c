"""IJB-A and IJB-B by their real lists, with drawn images: every score against a slow one made from the description.

The reference reads the lists itself, line by line, and knows nothing of the import but the pixels of each file: a
template is the sum over its media of the mean of each medium's images, at unit length; a score is a dot product.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pytest
from listed_images import Drawn, as_ijbb, ijba_texts, ijbb_rows, real

from fedvisage.faces.faceset import open_faceset
from fedvisage.faces.importing import Report, Selection, write_source
from fedvisage.faces.importing.ijba import read_ijba
from fedvisage.faces.importing.templates import read_ijb
from fedvisage.models import load_model
from fedvisage.protocols import Data, Options, open_subject, run

pytestmark = real
SIZE = 32


def scored(source, out: Path, model: Path, protocol: str, options: Options):
    """The result of a protocol, and the embedding of every file."""
    files = [source.called(number) for number in range(len(source))]
    write_source(source, out, Report("drawn", protocol), Selection(size=SIZE))
    faces = open_faceset(out)
    assert len(faces) == len(files)
    vectors = load_model(model).embed(faces.images.read(np.arange(len(faces))), flip=True).astype(np.float64)
    result = run(protocol, Data(out), open_subject(str(model)), options)
    return result, dict(zip(files, vectors, strict=True))


def pooled(rows: list[tuple[str, str]], vectors) -> np.ndarray:
    """A template of files with the medium of each."""
    media: dict[str, list[np.ndarray]] = {}
    for file, medium in rows:
        media.setdefault(medium, []).append(vectors[file])
    total = sum(sum(own) / len(own) for own in media.values())
    return total / np.linalg.norm(total)


def tar(genuine: list[float], impostor: list[float], far: float) -> float:
    """The share of genuine scores above the largest impostor score that is one too many."""
    threshold = sorted(impostor, reverse=True)[math.floor(far * len(impostor))]
    return sum(score > threshold for score in genuine) / len(genuine)


def test_ijba_on_the_real_lines_of_four_splits(model: Path, tmp_path: Path) -> None:
    texts = ijba_texts()
    photos = {row[2] for name, text in texts.items() if "metadata" in name for row in lines(text)[1:]}
    source = read_ijba(Drawn("IJB-A", photos, texts))
    result, vectors = scored(source, tmp_path / "out", model, "ijba", Options(fars=(0.1, 0.02)))
    tars: dict[float, list[float]] = {0.1: [], 0.02: []}
    counts = {"genuine": 0, "impostor": 0, "templates": 0}
    for split in (1, 2, 4, 5):
        place = f"IJB-A_11_sets/split{split}"
        rows: dict[str, list[tuple[str, str]]] = {}
        boxes: dict[str, set[tuple[str, ...]]] = {}
        subject = {}
        for template, person, file, medium, *more in lines(texts[f"{place}/verify_metadata_{split}.csv"])[1:]:
            box = (file, *(f"{float(side):.0f}" for side in more[2:6]))
            subject[template] = person
            if box not in boxes.setdefault(template, set()):
                rows.setdefault(template, []).append((file, medium))
            boxes[template].add(box)
        templates = {template: pooled(own, vectors) for template, own in rows.items()}
        genuine, impostor = [], []
        for one, other in lines(texts[f"{place}/verify_comparisons_{split}.csv"]):
            score = float(templates[one] @ templates[other])
            (genuine if subject[one] == subject[other] else impostor).append(score)
        for far, found in tars.items():
            found.append(tar(genuine, impostor, far))
        counts["genuine"] += len(genuine)
        counts["impostor"] += len(impostor)
        counts["templates"] += len(templates)
    assert (counts["genuine"], counts["impostor"]) == (25 + 29 + 25 + 29, 60 * 4)
    assert {name: result.counts[name] for name in counts} == counts
    assert result.counts["splits"] == 4
    for far, found in tars.items():
        assert result.metrics[f"TAR@{far:g}"] == pytest.approx(sum(found) / 4, abs=1e-12)
    assert any("template 4161 of split 2" in text for text in result.notes), "a score says what its import left out"


def lines(text: bytes) -> list[list[str]]:
    return list(csv.reader(text.decode().splitlines()))


def test_ijb_on_real_templates(model: Path, tmp_path: Path) -> None:
    rows = ijbb_rows()
    images = {f"loose_crop/{row['FILENAME']}" for row in rows}
    source = read_ijb(Drawn("IJB-B", images, as_ijbb(rows)))
    options = Options(fars=(0.1, 0.01), fpirs=(0.3,), ranks=(1, 5))
    result, vectors = scored(source, tmp_path / "out", model, "ijb", options)
    files: dict[str, dict[str, str]] = {}
    subject, home = {}, {}
    for row in rows:
        medium = re.sub(r"\D", "", row["FILENAME"].split("_")[0])
        files.setdefault(row["TEMPLATE_ID"], {})[row["FILENAME"]] = medium
        subject[row["TEMPLATE_ID"]] = row["SUBJECT_ID"]
        home[row["TEMPLATE_ID"]] = row["LIST"]
    templates = {template: pooled(list(own.items()), vectors) for template, own in files.items()}
    gallery = [template for template in templates if home[template] != "mixed"]
    probes = [template for template in templates if home[template] == "mixed"]
    genuine, impostor = [], []
    for one in gallery:
        for other in probes:
            (genuine if subject[one] == subject[other] else impostor).append(float(templates[one] @ templates[other]))
    for far in (0.1, 0.01):
        assert result.metrics[f"TAR@{far:g}"] == tar(genuine, impostor, far)
    ranks, mates, others = [], {}, []
    for probe in probes:
        scores = {one: float(templates[one] @ templates[probe]) for one in gallery}
        mate = [one for one in gallery if subject[one] == subject[probe]]
        others += [score for one, score in scores.items() if one not in mate]
        if mate:
            mates[probe] = max(scores[one] for one in mate)
            ranks.append(1 + sum(score > mates[probe] for one, score in scores.items() if one not in mate))
    for k in (1, 5):
        assert result.metrics[f"rank-{k}"] == sum(rank <= k for rank in ranks) / len(ranks)
    threshold = sorted(others, reverse=True)[math.ceil(0.3 * len(probes)) - 1]
    right = sum(score > threshold for score in mates.values())
    assert result.metrics["TPIR@0.3 (pair-count)"] == right / len(mates)
    counts = {"templates": len(templates), "images in templates": len(images), "probes": len(probes)}
    counts |= {"genuine": len(genuine), "impostor": len(impostor), "gallery templates": len(gallery)}
    counts["probes without mate"] = len(probes) - len(mates)
    assert {name: result.counts[name] for name in counts} == counts
