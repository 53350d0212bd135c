"""What only passes bytes on at the server is small: it never loads PyTorch, and does not gather what has left it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from real_hosts import Hosts, eventually, recipe_with

import fedvisage as fv
from fedvisage.federation.nvflare.body import Body
from fedvisage.federation.nvflare.courier import Bodies

RELAY = """
import sys
import fedvisage.federation.nvflare.controller
assert not {"torch", "numpy", "pydantic"} & set(sys.modules)
"""


def test_the_relay_imports_neither_pytorch_nor_numpy() -> None:
    subprocess.run([sys.executable, "-c", RELAY], check=True)


def test_no_process_of_the_server_loads_pytorch_until_its_job_has_ended(hosts: Hosts, tmp_path: Path) -> None:
    seen: set[bool] = set()
    """Of the server's processes, whether those were there that belong to a job."""
    guilty: set[int] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for one in hosts.of("server"):
                seen.add(not one.parent)
                if loads_pytorch(one.pid):
                    guilty.add(one.pid)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        fv.run(recipe_with(tmp_path, {"federation.rounds": 1}), out=tmp_path / "run", on=hosts.folder)
        assert eventually(lambda: not hosts.jobs())
    finally:
        over.set()
        looking.join()
    assert seen == {True, False}
    assert not guilty


def loads_pytorch(pid: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def test_the_server_lets_go_of_what_its_blocks_left_behind_and_a_party_is_not_slowed_down() -> None:
    gc.disable()
    try:
        for tidy in (False, True):
            left = Left()
            left.own, gone = left, weakref.ref(left)
            del left
            Bodies({"model": Body(1, memoryview(bytearray(1)))}, tidy).produce(None, "party")
            assert (gone() is None) == tidy
    finally:
        gc.enable()


class Left:
    """Something that knows itself."""

    own: Left
