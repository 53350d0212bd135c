"""One federation of real processes for most tests here: three parties, mutual TLS, a free port of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from real_hosts import Hosts, recipe_with, started


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with started(folder, recipe_with(folder)) as federation:
        yield federation
