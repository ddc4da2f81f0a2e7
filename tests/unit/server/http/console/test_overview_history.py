"""The last hour of the overview's charts."""

from __future__ import annotations

from typing import cast

import pytest

from fencepost.server.broker import Broker
from fencepost.server.counters import Distribution
from fencepost.server.http.console.overview import LoadHistory, Sample
from fencepost.server.views.snapshot import Snapshots

pytestmark = pytest.mark.unit


def test_a_clock_that_is_set_back_begins_the_hour_anew() -> None:
    history = LoadHistory(cast("Broker", None), cast("Snapshots", None))
    for at, taken_ms in enumerate((10_000, 15_000, 7_000, 12_000)):
        history.add(Sample(taken_ms, at, 0, 0, Distribution((), 0.0), 0, at))
    assert [(sample.taken_ms, sample.lag) for sample in history.samples] == [(7_000, 2), (12_000, 3)]
