"""MegaFace's lists as the devkit and InsightFace publish them, with drawn images at their paths."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from dataset_files import MUTATIONS, bring_in, damage, image, put

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.manifest import read_megaface
from fedvisage.faces.lists import ImageList, open_list

LISTS = Path(os.environ.get("FEDVISAGE_DATA", Path(__file__).parents[4] / "shared" / "data")) / "lists" / "megaface"
real = pytest.mark.skipif(not LISTS.is_dir(), reason="no real lists: set FEDVISAGE_DATA")
PROBES = {"path": ["Ann/Ann_1.png", "Ann/Ann_2.png", "Bob/Bob_7.png"], "id": ["Ann", "Ann", "Bob"]}
OTHERS = {"path": ["10/1@N00/a_0.jpg", "10/1@N00/b_0.jpg"]}


def images_of(*lists: dict[str, list[str]]) -> dict[str, bytes | str]:
    """An image at each path, in the folders that the downloads have; numbered in the order of the lists."""
    paths = [path for one in lists for path in one["path"]]
    roots = {1: "FaceScrub/", 2: "MegaFace/FlickrFinal2/"}
    return {roots[path.count("/")] + path: image(number) for number, path in enumerate(paths)}


def devkit(**lists: object) -> dict[str, bytes | str]:
    return {
        f"devkit/templatelists/{name.replace('_json', '.json')}": json.dumps(table) for name, table in lists.items()
    }


def test_the_devkits_lists_are_recognised_and_the_largest_one_of_distractors_is_taken(tmp_path: Path) -> None:
    one = {"path": OTHERS["path"][:1]}
    files = devkit(facescrub_features_list_json=PROBES, megaface_features_list_json_2_1=OTHERS,
                   megaface_features_list_json_2_2=one, megaface_features_list_json_1_1=one)  # fmt: skip
    put(tmp_path / "mega", files | images_of(PROBES, OTHERS))
    faces, report = bring_in(tmp_path / "mega", tmp_path / "out")
    assert (report.format, faces.names) == ("megaface", ("Ann", "Bob", "unlabelled"))
    assert report.lists == {"distractors": 2, "noise": 0, "probes": 3}
    assert report.notes == ["distractors are those of megaface_features_list.json_2_1; 2 other lists of them are there"]
    assert open_list(tmp_path / "out", "probes").subject.tolist() == [0, 0, 1]  # type: ignore[attr-defined]


def test_images_may_have_another_ending_and_lines_the_path_of_another_machine(tmp_path: Path) -> None:
    """As `.jpg` for the list's `.png`, and with fields between tabs, of which the one that names an image counts."""
    files = {path.replace(".png", ".jpg"): data for path, data in images_of(PROBES, OTHERS).items()}
    files["facescrub_lst"] = "".join(f"1\t/raid5/facescrub/{path}\t0\n" for path in PROBES["path"])
    files["megaface_lst"] = "".join(f"/raid5/megaface/{path}\r\n" for path in [*OTHERS["path"], OTHERS["path"][0]])
    faces, report = bring_in(put(tmp_path / "mega", files), tmp_path / "out")
    assert (len(faces), report.unreadable) == (5, [])
    assert report.lists == {"distractors": 2, "noise": 0, "probes": 3}
    assert report.notes == ["megaface_lst names 1 images more than once; each counts once"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"facescrub_features_list.json": None}, "there is no facescrub_lst and no facescrub_features_list.json"),
        ({"megaface_features_list.json_2_1": None}, "there is no megaface_lst and no megaface_features_list.json"),
        ({"megaface_features_list.json_2_1": '{"path": ["10/'}, r"cannot read .*json_2_1: .*Is it truncated\?"),
        ({"megaface_features_list.json_2_1": "[" * 100_000}, r"cannot read .*json_2_1: .*Is it truncated\?"),
        ({"megaface_features_list.json_2_1": "[1]"}, "json_2_1 should hold a list 'path'"),
        ({"megaface_features_list.json_2_1": '{"path": [1, 2]}'}, "json_2_1 should hold a list 'path'"),
        ({"megaface_features_list.json_2_1": '{"path": ["1/2/\\ud800", "1/2/3"]}'}, "should hold a list 'path'"),
        ({"megaface_features_list.json_2_1": '{"path": ["1/2/3.jpg"]}'}, "holds 1 paths, and should hold the 2 of its"),
        ({"megaface_features_list.json_2_1": '{"path": ["a.jpg", "1/2/3.jpg"]}'}, "should be 2 folders and a file"),
        ({"megaface_features_list.json_2_1": '{"path": ["../../a.jpg", "1/2/3.jpg"]}'}, "leads out of the folder"),
        (
            {"megaface_features_list.json_2_1": '{"path": ["1/2/3.jpg", "1/2/4.jpg"]}'},
            "0 of 2 images are in .* missing",
        ),
        ({"facescrub_features_list.json": '{"path": ["a/b.png"], "id": []}'}, "a list 'id' of the same length"),
        ({"facescrub_lst": ""}, "facescrub_lst is empty"),
        ({"FaceScrub/Bob/Bob_7.png": None}, "2 of 3 images are in .*; the first one missing is 'Bob/Bob_7.png'"),
        ({"copy/Ann/Ann_1.png": image(0)}, "facescrub_features_list.json may mean .*FaceScrub/Ann/Ann_1.png or .*copy"),
    ],
)
def test_a_list_that_cannot_be_followed_is_one_line(
    tmp_path: Path, change: dict[str, bytes | str | None], says: str
) -> None:
    files = {"facescrub_features_list.json": json.dumps(PROBES), "megaface_features_list.json_2_1": json.dumps(OTHERS)}
    changed = files | images_of(PROBES, OTHERS) | change
    root = put(tmp_path / "mega", {name: data for name, data in changed.items() if data is not None})
    with pytest.raises(FedVisageError, match=says) as error:
        bring_in(root, tmp_path / "out", "megaface")
    assert "\n" not in str(error.value)


