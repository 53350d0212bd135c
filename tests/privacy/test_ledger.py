"""The ledger: every parcel, appended, readable after a crash, and layouts written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.core.errors import FedVisageError
from fedvisage.core.parcel import BACKBONE, BUFFERS, Parcel, Stamp
from fedvisage.privacy import Ledger, read_ledger


def parcel(round: int = 1, size: int = 3) -> Parcel:
    groups = {BACKBONE: {"w": torch.zeros(2, size)}, BUFFERS: {"m": torch.zeros(4, dtype=torch.float64)}}
    return Parcel(groups, {"loss": 1.0}, Stamp(round, "train", 2))


def entries(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = list(read_ledger(path))
    return [row for row in rows if "layout" in row], [row for row in rows if "layout" not in row]


def test_a_parcel_is_a_line_per_group_and_one_for_its_numbers(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "up", parcel())
    layouts, rows = entries(tmp_path / "ledger.jsonl")
    head = {"round": 1, "phase": "train", "attempt": 2, "party": "ann", "direction": "up"}
    assert rows == [
        {**head, "group": BACKBONE, "tensors": 0, "bytes": 24},
        {**head, "group": BUFFERS, "tensors": 1, "bytes": 32},
        {**head, "group": "statistics", "names": ["loss"], "bytes": 8},
    ]
    assert layouts == [
        {"layout": 0, "group": BACKBONE, "tensors": [["w", [2, 3], "float32"]]},
        {"layout": 1, "group": BUFFERS, "tensors": [["m", [4], "float64"]]},
    ]


def test_an_empty_parcel_is_recorded_too(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "down", Parcel(stamp=Stamp(0, "join", 1)))
    _, rows = entries(tmp_path / "ledger.jsonl")
    assert [(row["group"], row["bytes"]) for row in rows] == [("statistics", 0)]


def test_layouts_are_written_once_also_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for round in (1, 2):
        with Ledger(path) as ledger:
            for _ in range(3):
                ledger.record("ann", "up", parcel(round))
                ledger.flush()
    layouts, rows = entries(path)
    assert len(layouts) == 2
    assert [row["round"] for row in rows if row["group"] == BACKBONE] == [1, 1, 1, 2, 2, 2]


def test_another_shape_is_another_layout(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "up", parcel(size=3))
        ledger.record("bob", "up", parcel(size=4))
    layouts, rows = entries(tmp_path / "ledger.jsonl")
    assert [row["tensors"] for row in layouts if row["group"] == BACKBONE] == [
        [["w", [2, 3], "float32"]],
        [["w", [2, 4], "float32"]],
    ]
    assert [(row["tensors"], row["bytes"]) for row in rows if row["group"] == BACKBONE] == [(0, 24), (2, 32)]


def test_a_refused_answer_keeps_its_reason(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "up", parcel(), 'shape "odd"\n')
    assert {row["refused"] for row in entries(tmp_path / "ledger.jsonl")[1]} == {'shape "odd"\n'}


def test_repeats_are_told_apart(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "up", Parcel(stamp=Stamp(1, "validate", 1, 2)))
    assert entries(tmp_path / "ledger.jsonl")[1][0]["repeat"] == 2


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_whatever_a_party_calls_things_the_ledger_stays_readable(
    tmp_path_factory: pytest.TempPathFactory, group: str, name: str, phase: str, number: str
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    strange = Parcel({group: {name: torch.zeros(1)}}, {number: 1.0}, Stamp(1, phase, 1))
    for _ in range(2):
        with Ledger(path) as ledger:
            ledger.record("ann", "up", strange, "refused")
    layouts, rows = entries(path)
    assert [(row["group"], row["tensors"][0][0]) for row in layouts] == [(group, name)]
    assert [(row["group"], row["phase"]) for row in rows[:1]] == [(group, phase)]
    assert rows[1]["names"] == [number]


@pytest.mark.parametrize("torn", [b'{"round": 3, "par', b"{", b"\xff\xfe"])
def test_a_torn_last_line_is_cut_and_what_came_before_stays(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.record("ann", "up", parcel(1))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with Ledger(path) as ledger:
        ledger.record("ann", "up", parcel(2))
    assert path.read_bytes().startswith(whole)
    assert [row["round"] for row in entries(path)[1] if row["group"] == BACKBONE] == [1, 2]


def test_a_long_torn_line_is_cut_as_well(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.record("ann", "up", parcel(1))
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 200_000)
    Ledger(path).close()
    assert path.read_bytes() == whole
    path.write_bytes(b"x" * 200_000)
    Ledger(path).close()
    assert path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"layout": 0, "group": "g", "tensors": []}\nnonsense\n{}\n')
    with pytest.raises(FedVisageError, match=r"ledger\.jsonl, line 2: not a ledger line"):
        list(read_ledger(path))


def test_reusing_a_dict_for_other_tensors_between_flushes_is_noticed(tmp_path: Path) -> None:
    """Groups are recognised by identity within one exchange only; a flush forgets them."""
    group = {"w": torch.zeros(2)}
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.record("ann", "up", Parcel({BACKBONE: group}))
        ledger.flush()
        group["w"] = torch.zeros(5)
        ledger.record("ann", "up", Parcel({BACKBONE: group}))
    assert [row["bytes"] for row in entries(tmp_path / "ledger.jsonl")[1]] == [8, 20]
