"""Shared by all tests: one thread, as parties have, and hypothesis without time limits on a busy machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from browser import BINARY, WHY, Browser
from cases import cases
from hypothesis import HealthCheck, settings

from fedvisage.cli import main

torch.set_num_threads(1)
settings.register_profile("fedvisage", cases(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedvisage")
LONG = ("tests/studies/", "tests/test_documented_commands.py", "tests/e2e/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin, so that of two processes none waits for the other's last one."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture
def fedvisage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: its exit code, and what it printed on either stream."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedvisage", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; without one the test is skipped and says so."""
    if BINARY is None:
        pytest.skip(WHY)
    running = Browser()
    yield running
    running.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was not run for want of a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    unseen = [report for report in skipped if WHY in str(report.longrepr)]
    if unseen:
        terminalreporter.write_line(f"not run: {len(unseen)} tests of pages in a browser ({WHY})")
