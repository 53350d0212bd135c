"""Small stand-ins for the field's verification sets, laid out as their archives unpack: twenty people, drawn images."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

from listed_images import drawn

from fedvisage.faces.template import ARCFACE_POINTS

PEOPLE = 20
SIZE = 64
NAMES = [f"Person_{'ABCDEFGHIJKLMNOPQRST'[n]}" for n in range(PEOPLE)]


def put(folder: Path, images: list[str], texts: Mapping[str, str], size: int = SIZE) -> None:
    for path in images:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(drawn(path, size))
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def photos(way: str = "{name}_{k:04d}.jpg") -> list[str]:
    """Three images of everybody."""
    return [way.format(name=name, k=k) for name in NAMES for k in (1, 2, 3)]


def couples(fold: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int, int]]]:
    """Two same and two different pairs of the two people of a fold."""
    one, other = 2 * fold, 2 * fold + 1
    return [(one, 1, 2), (other, 2, 3)], [(one, 1, other, 2), (one, 3, other, 1)]


def lfw(folder: Path) -> None:
    """`lfw.tgz` unpacked, with `pairs.txt` and SLLFW's list beside it."""
    lines, sllfw = ["10\t2"], []
    for fold in range(10):
        same, different = couples(fold)
        lines += [f"{NAMES[p]}\t{a}\t{b}" for p, a, b in same]
        lines += [f"{NAMES[p]}\t{a}\t{NAMES[q]}\t{b}" for p, a, q, b in different]
        for p, a, q, b in [*((p, a, p, b) for p, a, b in same), *different]:
            sllfw += [f"{NAMES[person]}/{NAMES[person]}_{k:04d}.jpg" for person, k in ((p, a), (q, b))]
    put(folder / "lfw", photos("{name}/{name}_{k:04d}.jpg"), {})
    put(folder, [], {"pairs.txt": "\n".join(lines), "pair_SLLFW.txt": "\n".join(sllfw)})


def two_lines(number: str, folds: bool) -> str:
    """Same pairs first, two lines a pair; each with its fold's number, or with 1."""
    first, then = [], []
    for fold in range(10):
        same, different = couples(fold)
        for p, a, b in same:
            first += [f"{NAMES[p]}_{number.format(k)} {fold + 1 if folds else 1}" for k in (a, b)]
        for p, a, q, b in different:
            then += [f"{NAMES[person]}_{number.format(k)} 0" for person, k in ((p, a), (q, b))]
    return "\n".join([*first, *then]) + "\n"


def calfw(folder: Path) -> None:
    """`calfw.zip` unpacked."""
    both = [*photos("aligned images/{name}_{k:04d}.jpg"), *photos("images&landmarks/images/{name}_{k:04d}.jpg")]
    put(folder / "calfw", both, {"pairs_CALFW.txt": two_lines("{:04d}.jpg", True)})


def cplfw(folder: Path) -> None:
    """`cplfw.zip` unpacked, with a picture that somebody left there."""
    both = [*photos("aligned images/{name}_{k}.jpg"), *photos("images/{name}_{k}.jpg"), "cover.jpg"]
    put(folder / "cplfw", both, {"pairs_CPLFW.txt": two_lines("{}.jpg", False), "landmarks/Person_A_1.txt": "1 2\n"})


def cfp(folder: Path) -> None:
    """`cfp-dataset.zip` unpacked."""
    frontal = [f"Data/Images/{p + 1:03d}/frontal/{k:02d}.jpg" for p in range(PEOPLE) for k in range(1, 11)]
    profile = [f"Data/Images/{p + 1:03d}/profile/{k:02d}.jpg" for p in range(PEOPLE) for k in range(1, 5)]
    texts = {}
    for side, paths in (("F", frontal), ("P", profile)):
        texts[f"Protocol/Pair_list_{side}.txt"] = "".join(f"{n} ../{path}\n" for n, path in enumerate(paths, 1))
    for kind, each in (("FP", 4), ("FF", 10)):
        for fold in range(10):
            one, other = 2 * fold, 2 * fold + 1
            same = f"{10 * one + 1},{each * one + 2}\n{10 * other + 1},{each * other + 2}\n"
            different = f"{10 * one + 1},{each * other + 2}\n{10 * other + 1},{each * one + 2}\n"
            texts |= {f"Protocol/Split/{kind}/{fold + 1:02d}/same.txt": same}
            texts |= {f"Protocol/Split/{kind}/{fold + 1:02d}/diff.txt": different}
    put(folder / "cfp-dataset", [*frontal, *profile], texts)


