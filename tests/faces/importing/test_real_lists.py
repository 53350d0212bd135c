"""The field's own lists, as published and as people pass them on, with drawn images at the paths that they name.

What a list must give was counted in the files with `awk`. Lists are mutated as they are in the wild: cut off, with
other line ends, a byte-order mark, tabs, words at the head, comments, and paths of somebody else's machine.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from listed_images import LISTS, Drawn, as_ijbb, ijba_texts, ijbb_rows, real

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.finding import AS_LISTED, PathMapping
from fedvisage.faces.importing.folds import one_kind, shape_of
from fedvisage.faces.importing.ijba import read_ijba
from fedvisage.faces.importing.source import Source
from fedvisage.faces.importing.templates import read_ijb
from fedvisage.faces.importing.verification import read_cfp, read_folders, read_pairs
from fedvisage.faces.importing.writing import check_lists
from fedvisage.faces.lists import Listing, PairList, SubjectList, TemplateList, TemplatePairs

pytestmark = real


@dataclass(frozen=True)
class Real:
    """A list as it is passed on: its file, the name it has beside the images, and what it must give."""

    file: str
    name: str
    tree: str
    images: Callable[[str], list[str]]
    pairs: int
    folds: int
    each: tuple[int, int]
    mapping: PathMapping = AS_LISTED

    def text(self) -> bytes:
        return (LISTS / "pairs" / self.file).read_bytes()

    def source(self, text: bytes, mapping: PathMapping | None = None) -> Source:
        tree = Drawn(self.tree, drawn_for(self), {self.name: text})
        return read_pairs(tree, None, mapping or self.mapping)


def by_person(text: str) -> list[str]:
    """`<name>/<name>_0001.jpg`, as LFW unpacks."""
    found = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) in (3, 4) and words[1].isdigit():
            found |= {(words[0], int(words[1])), (words[-2] if len(words) == 4 else words[0], int(words[-1]))}
    return [f"lfw/{name}/{name}_{number:04d}.jpg" for name, number in sorted(found)]


def by_path(folder: str, keep: int = 1) -> Callable[[str], list[str]]:
    """The last names of every path of the list, below a folder."""

    def images(text: str) -> list[str]:
        paths = re.findall(r"\S+\.jpg", text)
        return sorted({folder + "/".join(path.split("/")[-keep:]) for path in paths})

    return images


def as_cplfw(text: str) -> list[str]:
    """Photos beside aligned faces, as the archive unpacks, and a picture that belongs to neither."""
    return [*by_path("images/")(text), *by_path("aligned images/")(text), "cover.jpg"]


TEN, VIEW_1 = (10, (300, 300)), (0, (500, 500))
CASES = {
    "lfw": Real("lfw_pairs.facenet.txt", "pairs.txt", "lfw", by_person, 6000, *TEN),
    "lfw, words at the head": Real("lfw-pairs.header.txt", "pairs.txt", "lfw", by_person, 6000, *TEN),
    "lfw, same pairs first": Real("lfw_test_pair.blocks.txt", "lfw_test_pair.txt", "x", by_path("lfw/", 2), 6000, *TEN),
    "lfw, numbered": Real("lfw_pair.numbered.txt", "lfw_pair.txt", "lfw", by_path("faces/"), 6000, *TEN),
    "lfw, someone's own": Real("lfw_pairs.jobbofhe.txt", "pairs.txt", "x", by_person, 143, 0, (52, 91)),
    "lfw, view 1": Real("pairsDevTest.txt", "pairsDevTest.txt", "lfw", by_person, 1000, *VIEW_1),
    "cplfw": Real("pairs_CPLFW.mobilesec.txt", "pairs_CPLFW.txt", "cplfw", as_cplfw, 6000, *TEN),
    "agedb-30": Real(
        "agedb_30_pair_new.absolute.txt", "agedb_30_pair_new.txt", "x", by_path(""), 6000, *TEN, PathMapping(5)
    ),
}


@cache
def drawn_for(case: Real) -> list[str]:
    return case.images(case.text().decode())


def lists_of(source: Source) -> dict[str, Listing]:
    check_lists(source, "here")
    assert source.lists is not None
    return source.lists(np.arange(len(source)))


def pairs_of(source: Source) -> PairList:
    pairs = lists_of(source)["pairs"]
    assert isinstance(pairs, PairList)
    return pairs


def shape(pairs: PairList) -> tuple[int, int, set[tuple[int, int]]]:
    return len(pairs), *shape_of(pairs.fold, pairs.same.astype(bool))


@pytest.mark.parametrize("name", CASES)
def test_a_real_list_gives_its_pairs_in_its_folds(name: str) -> None:
    case = CASES[name]
    source = case.source(case.text())
    pairs = pairs_of(source)
    assert shape(pairs) == (case.pairs, case.folds, {case.each})
    assert one_kind(pairs.fold, pairs.same.astype(bool)) is None
    if source.names != ("unlabelled",):
        assert ((source.labels[pairs.left] == source.labels[pairs.right]) == pairs.same).all()
    assert source.tally is not None
    line = source.tally(np.ones(len(source), bool))["pairs"].line
    assert line.endswith("as published") == (name != "lfw, someone's own")


def test_the_folds_of_cplfw_are_the_k_th_300_of_either_kind() -> None:
    """Lines 600 (k - 1) + 2 to 600 k + 1 are the same pairs of fold k, two lines each."""
    case = CASES["cplfw"]
    source = case.source(case.text())
    pairs = pairs_of(source)
    lines = case.text().decode().split("\n")[1:]
    for place in (0, 299, 300, 2999, 3000, 3299, 5999):
        assert source.called(int(pairs.left[place])) == f"aligned images/{lines[2 * place].split()[0]}"
        assert source.called(int(pairs.right[place])) == f"aligned images/{lines[2 * place + 1].split()[0]}"
        assert pairs.fold[place] == place % 3000 // 300 + 1
    assert len(source.names) > 2000
    assert any("cover.jpg" in text for text in source.remarks)


def test_calfw_numbers_the_folds_of_its_same_pairs() -> None:
    """As its authors describe it: tokens 1 to 10 for same pairs, then 0 for all different ones."""
    lines = []
    for pair in range(3000):
        lines += [f"P{pair}_{k:04d}.jpg\t{pair // 300 + 1}" for k in (1, 2)]
    for pair in range(3000):
        lines += [f"P{pair}_0001.jpg\t0", f"P{(pair + 1) % 3000}_0002.jpg\t0"]
    text = "\n".join(lines)
    case = Real("", "pairs_CALFW.txt", "calfw", lambda _: [], 6000, *TEN)
    tree = Drawn(case.tree, by_path("aligned images/")(text), {case.name: text.encode()})
    pairs = pairs_of(read_pairs(tree))
    assert shape(pairs) == (6000, 10, {(300, 300)})
    assert pairs.fold[[0, 299, 300, 2999, 3000, 3299, 5999]].tolist() == [1, 1, 2, 10, 1, 1, 10]
    with pytest.raises(FedVisageError, match="2,999 different pairs cannot be shared out"):
        read_pairs(Drawn(case.tree, tree.files, {case.name: "\n".join(lines[:-2]).encode()}))


def test_numbered_images_are_nobodys() -> None:
    source = CASES["lfw, numbered"].source(CASES["lfw, numbered"].text())
    assert (source.names, len(source)) == (("unlabelled",), 12000)
    assert any("whose they are is not known" in text for text in source.remarks)


def test_paths_of_another_machine_are_refused_with_what_to_type() -> None:
    case = CASES["agedb-30"]
    with pytest.raises(FedVisageError) as caught:
        pairs_of(case.source(case.text(), AS_LISTED))
    words = (
        r"agedb_30_pair_new.txt: 0 of 6,000 pairs are in here; .*'/home/k64t/.*00001.jpg' \(line 1\): type --strip 5"
    )
    assert re.search(words, str(caught.value))


def test_a_list_beside_its_folder_is_found() -> None:
    """`agedb_30/00001.jpg` against the folder agedb_30."""
    text = re.sub(rb"/home\S+/(agedb_30/)", rb"\1", CASES["agedb-30"].text())
    pairs = pairs_of(read_pairs(Drawn("agedb_30", drawn_for(CASES["agedb-30"]), {"pairs.txt": text})))
    assert shape(pairs) == (6000, 10, {(300, 300)})


def test_other_endings_are_found_when_asked_for() -> None:
    case = CASES["lfw, same pairs first"]
    tree = Drawn("x", [path.replace(".jpg", ".PNG") for path in drawn_for(case)], {case.name: case.text()})
    with pytest.raises(FedVisageError, match=r"0 of 6,000 pairs .*: type --endings"):
        pairs_of(read_pairs(tree))
    assert shape(pairs_of(read_pairs(tree, None, PathMapping(endings=True)))) == (6000, 10, {(300, 300)})


def test_a_list_that_is_cut_off_in_a_line_is_refused_with_that_line() -> None:
    text = (LISTS / "pairs" / "agedb_30_pair_new.truncated.txt").read_bytes()
    with pytest.raises(FedVisageError, match=r"pairs.txt, line 2462: .* is the list cut off\?"):
        read_pairs(Drawn("agedb_30", drawn_for(CASES["agedb-30"]), {"pairs.txt": text}))


def crlf(text: bytes, place: int) -> bytes:
    return text.replace(b"\r", b"").replace(b"\n", b"\r\n")


def marked(text: bytes, place: int) -> bytes:
    return b"\xef\xbb\xbf" + text


def tabs(text: bytes, place: int) -> bytes:
    return text.replace(b"\t", b" ") if place % 2 else text.replace(b" ", b"\t")


def trailing(text: bytes, place: int) -> bytes:
    return text.replace(b"\n", b" \t\n")


def commented(text: bytes, place: int) -> bytes:
    lines = text.split(b"\n")
    return b"\n".join([*lines[: place % len(lines)], b"# a remark", b"", *lines[place % len(lines) :]])


def headed(text: bytes, place: int) -> bytes:
    return (b"left right same", b"name image other", b"pairs")[place % 3] + b"\n" + text


def moved(text: bytes, place: int) -> bytes:
    return re.sub(rb"(\S+\.jpg)", rb"/home/me/" + b"d/" * (place % 4) + rb"\1", text)


def cut(text: bytes, place: int) -> bytes:
    return text[: place % len(text)]


SAME = (crlf, marked, tabs, trailing, commented)
OTHER = (headed, moved, cut)
CASES_OF_EACH = int(os.environ.get("FEDVISAGE_CASES", "1"))


def mutations(*changes: Callable[[bytes, int], bytes]) -> list[Any]:
    """Eight mutations of a list, or as many times that as `FEDVISAGE_CASES` says, in turn of each kind."""
    places = np.random.default_rng(7).integers(0, 10**6, 8 * CASES_OF_EACH).tolist()
    turns = [changes[number % len(changes)] for number in range(len(places))]
    return [pytest.param(turn, place, id=f"{turn.__name__}-{place}") for turn, place in zip(turns, places, strict=True)]


REMEDY = r"line \d|--strip|--pairs|--allow-missing|--endings|cut off|belongs to|no pairs|named|holds|is empty|row \d"


def outcome(read: Callable[[], Source], *names: str) -> dict[str, Listing]:
    """The lists that a reader gives; none where it refuses in one line that says which file, and what to do."""
    try:
        return lists_of(read())
    except FedVisageError as error:
        text = str(error)
    assert "\n" not in text
    assert any(name in text for name in names), text
    assert re.search(REMEDY, text), text
    return {}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("change", "place"), mutations(*SAME, *OTHER))
def test_a_mutated_list_is_read_as_it_was_meant_or_refused(
    name: str, change: Callable[[bytes, int], bytes], place: int
) -> None:
    case = CASES[name]
    lists = outcome(lambda: case.source(change(case.text(), place)), case.name)
    if not lists:
        assert change in OTHER
        return
    pairs = lists["pairs"]
    assert isinstance(pairs, PairList)
    assert len(pairs) > 0
    assert one_kind(pairs.fold, pairs.same.astype(bool)) is None
    if change is cut:
        assert len(pairs) <= case.pairs
        assert (len(pairs) == case.pairs) or not pairs.fold.any() or len(pairs) % 600 == 0
    else:
        assert shape(pairs) == (case.pairs, case.folds, {case.each})


CFP = {path.relative_to(LISTS / "cfp").as_posix(): path for path in sorted((LISTS / "cfp" / "Protocol").rglob("*.txt"))}


@cache
def cfp_texts() -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in CFP.items()}


@cache
def cfp_images(below: str = "Data/Images") -> tuple[str, ...]:
    text = b"".join(cfp_texts()[f"Protocol/Pair_list_{side}.txt"] for side in "FP").decode()
    return tuple(re.sub(r"^\.\./Data/Images", below, path) for path in re.findall(r"\S+\.jpg", text))


@pytest.mark.parametrize("which", ["FP", "FF"])
def test_cfp_gives_7000_pairs_in_ten_folds(which: str) -> None:
    source = read_cfp(Drawn("cfp-dataset", cfp_images(), cfp_texts()), which)
    assert (len(source), len(source.names)) == (7000, 500)
    pairs = pairs_of(source)
    assert shape(pairs) == (7000, 10, {(350, 350)})
    assert ((source.labels[pairs.left] == source.labels[pairs.right]) == pairs.same).all()
    assert source.tally is not None
    assert source.tally(np.ones(7000, bool))["pairs"].line == (
        f"CFP-{which}: 7,000 of 7,000 pairs, 10 folds of 350 + 350, as published"
    )


def test_cfp_without_its_numbers_and_in_train_and_test_folders_is_the_same() -> None:
    """The lists number ten frontal and four profile images a person, as 7,000 of 7,000 lines show."""
    whole = pairs_of(read_cfp(Drawn("cfp", cfp_images(), cfp_texts())))
    images = [f"Images/{'train' if '/0' in p else 'test'}/{p.removeprefix('Data/Images/')}" for p in cfp_images()]
    texts = {name: text for name, text in cfp_texts().items() if "Pair_list" not in name}
    source = read_cfp(Drawn("cfp", images, texts))
    pairs = pairs_of(source)
    assert (len(source.names), shape(pairs)) == (500, shape(whole))
    assert any("images are numbered as in CFP" in text for text in source.notes)
    order = {path.removeprefix("Data/Images/"): number for number, path in enumerate(sorted(cfp_images()))}
    back = np.array([order[re.sub(r"^Images/(train|test)/", "", source.called(n))] for n in range(7000)])
    assert (back[pairs.left] == whole.left).all()
    assert (back[pairs.right] == whole.right).all()


def test_images_of_cfp_without_its_protocol_are_500_people() -> None:
    source = read_folders(Drawn("cfp", [*cfp_images(), "cover.jpg"], {"Readme.txt": b""}))
    assert (len(source.names), len(source)) == (500, 7000)
    assert any("cover.jpg" in text for text in source.remarks)


@pytest.mark.parametrize(("change", "place"), mutations(crlf, marked, tabs, trailing, moved, cut))
def test_a_mutated_list_of_cfp_is_read_as_it_was_meant_or_refused(
    change: Callable[[bytes, int], bytes], place: int
) -> None:
    used = [name for name in CFP if "/FF/" not in name]
    name = used[place % len(used)]
    texts = cfp_texts() | {name: change(cfp_texts()[name], place // 7)}
    lists = outcome(lambda: read_cfp(Drawn("cfp", cfp_images(), texts)), name, "Split/FP")
    if not lists:
        assert change is cut
        return
    pairs = lists["pairs"]
    assert isinstance(pairs, PairList)
    assert one_kind(pairs.fold, pairs.same.astype(bool)) is None
    if change is cut:
        assert 0 < len(pairs) <= 7000
    else:
        assert shape(pairs) == (7000, 10, {(350, 350)})


@cache
def ijba_rows() -> tuple[tuple[str, dict[str, str]], ...]:
    found = []
    for name, text in ijba_texts().items():
        if "metadata" in name:
            found += [(name, row) for row in csv.DictReader(io.StringIO(text.decode(), newline=""))]
    return tuple(found)


def test_ijba_knows_a_face_by_its_sighting_or_its_box_in_whole_pixels() -> None:
    """499 photos; one frame, of which two sightings have boxes 2 pixels apart, has two faces: 500."""
    photos = {row["FILE"] for _, row in ijba_rows()}
    source = read_ijba(Drawn("IJB-A", photos, ijba_texts()))
    assert (len(photos), len(source)) == (499, 500)
    lists = lists_of(source)
    rows = {split: lists[f"split-{split:02d}.templates"] for split in (1, 2, 4, 5)}
    assert {split: len(listing) for split, listing in rows.items()} == {1: 162, 2: 201 - 3, 4: 148, 5: 201 - 3}
    for listing in rows.values():
        assert isinstance(listing, TemplateList)
        assert len(set(zip(listing.template.tolist(), listing.image.tolist(), strict=True))) == len(listing)
    assert source.notes == [
        "6 rows list an image that its template has already, and count once "
        "(template 4161 of split 2, template 4161 of split 5)"
    ]
    for split, (pairs, same) in {1: (85, 25), 2: (89, 29), 4: (85, 25), 5: (89, 29)}.items():
        listing = lists[f"split-{split:02d}.verification"]
        assert isinstance(listing, TemplatePairs)
        assert (len(listing), int(listing.same.sum())) == (pairs, same)


def test_photos_of_ijba_may_end_otherwise_and_a_few_may_be_missing() -> None:
    photos = sorted({row["FILE"] for _, row in ijba_rows()})
    images = [re.sub(r"\.(jpg|JPG|png)$", ".JPEG", photo) for photo in photos]
    source = read_ijba(Drawn("IJB-A", images, ijba_texts()))
    assert len(lists_of(source)["split-01.templates"]) == 162
    changed = len(set(photos) - set(images))
    assert source.remarks == [f"{changed} photos are there under another ending than the lists say, such as .JPG"]
    few = [photo for photo in photos if photo not in ("img/8146.jpg", "img/8181.jpg")]
    source = read_ijba(Drawn("IJB-A", few, ijba_texts()))
    kept = np.array([n if source.called(n) in few else -1 for n in range(len(source))])
    check_lists(source, "here", there=kept >= 0)
    assert source.lists is not None
    lists = source.lists(kept)
    listed = lists["split-04.templates"]
    assert isinstance(listed, TemplateList)
    for name, listing in lists.items():
        if isinstance(listing, TemplatePairs):
            templates = lists[name.replace("verification", "templates")]
            assert isinstance(templates, TemplateList)
            assert set(listing.left.tolist()) | set(listing.right.tolist()) <= set(templates.template.tolist())
    assert any("images of templates are not there" in text for text in source.notes)
    with pytest.raises(FedVisageError, match=r"IJB-A: .* of 706 images of templates .*--allow-missing"):
        check_lists(read_ijba(Drawn("IJB-A", photos[20:], ijba_texts())), "here")


@pytest.mark.parametrize(("change", "place"), mutations(crlf, marked, trailing, cut))
def test_a_mutated_list_of_ijba_is_read_as_it_was_meant_or_refused(
    change: Callable[[bytes, int], bytes], place: int
) -> None:
    name = sorted(ijba_texts())[place % len(ijba_texts())]
    texts = ijba_texts() | {name: change(ijba_texts()[name], place // 7)}
    photos = {row["FILE"] for _, row in ijba_rows()}
    lists = outcome(lambda: read_ijba(Drawn("IJB-A", photos, texts)), name)
    if not lists:
        assert change is cut
        return
    sizes = [len(listing) for _, listing in sorted(lists.items())]
    assert all(sizes)
    assert change is cut or sizes == [162, 85, 198, 89, 148, 85, 198, 89]


@pytest.mark.parametrize(("change", "place"), mutations(crlf, marked, trailing, cut))
def test_a_mutated_list_of_ijbb_is_read_as_it_was_meant_or_refused(
    change: Callable[[bytes, int], bytes], place: int
) -> None:
    texts = as_ijbb(ijbb_rows())
    name = sorted(texts)[place % len(texts)]
    images = {f"loose_crop/{row['FILENAME']}" for row in ijbb_rows()}
    good = {key: len(listing) for key, listing in lists_of(read_ijb(Drawn("IJB-B", images, texts))).items()}
    changed = texts | {name: change(texts[name], place // 7)}
    lists = outcome(lambda: read_ijb(Drawn("IJB-B", images, changed)), name)
    if not lists:
        assert change is cut
        return
    assert all(isinstance(lists[key], SubjectList) for key in ("gallery-1", "gallery-2", "probes"))
    assert all(len(listing) > 0 for listing in lists.values())
    assert change is cut or {key: len(listing) for key, listing in lists.items()} == good