class Drawn:
    """Texts, and images at these paths, which are drawn when they are asked for."""

    def __init__(self, texts: dict[str, bytes], images: list[str]) -> None:
        self.name, self.texts = "MegaFace", texts
        self.files = sorted([*texts, *images])

    def read(self, path: str, most: int = 0) -> bytes:
        """A text, or an image."""
        return self.texts[path] if path in self.texts else image(hash(path) % 250)


@real
def test_the_real_lists_are_followed_and_damaged_ones_lose_nothing_unsaid() -> None:
    """3,530 probes of 80 people, 1,000 distractors; of the noise lists' 1,312 images 24 are among them.

    Counted in the files by hand: 605 and 719 lines, 12 of the latter twice.
    """
    texts = {path.name: path.read_bytes() for path in LISTS.iterdir() if path.name != "README"}
    paths = [json.loads(texts[name])["path"] for name in ("facescrub_features_list.json",
                                                           "megaface_features_list.json_1000_1")]  # fmt: skip
    images = [f"FaceScrub/{path}" for path in paths[0]] + [f"FlickrFinal2/{path}" for path in paths[1]]

    def counts(changed: dict[str, bytes]) -> tuple[int, ...]:
        source = read_megaface(Drawn(texts | changed, images))
        assert source.lists is not None
        lists = source.lists(np.arange(len(source)))
        assert all(isinstance(one, ImageList) for one in lists.values())
        return (*(len(lists[name]) for name in ("probes", "distractors", "noise")), len(source.names))

    assert counts({}) == (3530, 1000, 24, 81)
    assert read_megaface(Drawn(texts, images)).notes == [
        "distractors are those of megaface_features_list.json_1000_1; 1 other lists of them are there",
        "1,288 of 1,312 noisy images are not in the lists",
    ]
    short = {"megaface_noises.txt": texts["megaface_noises.txt"][:9000]}
    assert (
        "megaface_noises.txt names 260 images, and the published list 707"
        in read_megaface(Drawn(texts | short, images)).notes
    )
    chance = random.Random(1)
    for name, good in texts.items():
        for _ in range(MUTATIONS // 5):
            try:
                found = counts({name: damage(good, chance)})
            except FedVisageError as error:
                assert "\n" not in str(error)  # noqa: PT017
                continue
            if "noises" not in name:
                assert found[:2] == (3530, 1000), name