def agedb(folder: Path) -> None:
    """One of InsightFace's verification sets."""
    images, answers = [], []
    for fold in range(10):
        same, different = couples(fold)
        for p, a, q, b in [*((p, a, p, b) for p, a, b in same), *different]:
            images += [drawn(f"{p}-{a}", SIZE), drawn(f"{q}-{b}", SIZE)]
            answers.append(p == q)
    (folder / "agedb_30.bin").write_bytes(pickle.dumps((images, answers)))


def rfw(folder: Path) -> None:
    """`RFW.zip` unpacked: loose crops with landmarks."""
    scale, images, texts = 2, [], {}
    points = "\t".join(f"{value:.3f}" for value in (ARCFACE_POINTS * scale).ravel())
    for race in ("African", "Asian", "Caucasian", "Indian"):
        pairs, landmarks = [], []
        for fold in range(10):
            same, different = couples(fold)
            pairs += [f"m.{race[:2]}{p}\t{a}\t{b}" for p, a, b in same]
            pairs += [f"m.{race[:2]}{p}\t{a}\tm.{race[:2]}{q}\t{b}" for p, a, q, b in different]
        for p in range(PEOPLE):
            for k in (1, 2, 3):
                images.append(f"test/data/{race}/m.{race[:2]}{p}/m.{race[:2]}{p}_{k:04d}.jpg")
                landmarks.append(f"/{images[-1]}\t{p}\t{points}\n")
        texts[f"test/txts/{race}/{race}_pairs.txt"] = "\n".join(pairs)
        texts[f"test/txts/{race}/{race}_lmk.txt"] = "".join(landmarks)
    put(folder / "RFW", images, texts, 112 * scale)


def ijbc(folder: Path) -> None:
    """InsightFace's copy of IJB-C: twenty people with two templates of two crops each."""
    points = " ".join(f"{value:.4f}" for value in ARCFACE_POINTS.ravel())
    faces = [(n + 1, n // 2 + 1) for n in range(4 * PEOPLE)]
    head = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n"
    lists = {"gallery_G1": range(10), "gallery_G2": range(10, 18), "probe_mixed": range(PEOPLE)}
    texts = {
        "meta/ijbc_face_tid_mid.txt": "".join(f"{image}.jpg {template} {image}\n" for image, template in faces),
        "meta/ijbc_name_5pts_score.txt": "".join(f"{image}.jpg {points} 0.9\n" for image, _ in faces),
        "meta/ijbc_template_pair_label.txt": "".join(
            f"{2 * p + 1} {2 * q + 2} {int(p == q)}\n" for p in range(PEOPLE) for q in range(PEOPLE)
        ),
    }
    for name, people in lists.items():
        own = "".join(f"{2 * p + (2 if name == 'probe_mixed' else 1)},{p},x\n" for p in people)
        texts[f"meta/ijbc_1N_{name}.csv"] = head + own
    put(folder / "IJBC", [f"loose_crop/{image}.jpg" for image, _ in faces], texts, 112)


def ijba(folder: Path) -> None:
    """IJB-A with two of its splits."""
    head = "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT\n"
    texts, images = {}, [f"img/{n}.JPG" for n in range(2 * PEOPLE)]
    for split in (1, 2):
        rows = {n: f"{n},{n // 2},img/{n}.jpg,{n},{n},,4.{split},4,40,40\n" for n in range(2 * PEOPLE)}
        at = f"IJB-A_11_sets/split{split}"
        texts[f"{at}/verify_metadata_{split}.csv"] = head + "".join(rows.values())
        texts[f"{at}/verify_comparisons_{split}.csv"] = "".join(
            f"{2 * p},{2 * q + 1}\n" for p in range(PEOPLE) for q in range(PEOPLE)
        )
        at = f"IJB-A_1N_sets/split{split}"
        texts[f"{at}/search_gallery_{split}.csv"] = head + "".join(rows[2 * p] for p in range(15))
        texts[f"{at}/search_probe_{split}.csv"] = head + "".join(rows[2 * p + 1] for p in range(PEOPLE))
    put(folder / "IJB-A", images, texts)


def megaface(folder: Path) -> None:
    """InsightFace's test pack of MegaFace and FaceScrub."""
    probes = [f"{name}/{name}_{k}.png" for name in NAMES[:5] for k in (1, 2, 3)]
    others = [f"10/{n}@N00/{n}.jpg" for n in range(30)]
    texts = {"facescrub_lst": "\n".join(probes), "megaface_lst": "\n".join(others)}
    texts |= {"megaface_noises.txt": f"{others[3]}\n", "facescrub_noises.txt": "Person_A_2\n"}
    images = [*(f"facescrub_images/{path}" for path in probes), *(f"megaface_images/{path}" for path in others)]
    put(folder / "megaface_testpack", images, texts, 112)


RELEASES = (lfw, calfw, cplfw, cfp, agedb, rfw, ijbc, ijba, megaface)
