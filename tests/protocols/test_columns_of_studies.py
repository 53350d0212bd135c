"""Every column of every study, at paper scale too, asks its protocol for something that the protocol gives."""

from __future__ import annotations

from typing import Any

import pytest

from fedvisage.protocols import Data, open_subject, run
from fedvisage.studies import Measure, list_studies, load_study
from fedvisage.studies.running import options_of
from tests.protocols.test_protocols import ON


def measures() -> dict[str, Measure]:
    """One for each protocol on a face set and each metric of it."""
    studies = [load_study(name) for name in list_studies()]
    found = [measure for study in studies for column in study.columns for measure in column.by.values()]
    return {f"{measure.protocol} {measure.metric}": measure for measure in found if measure.protocol in ON}


MEASURES = measures()


def test_there_are_columns_by_protocols_on_face_sets() -> None:
    assert {"ijb", "ijb-means", "ijba-means", "lfw", "megaface", "fedfrbench", "all-pairs"} <= {
        one.protocol for one in MEASURES.values()
    }


@pytest.mark.parametrize("name", MEASURES)
def test_a_columns_metric_is_one_of_its_protocol(name: str, model: Any, request: pytest.FixtureRequest) -> None:
    measure = MEASURES[name]
    data = Data(request.getfixturevalue(ON[measure.protocol]))
    found = run(measure.protocol, data, open_subject(str(model)), options_of([measure]))
    assert measure.metric in found.metrics
