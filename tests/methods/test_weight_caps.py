"""How much an answer counts, and how little a party gains by claiming more images than it has."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from small import FACES, federate

from fedvisage.config import Training
from fedvisage.core.method import WEIGHTINGS, Joined
from fedvisage.faces.partition import Partition, Share
from fedvisage.methods.fedavg import FedPE
from fedvisage.methods.weightings import BySamples


def joined(*samples: int) -> list[Joined]:
    return [Joined("trainer", count, 1) for count in samples]


def test_by_default_nobody_counts_more_than_50_medians() -> None:
    assert BySamples().most(joined(10, 20, 10**8)) == 1000.0
    assert BySamples(cap=1.5).most(joined(10, 20, 30, 40)) == 37.5
    assert BySamples().most([]) == math.inf


@pytest.mark.parametrize("name", ["equal", "fv"])
def test_weightings_that_do_not_count_images_have_no_cap(name: str) -> None:
    assert WEIGHTINGS[name]().most(joined(1, 10**8)) == math.inf
    assert "cap" not in WEIGHTINGS[name].model_fields


def test_a_capped_party_counts_as_much_as_the_cap_and_the_metrics_say_so(tmp_path: Path) -> None:
    """Two images, two and sixteen, at a cap of twice the median: shares 2, 2 and 4 of 8."""
    parties = {
        name: Share("trainer", rows, ()) for name, rows in (("a", (0, 1)), ("b", (4, 5)), ("c", (*range(6, 20),)))
    }
    method = FedPE(training=Training(batch_size=4))
    folder = tmp_path
    federate(folder, method, partition=Partition((), (), parties), weighting=BySamples(cap=2.0), rounds=1, faces=FACES)
    train = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1]
    assert train["capped"] == 1
    losses = {party: numbers["loss"] for party, numbers in train["parties"].items()}
    assert train["loss"] == pytest.approx(0.25 * losses["a"] + 0.25 * losses["b"] + 0.5 * losses["c"])
