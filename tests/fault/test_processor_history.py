"""Processors in random histories: each record exactly once, whatever happens to the workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from tests.conftest import Kafka
from tests.support.processing import History, World

pytestmark = pytest.mark.fault

SESSION = 1.0
BATCH = 4.0


@pytest.fixture(
    params=[
        "consumer",
        pytest.param("cooperative", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)
def world(request: pytest.FixtureRequest, fencepost_server_factory: Callable[..., fencepost.Server]) -> World:
    """Both protocols on our server, and the classic one on Apache Kafka, where sessions of the other are long."""
    if request.param == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka_with_short_sessions")
        return World(kafka.address, "cooperative", SESSION, BATCH)
    server = fencepost_server_factory(
        group_min_session_timeout_ms=100,
        group_consumer_session_timeout_ms=int(SESSION * 1000),
        group_consumer_heartbeat_interval_ms=200,
    )
    return World(server.address, request.param, SESSION, BATCH)


def test_each_record_exactly_once(world: World, name: str, chance: random.Random, tmp_path: Path) -> None:
    counted = History(world, name, chance, tmp_path).run(rebalances=7)
    assert (counted.missing, counted.repeated) == (0, 0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_record_exactly_once_through_a_thousand_rebalances(
    world: World, name: str, chance: random.Random, tmp_path: Path
) -> None:
    counted = History(world._replace(partitions=6, workers=5, most_records=400), name, chance, tmp_path).run(
        rebalances=1000
    )
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
