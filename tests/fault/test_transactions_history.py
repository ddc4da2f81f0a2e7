"""Consume, transform, produce in transactions while everything fails: the history of it must be one that can be true.

FENCEPOST_HISTORY_SECONDS sets for how long, FENCEPOST_HISTORY_SEED repeats a run's dice, though not the moments at
which the machine gave each process its turn.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.history_run import HistoryRun

pytestmark = pytest.mark.fault


def run(folder: Path, seconds: float, inputs: int) -> None:
    given = os.environ.get("FENCEPOST_HISTORY_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    report = HistoryRun(folder, seed, inputs=inputs).run(seconds)
    print(report)
    assert report.anomalies == []
    assert report.transactions["committed"] > 0
    assert report.records == 3 * 2 * inputs


@pytest.mark.timeout(300)
def test_nothing_is_lost_torn_doubled_or_reordered_while_everything_fails(tmp_path: Path) -> None:
    """PIPE-4, with a stranger's client."""
    run(tmp_path, float(os.environ.get("FENCEPOST_HISTORY_SECONDS", "8")), inputs=1000)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_is_lost_torn_doubled_or_reordered_in_an_hour(tmp_path: Path) -> None:
    """In rounds of five minutes, each on a fresh log."""
    seconds = float(os.environ.get("FENCEPOST_HISTORY_SECONDS", "3600"))
    rounds = max(1, round(seconds / 300))
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(folder, seconds / rounds, inputs=round(40 * seconds / rounds))
