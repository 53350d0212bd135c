"""Lists of evaluation protocols: written beside a face set, read back as they were, refused when damaged."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.lists import KINDS, Listing, PairList, SubjectList, list_names, open_list, write_lists

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 20), st.data())
def test_any_list_comes_back_as_it_was(kind: str, rows: int, data: st.DataObject) -> None:
    columns = [data.draw(st.lists(NUMBERS, min_size=rows, max_size=rows)) for _ in fields(KINDS[kind])]
    listing = KINDS[kind](*(np.array(column, dtype=np.int64) for column in columns))
    with TemporaryDirectory() as name:
        write_lists(Path(name), {"one": listing})
        again = open_list(Path(name), "one")
    assert type(again) is KINDS[kind]
    assert [getattr(again, f.name).tolist() for f in fields(again)] == columns
    assert len(again) == rows


def pairs(count: int) -> PairList:
    numbers = np.arange(count)
    return PairList(numbers, numbers + 1, numbers % 2, numbers // 10)


def test_lists_are_added_beside_those_that_are_there(tmp_path: Path) -> None:
    write_lists(tmp_path, {"pairs": pairs(3)})
    write_lists(tmp_path, {"gallery": SubjectList(np.arange(2), np.arange(2))})
    assert list_names(tmp_path) == {"pairs": "pairs", "gallery": "subjects"}


def test_a_folder_without_lists_has_none(tmp_path: Path) -> None:
    assert list_names(tmp_path) == {}
    with pytest.raises(FedVisageError, match="no list 'pairs'"):
        open_list(tmp_path, "pairs")


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(FedVisageError, match="one number per row"):
        PairList(np.arange(3), np.arange(3), np.arange(2), np.arange(3))


@pytest.mark.parametrize("name", ["../pairs", "a/b", "", "UPPER", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedVisageError, match="cannot name a list"):
        write_lists(tmp_path, {name: pairs(1)})


@pytest.mark.parametrize("table", ["[]", "{", '{"../../x": "pairs"}', '{"pairs": "surprise"}', '{"pairs": []}'])
def test_a_damaged_table_of_contents_is_refused(table: str, tmp_path: Path) -> None:
    write_lists(tmp_path, {"pairs": pairs(1)})
    (tmp_path / "lists" / "lists.json").write_text(table)
    with pytest.raises(FedVisageError, match=r"lists\.json"):
        open_list(tmp_path, "pairs")


@pytest.mark.parametrize("rows", [np.zeros((3, 2), np.int64), np.zeros((3, 4)), np.zeros(4, np.int64)])
def test_a_list_of_another_shape_is_refused(rows: np.ndarray, tmp_path: Path) -> None:
    write_lists(tmp_path, {"pairs": pairs(1)})
    np.save(tmp_path / "lists" / "pairs.npy", rows)
    with pytest.raises(FedVisageError, match="does not hold pairs"):
        open_list(tmp_path, "pairs")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"garbage"])
def test_a_truncated_list_is_refused(content: bytes, tmp_path: Path) -> None:
    write_lists(tmp_path, {"pairs": pairs(1)})
    (tmp_path / "lists" / "pairs.npy").write_bytes(content)
    with pytest.raises(FedVisageError, match="cannot read the list"):
        open_list(tmp_path, "pairs")


def test_a_list_is_a_listing() -> None:
    assert all(issubclass(kind, Listing) for kind in KINDS.values())
