"""Commands and scripts in processes of their own, in a folder that holds modules beside the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def fedvisage(folder: Path, *words: object) -> tuple[int, str]:
    """A command's exit code and what it prints."""
    return _run(folder, ["-m", "fedvisage", *map(str, words)])


def script(folder: Path, text: str, name: str = "script.py") -> tuple[int, str]:
    """The same of a script; without a name Python has it from a pipe, as a notebook's kernel has its cells."""
    if name:
        (folder / name).write_text(text, "utf-8")
    return _run(folder, [name or "-"], text)


def _run(folder: Path, words: list[str], text: str = "") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words],
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=ENVIRONMENT,
    )
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")
