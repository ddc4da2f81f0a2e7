"""Readers that share a topic in random histories: each record at least once, and no partition at two at a time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.processing_history import Counted, World, busy
from tests.support.sharing_history import SharedReading

pytestmark = pytest.mark.fault


@pytest.fixture(params=["shared", "exclusive"])
def reading(request: pytest.FixtureRequest, world: World) -> World:
    return world._replace(exclusive=request.param == "exclusive")


def run(world: World, name: str, chance: random.Random, logs: Path, rebalances: int) -> Counted:
    history = SharedReading(world, name, chance, logs)
    counted = history.run(rebalances)
    print(counted)
    assert history.overlaps == []
    assert counted.missing == 0
    return counted


@pytest.mark.every_run("exclusive-consumer", "shared-kafka")
def test_each_record_at_least_once_and_by_one_at_a_time(
    reading: World, name: str, chance: random.Random, tmp_path: Path
) -> None:
    run(reading, name, chance, tmp_path, 7)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_record_at_least_once_through_a_thousand_rebalances(
    reading: World, name: str, chance: random.Random, tmp_path: Path
) -> None:
    run(busy(reading), name, chance, tmp_path, 1000)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_history_notices_a_reader_without_a_lease(
    world: World, name: str, chance: random.Random, tmp_path: Path
) -> None:
    for attempt in range(20):
        history = SharedReading(
            world._replace(without="lease", most_records=400), f"{name}-{attempt}", chance, tmp_path
        )
        history.run(rebalances=30)
        if history.overlaps:
            return
    pytest.fail("the history has not noticed")
