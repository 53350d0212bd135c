"""One federation of real processes for all tests here: three parties, mutual TLS, a free port of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from real_hosts import EVERYTHING, FAULTS, Hosts, recipe_with

from fedvisage.build import resolve
from fedvisage.deploy.folder import Settings
from fedvisage.deploy.processes import down, running, up
from fedvisage.deploy.provision import create, free_port
from fedvisage.deploy.shares import hand_out, roles_of


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    recipe = resolve(recipe_with(folder))
    settings = Settings(port=free_port(), parties=roles_of(recipe), silence=10.0, gather=40.0, patience=120.0)
    deployment = create(folder / "federation", settings, EVERYTHING)
    hand_out(recipe, deployment)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FAULTS), *([before] if before else [])])
    try:
        up(deployment)
        yield Hosts(deployment)
    finally:
        down(deployment)
        deployment.console.close()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    assert running(deployment) == []
