"""The benchmark of backups: its figures are those that the goals and the tables of figures look for."""

from __future__ import annotations

import pytest

from bench.goals import judge
from bench.results import Results
from bench.server import backup

pytestmark = pytest.mark.unit


def window(records: int, p99: float) -> backup.Window:
    return backup.Window(records=records, seconds=2.0, server_cpu=1.0, latencies_ms=[1.0] * 50 + [p99] * 50)


def test_a_pair_of_windows_is_judged_by_the_goals() -> None:
    results = Results({})
    for load in (backup.FLAT_OUT, backup.STEADY):
        without = window(600, 4.0).and_then(window(400, 4.0))
        backup.note((load, "10 GiB"), without, window(450, 25.0), results, lambda line: None)
    found = [(each.labels, each.goal.bound, each.values, each.met) for each in judge(results)]
    assert found == [
        ((backup.FLAT_OUT, "10 GiB"), 0.9, [0.9], True),
        ((backup.STEADY, "10 GiB"), 0.9, [0.9], True),
        ((backup.STEADY, "10 GiB", "p99"), 20.0, [25.0], False),
    ]
