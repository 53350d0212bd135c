"""`fedvisage data import`, `inspect` and `partition`: what a user types, sees and gets wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedvisage.faces.decoding import encode
from fedvisage.faces.inspection import bars, histogram
from fedvisage.faces.partition import Partition


def height_of(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.height


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six people with four photos each."""
    rng = np.random.default_rng(1)
    for person in range(6):
        (tmp_path / "photos" / f"p{person}").mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (40, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"p{person}" / f"{number}.png")
    (tmp_path / "photos" / "p0" / "broken.jpg").write_bytes(b"junk")
    return tmp_path / "photos"


def test_photos_become_faces_that_can_be_looked_at_and_trained_on(fedvisage: Any, photos: Path, tmp_path: Path) -> None:
    faces, sheet = tmp_path / "faces", tmp_path / "sheet.png"
    code, out, err = fedvisage("data", "import", photos, "--out", faces, "--size", 32)
    assert code == 0, err
    assert out.splitlines() == [
        "25 images found (folders)",
        "unreadable, left out: 1 (p0/broken.jpg)",
        f"24 images of 6 people in {faces}",
    ]
    code, out, _ = fedvisage("data", "inspect", faces, "--sheet", sheet)
    assert code == 0
    assert "24 images of 6 people, 32x32, encoded records" in out
    assert height_of(sheet) == 6 * 34 + 2
    code, out, _ = fedvisage("data", "inspect", faces, "--json")
    described = json.loads(out)
    assert described["images_per_identity"]["histogram"] == {"1": 0, "2": 0, "3-4": 6}
    changes = (f"faces.source={faces}", "faces.size=32", "partition.public=1", "partition.test=2", "pretrain.epochs=1")
    changes += ("partition.parties=2", "partition.identities_per_party=1", "federation.rounds=1", "compare=[]")
    changes += ("evaluation.pairs=0", "evaluation.fars=[0.5]", "federation.workers=1")
    words = [word for change in changes for word in ("--set", change)]
    code, _, err = fedvisage("run", "smoke", "--out", tmp_path / "run", *words)
    assert code == 0, err


def test_a_partition_is_shown_drawn_and_saved(fedvisage: Any, tmp_path: Path) -> None:
    sizes = ("--set", "partition.sizes=log-normal", "--set", "partition.parties=3")
    code, out, err = fedvisage(
        "data", "partition", "smoke", *sizes, "--out", tmp_path / "p.json", "--picture", tmp_path / "p.png"
    )
    assert code == 0, err
    assert "public: 12 identities" in out
    assert all(f"party-0{number}" in out for number in range(3))
    assert set(Partition.load(tmp_path / "p.json").parties) == {"party-00", "party-01", "party-02"}
    assert height_of(tmp_path / "p.png") == 58 + 3 * 18
    code, out, _ = fedvisage("data", "partition", "smoke", *sizes, "--json")
    assert json.loads(out)["parties"]["party-01"]["role"] == "trainer"
    assert "unused" not in json.loads(out)


def test_people_whom_equal_parties_leave_over_are_counted(fedvisage: Any) -> None:
    """64 people less 12 public and 20 tested: 32, of whom 5 parties get 6 each."""
    words = ("--set", "partition.parties=5", "--set", "partition.identities_per_party=6")
    code, out, err = fedvisage("data", "partition", "smoke", *words)
    assert code == 0, err
    assert "unused: 2 identities" in out
    assert json.loads(fedvisage("data", "partition", "smoke", *words, "--json")[1])["unused"] == {"identities": 2}


def test_the_partition_command_shows_what_a_run_does(fedvisage: Any, tmp_path: Path) -> None:
    changes = ("federation.rounds=1", "compare=[]", "pretrain.epochs=1", "federation.workers=1")
    changes += ("faces.images_per_identity=3", "evaluation.pairs=20", "evaluation.fars=[0.1]")
    words = [word for change in changes for word in ("--set", change)]
    assert fedvisage("data", "partition", "smoke", "--out", tmp_path / "p.json", *words)[0] == 0
    code, _, err = fedvisage("run", "smoke", "--out", tmp_path / "run", *words)
    assert code == 0, err
    assert (tmp_path / "p.json").read_text() == (tmp_path / "run" / "partition.json").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("import", "nowhere", "--out", "x"), "there is no nowhere"),
        (("import", "photos", "--out", "photos"), "photos is not empty"),
        (("import", "photos", "--out", "x", "--format", "bim"), "did you mean 'bin'"),
        (("import", "photos", "--out", "x", "--domain", "north"), "write it as name=FILE"),
        (("import", "photos", "--out", "x", "--domain", "north=absent.txt"), "cannot read the names in absent.txt"),
        (("import", "photos", "--out", "x", "--exclude", "absent.txt"), "cannot read the names in absent.txt"),
        (("import", "photos", "--out", "x", "--pairs", "absent.txt"), "cannot read the pairs in absent.txt"),
        (("inspect", "photos"), "faces.json is missing"),
        (("partition", "smoke", "--set", "partition.parties=99"), "are left"),
        (("partition", "smoke", "--set", "faces.domain=webcm"), "did you mean 'webcam'"),
        (("partition", "smoke", "--picture", "x.what"), "cannot write x.what"),
    ],
)
def test_a_mistake_is_one_line(
    fedvisage: Any, photos: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(photos.parent)
    code, _, err = fedvisage("data", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_bars_and_histograms() -> None:
    assert bars([4, 2, 0, 0], 4) == ["████", "██", "", ""]
    assert bars([1000, 1], 4)[1] == "▏"
    assert histogram(np.array([1, 1, 2, 7, 1000])) == {
        "1": 2, "2": 1, "3-4": 0, "5-9": 1, "10-19": 0, "20-49": 0, "50-99": 0, "100-199": 0, "200-499": 0, "500+": 1
    }  # fmt: skip


def test_one_bad_verification_set_is_named_and_the_others_are_imported(fedvisage: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)
    images = [np.frombuffer(encode(image), np.uint8)[:, None] for image in pixels]
    for name in ("agedb_30", "cfp_fp", "lfw"):
        (tmp_path / f"{name}.bin").write_bytes(pickle.dumps((images, [True, False]), 3))
    (tmp_path / "cfp_fp.bin").write_bytes((tmp_path / "cfp_fp.bin").read_bytes()[:-9])
    words = ("data", "import", tmp_path, "--format", "bin", "--into")
    code, out, err = fedvisage(*words, tmp_path / "sets")
    assert code == 2
    assert "1 of 3 sets were not imported" in err
    assert "cfp_fp.bin is no verification set" in err
    assert err.count("\n") == 1
    assert out.count("4 images of 1 people") == 2
    assert sorted(path.name for path in (tmp_path / "sets").iterdir()) == ["agedb-30", "lfw"]
    code, out, err = fedvisage(*words, tmp_path / "again", "--json")
    assert (code, sorted(json.loads(out))) == (2, ["agedb-30", "lfw"])
    assert "cfp_fp.bin" in err
