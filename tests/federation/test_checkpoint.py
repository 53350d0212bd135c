"""The run's memory: read back exactly, damaged files named, and a full disk costs nothing that was there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedvisage.core.codec import save_state
from fedvisage.core.errors import FedVisageError
from fedvisage.core.method import Joined
from fedvisage.federation.bounds import History
from fedvisage.federation.checkpoint import Book, Checkpoints


def book() -> Book:
    return Book(
        step=3,
        generations={"ann": "000001.train.0.1"},
        joined={"ann": Joined("trainer", 10, 2)},
        refused={"eve": "samples = 0 is not a count"},
        norms=[1.5, 0.1],
        history={"train": History({"trainer": [[1.5, 0.5]]}, {"ann": [1.5, 0.1]})},
        metrics_bytes=77,
    )


def test_state_and_book_come_back_as_they_were(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save({"backbone": {"w": torch.arange(3.0)}}, book())
    found = Checkpoints(tmp_path).load()
    assert found is not None
    assert found[1] == book()
    assert found[0]["backbone"]["w"].tolist() == [0, 1, 2]


def test_before_the_first_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new").load() is None


def test_attempts_are_counted_over_restarts(tmp_path: Path) -> None:
    assert [Checkpoints(tmp_path).attempt() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "three", "1.5"])
def test_a_damaged_attempt_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text(content)
    with pytest.raises(FedVisageError, match="attempt is damaged: it should hold a number"):
        Checkpoints(tmp_path).attempt()


def test_on_a_full_disk_the_attempt_stays_what_it_was(tmp_path: Path) -> None:
    """No file may grow at all in a process of its own: the kernel refuses the first byte."""
    Checkpoints(tmp_path).attempt()
    code = f"""
import resource, signal, sys
from pathlib import Path
from fedvisage.core.errors import FedVisageError
from fedvisage.federation.checkpoint import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    Checkpoints(Path({str(tmp_path)!r})).attempt()
except FedVisageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert "cannot write" in done.stderr
    assert Checkpoints(tmp_path).attempt() == 2


@pytest.mark.parametrize("state", [{}, {"book": {}}, {"server": {}, "book": {"joined": {}, "stepp": 3}}])
def test_another_kind_of_file_is_no_checkpoint(state: dict[str, object], tmp_path: Path) -> None:
    save_state(tmp_path / "last.safetensors", state)
    with pytest.raises(FedVisageError, match="is not a checkpoint of this version"):
        Checkpoints(tmp_path).load()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save({"w": torch.ones(3)}, book())
    path = tmp_path / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FedVisageError, match=r"last\.safetensors is damaged"):
        Checkpoints(tmp_path).load()
