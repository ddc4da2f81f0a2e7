"""Processors in random histories: each record exactly once, whatever happens to the workers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.processing_history import History, World, busy

pytestmark = pytest.mark.fault


def test_each_record_exactly_once(world: World, name: str, chance: random.Random, tmp_path: Path) -> None:
    counted = History(world, name, chance, tmp_path).run(rebalances=7)
    assert (counted.missing, counted.repeated) == (0, 0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_record_exactly_once_through_a_thousand_rebalances(
    world: World, name: str, chance: random.Random, tmp_path: Path
) -> None:
    counted = History(busy(world), name, chance, tmp_path).run(rebalances=1000)
    print(counted)
    assert (counted.missing, counted.repeated) == (0, 0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("without", ["epoch", "stable offsets"])
def test_the_history_notices_a_safeguard_that_is_missing(
    world: World, name: str, chance: random.Random, tmp_path: Path, without: str
) -> None:
    """Most pauses fall into the work, or between a transaction's offsets and its end: some run has duplicates soon."""
    for attempt in range(20):
        counted = History(world._replace(without=without, most_records=400), f"{name}-{attempt}", chance, tmp_path).run(
            rebalances=30
        )
        if counted.repeated:
            return
    pytest.fail("the history has not noticed")
